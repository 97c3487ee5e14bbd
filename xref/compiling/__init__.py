"""`xref compile`: the program that a compiler makes of a JAX kernel is read, and what it shows is reported."""
