"""The checks of the embedding, each with the calls that it is judged by."""
