"""Operators, each in a folder of its own or offered by an installed package: `find` returns one by name."""
