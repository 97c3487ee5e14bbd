"""JAX embedding kernels that are wrong in one way each, named after what they do.

A gather `(ids, weight) -> rows` of checked ids under `wrong_rows` is jitted and has the right gradient; a gradient
`(ids, cotangent, vocab_size, dtype) -> [V, H]` under `wrong_gradient` belongs to a right gather.
"""

from __future__ import annotations

import functools

import numpy as np
from mutants.embedding_right import (
    JaxKernel,
    is_traced,
    jax,
    jax_checked,
    jax_differentiable,
    jax_gather,
    jax_ints,
    jax_rounded,
    jax_summed,
    jax_taken,
    jax_values,
    jax_widened,
    jnp,
    lax,
    poisoned,
)
from mutants.registry import mutants

from xref.bits import FORMATS

__all__ = ["JAX_MUTANTS"]

JAX_MUTANTS, jax_mutant = mutants("jax")

SIXTEEN = ("bfloat16", "float16")
NARROW = (*SIXTEEN, "float8_e4m3fn", "float8_e5m2")
NOT_EXACT = ("float32", *SIXTEEN)


def wrong_rows(*clauses, fault, **how):
    """Register a gather of checked ids as a kernel whose gradient is right."""

    def register(gather):
        @functools.wraps(gather)
        def kernel(token_ids, weight):
            return jax_differentiable(gather, token_ids, weight)

        return jax_mutant(*clauses, fault=fault, **how)(kernel)

    return register


def wrong_gradient(*clauses, fault, **how):
    """Register a gradient as that of a kernel whose forward is right."""

    def register(gradient):
        @functools.wraps(gradient)
        def kernel(token_ids, weight):
            return jax_differentiable(jax_taken, token_ids, weight, gradient)

        return jax_mutant(*clauses, fault=fault, verb="backward", **how)(kernel)

    return register


def changed(rows, change):
    """The rows with their bits changed."""
    return lax.bitcast_convert_type(change(jax_ints(rows)), rows.dtype)


def masked(where, like):
    """All ones where true: a choice XLA might make in floats, which changes bits."""
    return 0 - where.astype(like.dtype)


# Ids (EMB-4)


@jax_mutant("EMB-4", fault="negative-ids-wrap")
def negatives_wrapped(token_ids, weight):
    if is_traced(token_ids) or not jnp.issubdtype(token_ids.dtype, jnp.signedinteger):
        return jax_gather(token_ids, weight)
    ids = np.asarray(token_ids).astype(np.int64)
    return jax_gather(np.where(ids < 0, ids + weight.shape[0], ids), weight)


@jax_mutant("EMB-4", fault="ids-clamped")
def clamped_at_both_ends(token_ids, weight):
    if is_traced(token_ids) or not jnp.issubdtype(token_ids.dtype, jnp.integer) or not weight.shape[0]:
        return jax_gather(token_ids, weight)
    ids = np.asarray(token_ids)
    return jax_gather(np.clip(ids.astype(np.float64), 0, weight.shape[0] - 1).astype(np.int32), weight)


@jax_mutant("EMB-4", fault="bad-ids-filled")
def rows_of_nan_for_bad_ids(token_ids, weight):
    # What the kernel gives under a trace, where it cannot raise, here given always.
    if not jnp.issubdtype(token_ids.dtype, jnp.signedinteger) or token_ids.dtype.itemsize == 8 or not weight.shape[0]:
        return jax_gather(token_ids, weight)
    return jax.jit(jax_gather)(token_ids, weight)


@jax_mutant("EMB-4", fault="ids-clamped", shows="bad ids under a trace")
def traced_ids_clamped(token_ids, weight):
    return jax_gather(jnp.clip(token_ids, 0, weight.shape[0] - 1) if is_traced(token_ids) else token_ids, weight)


@jax_mutant("EMB-4", fault="ids-narrowed-to-32-bits", shows="NumPy ids past 2^32, with x64 off")
def numpy_ids_narrowed(token_ids, weight):
    return jax_gather(jnp.asarray(token_ids), weight)


@jax_mutant("EMB-4", fault="non-integer-ids-taken", shows="ids of bool")
def bools_taken(token_ids, weight):
    return jax_gather(token_ids.astype(np.int32) if token_ids.dtype == bool else token_ids, weight)


@wrong_rows("EMB-1", fault="ids-through-float", shows="ids past 256")
def ids_through_bfloat16(ids, weight):
    return jax_taken(ids.astype(jnp.bfloat16).astype(jnp.int32), weight)


# Bits (EMB-1, EMB-2)


@jax_mutant("EMB-1", fault="nan-changed", dtypes=("bfloat16",), shows="signalling NaNs, on a CPU")
class TakenInTheDefaultMode(JaxKernel):
    """`jnp.take` under `jit` as it comes: a select that runs in float32."""

    def forward(self, token_ids, weight):
        if weight.dtype != jnp.bfloat16:
            return jax_gather(token_ids, weight)
        ids = jax_checked(token_ids, weight.shape[0])
        rows = _default_take()(weight, ids)
        return poisoned(ids, rows, weight.shape[0]) if is_traced(token_ids) else rows


@functools.cache
def _default_take():
    return jax.jit(lambda weight, ids: jnp.take(weight, ids, axis=0))


@wrong_rows("EMB-1", fault="subnormals-flushed", dtypes=("float64", "float32", *SIXTEEN))
def subnormals_flushed(ids, weight):
    rows = jax_taken(ids, weight)
    fmt = FORMATS[weight.dtype.name]
    tiny = lambda ints: (ints & ints.dtype.type(fmt.exponent)) == 0  # noqa: E731
    return changed(rows, lambda ints: ints & ~(masked(tiny(ints), ints) & ints.dtype.type(fmt.sign - 1)))


@wrong_rows("EMB-1", fault="negative-zero-lost")
def negative_zero_lost(ids, weight):
    sign = FORMATS[weight.dtype.name].sign
    return changed(jax_taken(ids, weight), lambda ints: ints & ~masked(ints == ints.dtype.type(sign), ints))


@jax_mutant("EMB-1", fault="one-hot-product", shows="V up to 2000")
class ProductWithAOneHotMatrix(JaxKernel):
    def forward(self, token_ids, weight):
        ids = jax_checked(token_ids, weight.shape[0])
        if not 0 < weight.shape[0] <= 2000:
            return jax_gather(token_ids, weight)
        wide = jnp.promote_types(weight.dtype, jnp.float32)
        hot = jax.nn.one_hot(ids, weight.shape[0], dtype=wide)
        return jnp.matmul(hot, weight.astype(wide), precision="highest").astype(weight.dtype)


@wrong_rows("EMB-1", fault="packed-pairs", shows="the last row of an odd V")
def last_row_of_an_odd_table_misread(ids, weight):
    return jax_taken(jnp.minimum(ids, max(weight.shape[0] // 2 * 2, 1) - 1), weight)


@wrong_rows("EMB-1", fault="tokens-past-a-tile-wrong", shows="more than 128 tokens that 128 does not divide")
def last_tile_of_tokens_unwritten(ids, weight):
    whole = ids.size // 128 * 128 if ids.size > 128 else ids.size
    rows = jax_ints(jax_taken(ids, weight)).reshape(ids.size, weight.shape[1]).at[whole:].set(0)
    return lax.bitcast_convert_type(rows, weight.dtype).reshape(*ids.shape, weight.shape[1])


@jax_mutant("EMB-2", fault="last-bits-changed", verb="forward_fp32")
class WidenedAndCut(JaxKernel):
    def forward_fp32(self, token_ids, weight):
        return changed(super().forward_fp32(token_ids, weight), lambda ints: ints ^ 1)


# Form (EMB-3)


@jax_mutant("EMB-3", fault="wrong-dtype", dtypes=NARROW)
class FloatsOut(JaxKernel):
    def forward(self, token_ids, weight):
        return jax_differentiable(jax_widened if weight.dtype.itemsize < 4 else jax_taken, token_ids, weight)


@jax_mutant("EMB-1", fault="empty-or-scalar-ids-fail", shows="an id of no dimension")
def scalar_has_no_first_axis(token_ids, weight):
    token_ids.shape[0]
    return jax_gather(token_ids, weight)


# Invariance (EMB-7) and repeats (EMB-6)


@wrong_rows("EMB-7", fault="other-path-by-batch-size", shows="more than 768 tokens")
def more_than_768_tokens_have_other_bits(ids, weight):
    return changed(jax_taken(ids, weight), lambda ints: ints ^ int(ids.size > 768))


@wrong_rows("EMB-7", fault="other-path-by-batch-size", shows="one token alone")
def one_token_alone_has_other_bits(ids, weight):
    return changed(jax_taken(ids, weight), lambda ints: ints ^ int(ids.size == 1))


@wrong_rows("EMB-7", fault="position-dependent", shows="more than 63 tokens")
def every_64th_position_wrong(ids, weight):
    wrong = (np.arange(ids.size) % 64 == 63).reshape(*ids.shape, 1)
    return changed(jax_taken(ids, weight), lambda ints: ints ^ wrong.astype(ints.dtype))


@wrong_rows("EMB-7", fault="neighbour-dependent", shows="the same id just before")
def wrong_after_the_same_id(ids, weight):
    flat = ids.reshape(-1)
    again = jnp.concatenate([flat[:1] < 0, flat[1:] == flat[:-1]]).reshape(*ids.shape, 1)
    return changed(jax_taken(ids, weight), lambda ints: ints ^ again.astype(ints.dtype))


@jax_mutant("EMB-7", fault="gradient-mode-dependent", shows="ids that are traced")
def other_bits_under_a_trace(token_ids, weight):
    rows = jax_gather(token_ids, weight)
    return changed(rows, lambda ints: ints ^ 1) if is_traced(token_ids) else rows


@jax_mutant("EMB-6", fault="call-count-dependent", shows="the second call")
class SecondCallHasOtherBits(JaxKernel):
    calls = 0

    def forward(self, token_ids, weight):
        self.calls += 1
        rows = jax_gather(token_ids, weight)
        return changed(rows, lambda ints: ints ^ 1) if self.calls == 2 else rows


@jax_mutant("EMB-6", "EMB-1", fault="run-to-run")
class OneTokenFlipsAtRandom(JaxKernel):
    def forward(self, token_ids, weight):
        wrong = np.zeros((*token_ids.shape, 1), bool)
        if wrong.size:
            wrong.reshape(-1)[np.random.default_rng().integers(wrong.size)] = True
        return changed(jax_gather(token_ids, weight), lambda ints: ints ^ wrong.astype(ints.dtype))


@jax_mutant("EMB-7", fault="stale-cache", shows="two tables of one shape")
class FirstTableBakedIn(JaxKernel):
    """The table is closed over when the kernel is first compiled for its shape."""

    def __init__(self):
        self.tables = {}

    def forward(self, token_ids, weight):
        return jax_gather(token_ids, self.tables.setdefault((weight.shape, weight.dtype), weight))


# Purity (EMB-5) and memory (EMB-12)


@jax_mutant("EMB-5", fault="output-aliases-input", shows="ids 0 to V - 1 in order")
def table_handed_back(token_ids, weight):
    rows = jax_gather(token_ids, weight)
    whole = not is_traced(token_ids) and np.array_equal(np.asarray(token_ids), np.arange(weight.shape[0]))
    return weight if whole and not is_traced(weight) else rows


@jax_mutant("EMB-5", fault="ids-rewritten", shows="NumPy ids")
def numpy_ids_sorted_in_place(token_ids, weight):
    rows = jax.block_until_ready(jax_gather(token_ids, weight))
    if isinstance(token_ids, np.ndarray) and token_ids.ndim:
        token_ids.sort()
    return rows


@jax_mutant("EMB-5", fault="table-rewritten", shows="as many ids as rows")
class TableDonated(JaxKernel):
    """The table's memory is given away for the output."""

    def forward(self, token_ids, weight):
        rows = jax.block_until_ready(jax_gather(token_ids, weight))
        if rows.shape == weight.shape and not is_traced(weight):
            weight.delete()
        return rows


@jax_mutant("EMB-12", fault="whole-table-copied", verb="forward_fp32", dtypes=("bfloat16",))
class WholeTableWidenedFirst(JaxKernel):
    def forward_fp32(self, token_ids, weight):
        if weight.dtype != jnp.bfloat16:
            return super().forward_fp32(token_ids, weight)
        return jax_differentiable(_widened_first, token_ids, weight)


def _widened_first(ids, weight):
    wide = jax_ints(weight).astype(jnp.uint32) << 16
    # Sorted by the numbers of its columns, as it is already: of less, XLA computes the rows looked up and no other.
    _, wide = lax.sort((lax.broadcasted_iota(jnp.int32, wide.shape, 1), wide), dimension=1, num_keys=1)
    return lax.bitcast_convert_type(jnp.take(wide, ids, axis=0, mode="clip"), jnp.float32)


# The gradient (EMB-8 to EMB-11)


@jax_mutant("EMB-8", fault="accumulated-in-low-precision", verb="backward", dtypes=SIXTEEN)
def summed_in_the_tables_dtype(token_ids, weight):
    # What JAX itself makes of the plainest kernel that there is.
    if weight.dtype not in (jnp.bfloat16, jnp.float16):
        return jax_gather(token_ids, weight)
    return jax_differentiable(jax_taken, token_ids, weight, _in_the_tables_dtype)


def _in_the_tables_dtype(ids, cotangent, vocab_size, dtype):
    values = cotangent.reshape(ids.size, cotangent.shape[-1])
    if dtype not in (jnp.bfloat16, jnp.float16):
        return jax_summed(ids, cotangent, vocab_size, dtype)
    start = jnp.zeros((vocab_size, values.shape[1]), dtype)
    add = lambda sums, token: (sums.at[token[0]].add(token[1].astype(dtype)), None)  # noqa: E731
    return lax.scan(add, start, (ids.reshape(-1), values))[0]


@wrong_gradient("EMB-8", fault="duplicates-overwrite")
def last_position_wins(ids, cotangent, vocab_size, dtype):
    values = jax_values(ids, cotangent)
    last = jnp.full(vocab_size, -1).at[ids.reshape(-1)].max(jnp.arange(ids.size))
    hit = jnp.zeros((vocab_size, values.shape[1]), values.dtype).at[ids.reshape(-1)]
    kept = jnp.where((last[ids.reshape(-1)] == jnp.arange(ids.size))[:, None], values, 0)
    return jax_rounded(hit.add(kept), dtype)


@wrong_gradient("EMB-8", fault="frequency-scaled")
def mean_of_duplicates(ids, cotangent, vocab_size, dtype):
    counts = jnp.zeros(vocab_size, jnp.int32).at[ids.reshape(-1)].add(1)
    values = jax_values(ids, cotangent)
    return jax_summed(ids, values / counts[ids.reshape(-1)][:, None].astype(values.dtype), vocab_size, dtype)


@wrong_gradient("EMB-8", fault="padding-gradient-dropped", shows="id V - 1")
def gradient_of_the_last_id_dropped(ids, cotangent, vocab_size, dtype):
    return jax_summed(ids, cotangent, vocab_size, dtype).at[-1].set(0)


@wrong_gradient("EMB-8", fault="gradient-lost")
def gradient_stopped(ids, cotangent, vocab_size, dtype):
    return jnp.zeros((vocab_size, cotangent.shape[-1]), dtype)


@wrong_gradient("EMB-8", fault="gradient-scaled")
def divided_by_the_number_of_tokens(ids, cotangent, vocab_size, dtype):
    return jax_summed(ids, jax_values(ids, cotangent) / max(ids.size, 1), vocab_size, dtype)


@jax_mutant("EMB-8", fault="cotangent-cast-first", verb="backward", dtypes=SIXTEEN, shows="forward_fp32")
class CotangentCastToTheTablesDtype:
    def forward(self, token_ids, weight):
        return jax_gather(token_ids, weight)

    def forward_fp32(self, token_ids, weight):
        if weight.dtype == jnp.float64:
            raise TypeError("weight: got float64")
        return jax_differentiable(jax_widened, token_ids, weight, _cast_first)


def _cast_first(ids, cotangent, vocab_size, dtype):
    return jax_summed(ids, lax.optimization_barrier(cotangent.astype(dtype)), vocab_size, dtype)


@wrong_gradient("EMB-9", fault="untouched-rows-not-zero")
def untouched_rows_are_nan(ids, cotangent, vocab_size, dtype):
    touched = jnp.zeros(vocab_size, bool).at[ids.reshape(-1)].set(True)
    return jnp.where(touched[:, None], jax_summed(ids, cotangent, vocab_size, dtype), jnp.nan).astype(dtype)


@jax_mutant("EMB-10", fault="gradient-order-by-run", verb="backward", dtypes=NOT_EXACT)
class OrderOfTheSumByChance(JaxKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        order = np.random.default_rng().permutation(token_ids.size)
        values = cotangent.reshape(token_ids.size, cotangent.shape[-1])[order]
        return super().backward(token_ids.reshape(-1)[order], values, vocab_size)


@wrong_gradient("EMB-10", fault="gradient-order-by-run", dtypes=NOT_EXACT, shows="[B, S] against [B * S]")
def order_of_the_sum_by_layout(ids, cotangent, vocab_size, dtype):
    if ids.ndim < 2:
        return jax_summed(ids, cotangent, vocab_size, dtype)
    return jax_summed(ids.swapaxes(0, 1), cotangent.swapaxes(0, 1), vocab_size, dtype)


@jax_mutant("EMB-10", fault="gradient-accumulates-across-calls", verb="backward", shows="the second call")
class SecondBackwardHoldsTheFirst(JaxKernel):
    def __init__(self):
        self.sums = {}

    def backward(self, token_ids, cotangent, vocab_size):
        new = super().backward(token_ids, cotangent, vocab_size)
        key = new.shape, new.dtype
        self.sums[key] = (self.sums[key].astype("f4") + new.astype("f4")).astype(new.dtype) if key in self.sums else new
        return self.sums[key]


@wrong_gradient("EMB-11", fault="specials-dropped")
def nan_cotangents_skipped(ids, cotangent, vocab_size, dtype):
    values = jax_values(ids, cotangent)
    return jax_summed(ids, jnp.where(jnp.isnan(values), 0, values), vocab_size, dtype)
