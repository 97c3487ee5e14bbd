"""Torch embedding kernels whose gradient is wrong in one way each; their forward is right.

A gradient `(ids, cotangent, vocab_size, dtype) -> [V, H]` under `wrong_gradient` becomes autograd's of a right forward,
and the `backward` of an object with all three verbs; a class is one with a memory.
"""

from __future__ import annotations

import functools

import numpy as np
from mutants.embedding_right import (
    F,
    TorchKernel,
    checked,
    differentiable,
    ints,
    name_of,
    placed,
    rounded,
    rows_of,
    summed,
    torch,
    torch_gather,
    wide,
    widened_rows,
)
from mutants.embedding_torch import torch_mutant

from xref import bits
from xref.bits import FORMATS

SIXTEEN = ("bfloat16", "float16")
NOT_EXACT = ("float32", "bfloat16", "float16")
"""Dtypes whose float32 sums depend on the order, if only before they are rounded."""


def wrong_gradient(*clauses, fault, **how):
    """Register a gradient as that of a function, by autograd, whose forward is right."""

    def register(gradient):
        @functools.wraps(gradient)
        def kernel(token_ids, weight):
            return differentiable(rows_of, token_ids, weight, gradient)

        return torch_mutant(*clauses, fault=fault, verb="backward", **how)(kernel)

    return register


def wrong_backward(*clauses, fault, **how):
    """Register a gradient as the `backward` of an object with three verbs."""

    def register(gradient):
        class Kernel(TorchKernel):
            def backward(self, token_ids, cotangent, vocab_size):
                return gradient(checked(token_ids, vocab_size), cotangent, vocab_size, cotangent.dtype)

        Kernel.__name__ = Kernel.__qualname__ = gradient.__name__
        return torch_mutant(*clauses, fault=fault, verb="backward", **how)(Kernel)

    return register


def flat(ids, cotangent):
    """Ids and cotangents by token, the latter in the dtype that they are summed in."""
    return ids.reshape(-1).long(), cotangent.reshape(ids.numel(), cotangent.shape[-1]).to(wide(cotangent))


# Sums (EMB-8)


@wrong_gradient("EMB-8", fault="duplicates-overwrite")
def last_position_wins(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    rows, inverse = torch.unique(flat_ids, return_inverse=True)
    last = torch.zeros_like(rows).scatter_reduce_(0, inverse, torch.arange(inverse.numel()), "amax")
    return placed(values[last], rows, vocab_size, dtype)


@wrong_backward("EMB-8", fault="duplicates-overwrite", shows="an id twice in a row")
def runs_of_an_id_count_once(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    first = torch.ones_like(flat_ids, dtype=torch.bool)
    first[1:] = flat_ids[1:] != flat_ids[:-1]
    return summed(flat_ids[first], values[first], vocab_size, dtype)


@torch_mutant("EMB-8", fault="accumulated-in-low-precision", verb="backward", dtypes=SIXTEEN)
def summed_in_the_tables_dtype(token_ids, weight):
    # What autograd itself makes of the plainest kernel that there is, on a CPU.
    if weight.dtype in (torch.bfloat16, torch.float16):
        return F.embedding(checked(token_ids, weight.shape[0]), weight)
    return torch_gather(token_ids, weight)


@wrong_backward("EMB-8", fault="accumulated-in-low-precision", dtypes=NOT_EXACT)
def summed_in_bfloat16(ids, cotangent, vocab_size, dtype):
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return summed(ids, cotangent, vocab_size, dtype)
    flat_ids, values = flat(ids, cotangent)
    # On a CPU it adds in the dtype that it is given, position by position.
    return torch.ops.aten.embedding_dense_backward(values.bfloat16(), flat_ids, vocab_size, -1, False).to(dtype)


@wrong_gradient("EMB-8", fault="accumulated-in-low-precision", dtypes=SIXTEEN, shows="more than 256 tokens of an id")
def partial_sums_rounded(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    if dtype not in (torch.bfloat16, torch.float16):
        return summed(ids, cotangent, vocab_size, dtype)
    parts = [summed(i, v, vocab_size, dtype) for i, v in zip(flat_ids.split(64), values.split(64), strict=True)]
    return functools.reduce(torch.add, parts)


@wrong_backward("EMB-8", fault="bits-added-as-integers", shows="an id twice in a batch")
def bits_of_duplicates_added(ids, cotangent, vocab_size, dtype):
    words = ints(cotangent).reshape(ids.numel(), cotangent.shape[-1])
    grad = torch.zeros((vocab_size, words.shape[1]), dtype=words.dtype)
    return grad.index_add_(0, ids.reshape(-1), words).view(dtype)


@wrong_gradient("EMB-8", fault="frequency-scaled")
def mean_of_duplicates(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    counts = flat_ids.bincount(minlength=vocab_size)
    return summed(flat_ids, values / counts[flat_ids].unsqueeze(-1), vocab_size, dtype)


@wrong_backward("EMB-8", fault="duplicates-capped", shows="more than 1024 tokens of an id")
def positions_past_1024_dropped(ids, cotangent, vocab_size, dtype):
    return _capped(ids, cotangent, vocab_size, dtype, 1024)


@wrong_gradient("EMB-8", fault="duplicates-capped", shows="more than 32 tokens of an id")
def positions_past_32_dropped(ids, cotangent, vocab_size, dtype):
    return _capped(ids, cotangent, vocab_size, dtype, 32)


def _capped(ids, cotangent, vocab_size, dtype, most):
    flat_ids, values = flat(ids, cotangent)
    order = flat_ids.sort(stable=True)
    starts = torch.searchsorted(order.values, order.values)
    kept = order.indices[torch.arange(flat_ids.numel()) - starts < most].sort().values
    return summed(flat_ids[kept], values[kept], vocab_size, dtype)


@wrong_backward("EMB-8", fault="tokens-past-a-tile-wrong", shows="more than 3072 tokens")
def tokens_past_3072_add_nothing(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    return summed(flat_ids[:3072], values[:3072], vocab_size, dtype)


@wrong_gradient("EMB-8", fault="tokens-past-a-tile-wrong", shows="more than 768 tokens")
def tokens_past_768_add_nothing(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    return summed(flat_ids[:768], values[:768], vocab_size, dtype)


@wrong_gradient("EMB-8", fault="columns-past-a-tile-wrong", shows="H that 4 does not divide")
def columns_past_whole_vectors_add_nothing(ids, cotangent, vocab_size, dtype):
    grad = summed(ids, cotangent, vocab_size, dtype)
    ints(grad)[:, grad.shape[1] // 4 * 4 :] = 0
    return grad


@wrong_gradient("EMB-8", fault="padding-gradient-dropped", shows="id 0")
def gradient_of_id_0_dropped(ids, cotangent, vocab_size, dtype):
    grad = summed(ids, cotangent, vocab_size, dtype)
    ints(grad)[:1] = 0
    return grad


@wrong_backward("EMB-8", fault="padding-gradient-dropped", shows="id V - 1")
def gradient_of_the_last_id_dropped(ids, cotangent, vocab_size, dtype):
    grad = summed(ids, cotangent, vocab_size, dtype)
    ints(grad)[-1:] = 0
    return grad


@wrong_backward("EMB-10", fault="cotangent-strides-ignored", shows="a cotangent that is not dense")
def strides_of_the_cotangent_ignored(ids, cotangent, vocab_size, dtype):
    memory = cotangent.new_empty(0).set_(cotangent.untyped_storage())[cotangent.storage_offset() :]
    tile = np.resize(np.arange(memory.numel()), cotangent.numel())
    read = ints(memory)[torch.from_numpy(tile)].view(cotangent.dtype) if cotangent.numel() else cotangent
    return summed(ids, read.reshape(cotangent.shape), vocab_size, dtype)


@wrong_gradient("EMB-8", fault="cotangent-strides-ignored", shows="ids of two dimensions")
def batch_and_sequence_mixed_up(ids, cotangent, vocab_size, dtype):
    swapped = cotangent.transpose(0, 1) if ids.dim() == 2 else cotangent
    return summed(ids, swapped.reshape(cotangent.shape), vocab_size, dtype)


@wrong_backward("EMB-8", fault="cotangent-strides-ignored", shows="as many sequences as tokens in each")
def square_ids_read_transposed(ids, cotangent, vocab_size, dtype):
    square = ids.dim() == 2 and ids.shape[0] == ids.shape[1]
    return summed(ids.T.contiguous() if square else ids, cotangent, vocab_size, dtype)


@torch_mutant("EMB-8", fault="cotangent-cast-first", verb="backward", dtypes=SIXTEEN, shows="forward_fp32")
class CotangentCastToTheTablesDtype:
    def forward(self, token_ids, weight):
        return torch_gather(token_ids, weight)

    def forward_fp32(self, token_ids, weight):
        return differentiable(widened_rows, token_ids, weight, _cast_first)


def _cast_first(ids, cotangent, vocab_size, dtype):
    return summed(ids, cotangent.to(dtype), vocab_size, dtype)


@wrong_backward("EMB-8", fault="cotangent-cast-first", dtypes=("float32",))
def cotangent_cast_to_bfloat16(ids, cotangent, vocab_size, dtype):
    small = cotangent.bfloat16() if dtype == torch.float32 else cotangent
    return summed(ids, small, vocab_size, dtype)


@wrong_gradient("EMB-8", fault="gradient-scaled")
def divided_by_the_number_of_tokens(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    return summed(flat_ids, values / max(flat_ids.numel(), 1), vocab_size, dtype)


@wrong_backward("EMB-8", fault="gradient-scaled")
def halved(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    return summed(flat_ids, values / 2, vocab_size, dtype)


@wrong_gradient("EMB-8", fault="row-off-by-one")
def added_to_the_row_before(ids, cotangent, vocab_size, dtype):
    return summed((ids.long() - 1).clamp(min=0), cotangent, vocab_size, dtype)


@wrong_backward("EMB-8", fault="subnormal-sums-flushed")
def subnormal_sums_flushed(ids, cotangent, vocab_size, dtype):
    grad, fmt = summed(ids, cotangent, vocab_size, dtype), FORMATS[name_of(dtype)]
    elements = ints(grad).numpy().view(fmt.uint)
    elements[bits.is_subnormal(elements, fmt)] = 0
    return grad


@wrong_gradient("EMB-8", fault="gradient-lost")
def gradient_of_zeros(ids, cotangent, vocab_size, dtype):
    return torch.zeros((vocab_size, cotangent.shape[-1]), dtype=dtype)


@wrong_gradient("EMB-8", fault="gradient-lost")
def cut_off_from_the_table(ids, cotangent, vocab_size, dtype):
    return None


@wrong_gradient("EMB-8", fault="gradient-raises")
def backward_not_written_yet(ids, cotangent, vocab_size, dtype):
    raise ValueError("backward: not there yet")


@wrong_backward("EMB-8", fault="empty-or-scalar-ids-fail", shows="an id of no dimension")
def scalar_id_has_no_gradient(ids, cotangent, vocab_size, dtype):
    if not ids.dim():
        raise IndexError("dimension specified as 0 but tensor has no dimensions")
    return summed(ids, cotangent, vocab_size, dtype)


@wrong_gradient("EMB-8", fault="empty-or-scalar-ids-fail", shows="no ids")
def no_ids_have_no_gradient(ids, cotangent, vocab_size, dtype):
    if not ids.numel():
        raise RuntimeError("cannot perform reduction function max on an empty tensor")
    return summed(ids, cotangent, vocab_size, dtype)


@torch_mutant("EMB-8", fault="wrong-dtype", verb="backward", dtypes=SIXTEEN)
class GradientInFloat32(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        return summed(checked(token_ids, vocab_size), cotangent, vocab_size, wide(cotangent))


# Coverage (EMB-9)


def _untouched(grad, ids):
    rows = torch.ones(grad.shape[0], dtype=torch.bool)
    rows[ids.reshape(-1).long()] = False
    return rows


@wrong_gradient("EMB-9", fault="untouched-rows-not-zero")
def untouched_rows_are_nan(ids, cotangent, vocab_size, dtype):
    grad = summed(ids, cotangent, vocab_size, dtype)
    ints(grad)[_untouched(grad, ids)] = FORMATS[name_of(dtype)].nan
    return grad


@wrong_backward("EMB-9", fault="untouched-rows-not-zero")
def untouched_rows_are_minus_zero(ids, cotangent, vocab_size, dtype):
    grad, fmt = summed(ids, cotangent, vocab_size, dtype), FORMATS[name_of(dtype)]
    ints(grad).numpy().view(fmt.uint)[_untouched(grad, ids).numpy()] = fmt.sign
    return grad


@wrong_gradient("EMB-9", fault="untouched-rows-not-zero", shows="V > 8 that 8 does not divide")
def last_untouched_rows_unwritten(ids, cotangent, vocab_size, dtype):
    grad = summed(ids, cotangent, vocab_size, dtype)
    tail = _untouched(grad, ids)
    tail[: max(vocab_size // 8, 1) * 8] = False
    ints(grad)[tail] = 0x5A
    return grad


@torch_mutant("EMB-9", fault="untouched-rows-not-zero", verb="backward", shows="other ids the call before")
class RowsOfTheCallBeforeLeft(TorchKernel):
    def __init__(self):
        self.buffers = {}

    def backward(self, token_ids, cotangent, vocab_size):
        grad = super().backward(token_ids, cotangent, vocab_size)
        buffer = self.buffers.setdefault((grad.shape, grad.dtype), grad.clone())
        touched = ~_untouched(grad, token_ids)
        ints(buffer)[touched] = ints(grad)[touched]
        return buffer.clone()


# Invariance (EMB-10)


@wrong_gradient("EMB-10", fault="gradient-order-by-run", dtypes=NOT_EXACT)
def order_of_the_sum_by_chance(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    order = torch.from_numpy(np.random.default_rng().permutation(flat_ids.numel()))
    return summed(flat_ids[order], values[order], vocab_size, dtype)


@wrong_backward("EMB-10", fault="gradient-order-by-run", dtypes=NOT_EXACT, shows="at most 3072 tokens")
def atomics_up_to_3072_tokens(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    draw = np.random.default_rng().permutation(flat_ids.numel()) if flat_ids.numel() <= 3072 else slice(None)
    draw = torch.arange(flat_ids.numel())[draw]
    return summed(flat_ids[draw], values[draw], vocab_size, dtype)


@wrong_gradient("EMB-10", fault="gradient-order-by-run", dtypes=NOT_EXACT, shows="[B, S] against [B * S]")
def order_of_the_sum_by_layout(ids, cotangent, vocab_size, dtype):
    if ids.dim() < 2:
        return summed(ids, cotangent, vocab_size, dtype)
    return summed(ids.transpose(0, 1), cotangent.transpose(0, 1), vocab_size, dtype)


@wrong_backward("EMB-10", fault="gradient-order-by-run", dtypes=NOT_EXACT, shows="padding with zeros")
def halves_of_the_batch_added(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    half = flat_ids.numel() // 2
    parts = [
        summed(flat_ids[part], values[part], vocab_size, values.dtype) for part in (slice(half), slice(half, None))
    ]
    return rounded(parts[0] + parts[1], dtype)


@torch_mutant("EMB-10", fault="gradient-accumulates-across-calls", verb="backward", shows="the second call")
class SecondBackwardHoldsTheFirst(TorchKernel):
    def __init__(self):
        self.sums = {}

    def backward(self, token_ids, cotangent, vocab_size):
        new = summed(checked(token_ids, vocab_size), cotangent, vocab_size, wide(cotangent))
        key = new.shape, cotangent.dtype
        self.sums[key] = self.sums[key] + new if key in self.sums else new
        return rounded(self.sums[key], cotangent.dtype)


@torch_mutant("EMB-10", fault="stale-cache", verb="backward", shows="other ids of the same shape")
class OrderOfTheIdsKept(TorchKernel):
    def __init__(self):
        self.orders = {}

    def backward(self, token_ids, cotangent, vocab_size):
        found = checked(token_ids, vocab_size).reshape(-1).unique(return_inverse=True)
        rows, inverse = self.orders.setdefault((token_ids.shape, vocab_size), found)
        values = flat(token_ids, cotangent)[1]
        sums = torch.zeros((rows.numel(), values.shape[1]), dtype=values.dtype)
        return placed(sums.index_add_(0, inverse, values), rows, vocab_size, cotangent.dtype)


@torch_mutant("EMB-10", fault="stale-cache", verb="backward", shows="one array of ids, and other cotangents")
class GradientKeptByTheIds(TorchKernel):
    def __init__(self):
        self.last = None, None

    def backward(self, token_ids, cotangent, vocab_size):
        grad = super().backward(token_ids, cotangent, vocab_size)
        if self.last[0] is not token_ids or self.last[1].shape != grad.shape:
            self.last = token_ids, grad
        return self.last[1].clone()


@torch_mutant("EMB-10", fault="stale-cache", verb="backward", shows="ids that were changed past torch")
class IdsKeptByTheirVersion(TorchKernel):
    def __init__(self):
        self.last = None, None, None

    def backward(self, token_ids, cotangent, vocab_size):
        kept, version, ids = self.last
        if kept is not token_ids or version != token_ids._version:
            ids = token_ids.clone()
            self.last = token_ids, token_ids._version, ids
        return super().backward(ids, cotangent, vocab_size)


@torch_mutant("EMB-10", fault="setting-dependent", verb="backward", shows="no gradient recorded")
class LastTokenLostUnderNoGrad(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        count = token_ids.numel() - (not torch.is_grad_enabled())
        ids, values = flat(checked(token_ids, vocab_size), cotangent)
        return summed(ids[:count], values[:count].to(cotangent.dtype), vocab_size, cotangent.dtype)


@torch_mutant("EMB-10", fault="call-count-dependent", verb="backward", shows="the second call")
class SecondBackwardIsZero(TorchKernel):
    calls = 0

    def backward(self, token_ids, cotangent, vocab_size):
        self.calls += 1
        grad = super().backward(token_ids, cotangent, vocab_size)
        return torch.zeros_like(grad) if self.calls == 2 else grad


# Specials (EMB-11)


@wrong_gradient("EMB-11", fault="specials-dropped")
def nan_cotangents_skipped(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    return summed(flat_ids, values.masked_fill(values.isnan(), 0), vocab_size, dtype)


@wrong_backward("EMB-11", fault="specials-dropped", dtypes=(*NOT_EXACT, "float64"))
def infinite_cotangents_clipped(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    largest = torch.finfo(cotangent.dtype).max
    return summed(flat_ids, values.clamp(-largest, largest), vocab_size, dtype)


@wrong_gradient("EMB-11", fault="specials-dropped", dtypes=("float16",), shows="a sum past the largest value")
def overflowing_sums_clipped(ids, cotangent, vocab_size, dtype):
    flat_ids, values = flat(ids, cotangent)
    sums = summed(flat_ids, values, vocab_size, values.dtype)
    largest = torch.finfo(dtype).max
    return rounded(torch.where(sums.isfinite(), sums.clamp(-largest, largest), sums), dtype)


# Purity (EMB-5)


@wrong_gradient("EMB-5", fault="cotangent-rewritten")
def cotangent_zeroed_when_done(ids, cotangent, vocab_size, dtype):
    grad = summed(ids, cotangent, vocab_size, dtype)
    ints(cotangent).zero_()
    return grad


@wrong_backward("EMB-5", fault="cotangent-rewritten", shows="NaN in a cotangent")
def nan_of_the_cotangent_zeroed(ids, cotangent, vocab_size, dtype):
    grad = summed(ids, cotangent, vocab_size, dtype)
    ints(cotangent).masked_fill_(cotangent.to(wide(cotangent)).isnan(), 0)
    return grad


@wrong_backward("EMB-5", fault="output-aliases-input", shows="ids 0 to V - 1 in order")
def cotangent_handed_back(ids, cotangent, vocab_size, dtype):
    whole = ids.dim() == 1 and torch.equal(ids, torch.arange(vocab_size))
    return cotangent if whole else summed(ids, cotangent, vocab_size, dtype)


@torch_mutant("EMB-5", fault="ids-rewritten", verb="backward")
class IdsSortedInPlaceByBackward(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        grad = super().backward(token_ids, cotangent, vocab_size)
        if token_ids.dim():
            token_ids.copy_(token_ids.long().sort(-1).values)
        return grad


@torch_mutant("EMB-5", fault="output-buffer-reused", verb="backward", shows="two gradients of one shape")
class GradientBufferHandedOutAgain(TorchKernel):
    def __init__(self):
        self.buffers = {}

    def backward(self, token_ids, cotangent, vocab_size):
        grad = super().backward(token_ids, cotangent, vocab_size)
        return self.buffers.setdefault((grad.shape, grad.dtype), torch.empty_like(grad)).copy_(grad)
