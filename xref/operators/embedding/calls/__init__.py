"""What an embedding kernel is asked to do, one record of a call for each."""
