"""Exact sums of floats in float64 bins, rounded once: the arithmetic of the torch gradient.

The elements of a row's tokens are split into bins, each a multiple of its own unit and small enough that float64 adds
all of it without rounding, in any order (`bins`). What one call does not finish, or what two bins cannot hold, is kept
as integer digits of 32 bits on one fixed grid (`fixed_point`). Every sum is rounded once, at the end, to the result's
format (`rounding`).
"""
