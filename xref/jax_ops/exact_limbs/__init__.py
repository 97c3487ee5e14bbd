"""Exact sums of floats in integer limbs, rounded once: the arithmetic of the JAX gradient.

Every element is an integer number of quanta of its format, cut into limbs of a few bits whose sums fit int32 (int64 for
float64) and are the same in any order (`arithmetic`). Only the limbs that the exponents at hand reach are computed, for
a call's segments at a time (`segment_sums`) or in a table that grows (`limb_table`). Carries go from the lowest limb
up, and the highest digits, with one bit for all that is below, are rounded once to the result's format.
"""
