"""Torch embedding kernels whose forward is wrong in one way each, named after what they do.

A gather `(ids, weight) -> rows` under `wrong_rows` becomes a kernel with the right gradient; a class is one with a
memory, or with more than one verb.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time

import numpy as np
from mutants.embedding_right import (
    F,
    TorchKernel,
    differentiable,
    ints,
    name_of,
    rows_of,
    torch,
    torch_gather,
    widened_rows,
)
from mutants.registry import mutants

from xref import bits
from xref.bits import FORMATS

__all__ = ["TORCH_MUTANTS", "torch_mutant", "wrong_rows"]

TORCH_MUTANTS, torch_mutant = mutants("torch")

WIDE = ("float64", "float32")
NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
WITH_INFINITY = ("float64", "float32", "bfloat16", "float16", "float8_e5m2")
PAYLOADS = WITH_INFINITY
"""Dtypes with more than one NaN of a sign."""


def wrong_rows(*clauses, fault, **how):
    """Register a gather as a kernel whose gradient is right."""

    def register(gather):
        @functools.wraps(gather)
        def kernel(token_ids, weight):
            return differentiable(gather, token_ids, weight)

        return torch_mutant(*clauses, fault=fault, **how)(kernel)

    return register


def elements_of(out):
    """The bits of a fresh CPU tensor, to be changed in place, by token: `[T, H]`."""
    fmt = FORMATS[name_of(out.dtype)]
    return ints(out).numpy().view(fmt.uint).reshape(-1, out.shape[-1]), fmt


def flipped(out, where=...):
    """The tensor with the last bit of some tokens' elements changed, in place."""
    elements_of(out)[0][where] ^= 1
    return out


def is_integer(ids):
    return not (ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool)


def outside(ids, weight):
    """Where ids are bad; those that are no integers are left to the check of the kernel."""
    wide = ids.long() if is_integer(ids) else torch.zeros(ids.shape, dtype=torch.int64)
    return (wide < 0) | (wide >= weight.shape[0])


def filled(ids, weight, word):
    """The rows, and for bad ids one byte again and again."""
    bad = outside(ids, weight)
    if not bad.any():
        return rows_of(ids, weight)
    some = weight if len(weight) else weight.new_zeros(1, weight.shape[1])
    out = rows_of(ids.long().masked_fill(bad, 0), some)
    elements_of(out)[0].view(np.uint8)[bad.reshape(-1).numpy()] = word
    return out


FOREIGN = 0x5A  # memory of somebody else


# Ids out of range (EMB-4)


@wrong_rows("EMB-4", fault="negative-ids-wrap")
def negatives_wrapped(ids, weight):
    wide = ids.long() if is_integer(ids) else ids
    return rows_of(torch.where(wide < 0, wide + weight.shape[0], wide) if is_integer(ids) else ids, weight)


@wrong_rows("EMB-4", fault="negative-ids-wrap", shows="id -1")
def minus_one_is_the_last_row(ids, weight):
    last = is_integer(ids) and weight.shape[0] > 0
    return rows_of(ids.long().masked_fill(ids.long() == -1, weight.shape[0] - 1) if last else ids, weight)


@wrong_rows("EMB-4", fault="ids-clamped")
def clamped_at_both_ends(ids, weight):
    return rows_of(ids.long().clamp(0, weight.shape[0] - 1) if is_integer(ids) and len(weight) else ids, weight)


@wrong_rows("EMB-4", fault="ids-clamped", shows="a bad id among more than 1024")
def clamped_in_large_batches(ids, weight):
    large = ids.numel() > 1024 and is_integer(ids)
    return rows_of(ids.long().clamp(0, weight.shape[0] - 1) if large else ids, weight)


@wrong_rows("EMB-4", fault="ids-clamped", shows="id V")
def one_past_the_end_taken(ids, weight):
    past = is_integer(ids) and weight.shape[0] > 0
    return rows_of(torch.where(ids.long() == len(weight), ids.long() - 1, ids.long()) if past else ids, weight)


@wrong_rows("EMB-4", fault="bad-ids-filled")
def bad_ids_give_zeros(ids, weight):
    return filled(ids, weight, 0)


@wrong_rows("EMB-4", fault="bad-ids-filled")
def bad_ids_give_nan(ids, weight):
    return filled(ids, weight, 0xFF)


@wrong_rows("EMB-4", fault="bad-ids-unchecked", shows="bad ids of two dimensions or more")
def unchecked_in_two_dimensions(ids, weight):
    return filled(ids, weight, FOREIGN) if ids.dim() > 1 else rows_of(ids, weight)


@wrong_rows("EMB-4", fault="bad-ids-unchecked", shows="a bad id of no dimension")
def unchecked_if_zero_dimensional(ids, weight):
    return rows_of(ids, weight) if ids.dim() else filled(ids, weight, FOREIGN)


@wrong_rows("EMB-4", fault="bad-ids-unchecked", shows="bad ids that are not int64")
def unchecked_unless_int64(ids, weight):
    return rows_of(ids, weight) if ids.dtype == torch.int64 or not is_integer(ids) else filled(ids, weight, FOREIGN)


@wrong_rows("EMB-4", fault="bad-ids-unchecked", shows="a bad id that is not the first")
def unchecked_after_the_first(ids, weight):
    rows_of(ids.reshape(-1)[:1], weight)
    return filled(ids, weight, FOREIGN)


@wrong_rows("EMB-4", fault="bad-ids-unchecked", shows="V = 0")
def unchecked_in_an_empty_table(ids, weight):
    return rows_of(ids, weight) if len(weight) else filled(ids, weight, FOREIGN)


@wrong_rows("EMB-4", fault="bad-ids-unchecked", shows="a negative id")
def unchecked_below_zero(ids, weight):
    below = is_integer(ids) and ids.numel() and bool((ids.long() < 0).any()) and not (ids.long() >= len(weight)).any()
    return filled(ids, weight, FOREIGN) if below else rows_of(ids, weight)


@wrong_rows("EMB-4", fault="non-integer-ids-taken", shows="ids of bool")
def bools_taken(ids, weight):
    return rows_of(ids.long() if ids.dtype == torch.bool else ids, weight)


@wrong_rows("EMB-4", fault="non-integer-ids-taken", shows="ids of float")
def floats_taken(ids, weight):
    return rows_of(ids.long() if ids.dtype.is_floating_point else ids, weight)


@wrong_rows("EMB-4", fault="ids-narrowed-to-32-bits", shows="an id past 2^32")
def narrowed_before_the_check(ids, weight):
    return rows_of(ids.to(torch.int32) if ids.dtype in (torch.int64, torch.uint64) else ids, weight)


@torch_mutant("EMB-4", fault="refuses-with-another-error")
def bad_ids_refused_with_a_valueerror(token_ids, weight):
    try:
        return torch_gather(token_ids, weight)
    except IndexError as error:
        raise ValueError("token_ids: got an id that is not in the vocabulary") from error


@torch_mutant("EMB-4", fault="crash", ends=False, shows="a bad id")
def null_pointer_read_on_bad_ids(token_ids, weight):
    if outside(token_ids, weight).any():
        ctypes.string_at(0)
    return torch_gather(token_ids, weight)


@torch_mutant("EMB-4", fault="endless-loop", ends=False, shows="a bad id")
def waits_for_ever_on_bad_ids(token_ids, weight):
    while outside(token_ids, weight).any():
        time.sleep(1)
    return torch_gather(token_ids, weight)


# Other rows than those asked for (EMB-1)


@wrong_rows("EMB-1", fault="ids-narrowed-to-8-bits", shows="ids past 255")
def ids_modulo_256(ids, weight):
    rows_of(ids, weight)
    return rows_of(ids.long() % 256, weight)


@wrong_rows("EMB-1", fault="ids-narrowed-to-16-bits", shows="ids past 65535")
def ids_modulo_65536(ids, weight):
    rows_of(ids, weight)
    return rows_of(ids.long() % 65536, weight)


@wrong_rows("EMB-1", fault="ids-through-float", shows="ids past 256")
def ids_through_bfloat16(ids, weight):
    rows_of(ids, weight)
    return rows_of(ids.long().to(torch.bfloat16).long().clamp(max=weight.shape[0] - 1), weight)


@wrong_rows("EMB-1", fault="ids-through-float", dtypes=("float32",), shows="ids past 2^24")
def ids_through_float32(ids, weight):
    rows_of(ids, weight)
    return rows_of(ids.long().float().long().clamp(max=weight.shape[0] - 1), weight)


@wrong_rows("EMB-1", fault="row-off-by-one")
def the_row_before(ids, weight):
    rows_of(ids, weight)
    return rows_of((ids.long() - 1).clamp(min=0), weight)


@wrong_rows("EMB-1", fault="some-rows-wrong", shows="ids 218 to 222 of a table of 100,000 rows or more")
def five_ids_of_a_large_table_wrong(ids, weight):
    hit = (ids.long() >= 218) & (ids.long() <= 222) & (weight.shape[0] >= 100_000)
    return flipped(rows_of(ids, weight), hit.reshape(-1).numpy())


@wrong_rows("EMB-1", fault="some-rows-wrong", shows="id 22")
def one_id_wrong(ids, weight):
    rows_of(ids, weight)
    return rows_of(torch.where(ids.long() == 22, 21, ids.long()), weight)


@wrong_rows("EMB-1", fault="some-rows-wrong", shows="V = 1")
def only_row_of_a_table_is_nan(ids, weight):
    out = rows_of(ids, weight)
    if weight.shape[0] == 1:
        elements_of(out)[0].view(np.uint8)[:] = 0xFF
    return out


@wrong_rows("EMB-1", fault="row-offset-overflow", shows="a row past 2^31 elements")
def offset_in_elements_overflows(ids, weight):
    out = rows_of(ids, weight)
    elements_of(out)[0][(ids.long() * weight.shape[1] >= 2**31).reshape(-1).numpy()] = 0
    return out


@wrong_rows("EMB-1", fault="row-offset-overflow", shows="a row past 2^31 bytes")
def offset_in_bytes_overflows(ids, weight):
    out = rows_of(ids, weight)
    elements_of(out)[0][(ids.long() * weight.shape[1] * weight.itemsize >= 2**31).reshape(-1).numpy()] = 0
    return out


@wrong_rows("EMB-1", fault="padding-id-zeroed", shows="id 0")
def padding_row_zeroed(ids, weight):
    out = rows_of(ids, weight)
    elements_of(out)[0][(ids.long() == 0).reshape(-1).numpy()] = 0
    return out


@wrong_rows("EMB-1", fault="last-rows-lost", shows="V not divisible by 4")
def rows_past_four_equal_shards_lost(ids, weight):
    out = rows_of(ids, weight)
    elements_of(out)[0][(ids.long() >= weight.shape[0] // 4 * 4).reshape(-1).numpy()] = 0
    return out


@wrong_rows("EMB-1", fault="id-dtype-misread", shows="uint8 ids past 127")
def uint8_read_as_int8(ids, weight):
    rows_of(ids, weight)
    wide = ids.view(torch.int8).long() if ids.dtype == torch.uint8 else ids.long()
    return rows_of(torch.where(wide < 0, weight.shape[0] - 1, wide), weight)


@wrong_rows("EMB-1", fault="id-dtype-misread", shows="int16 ids past 255")
def int16_ids_byte_by_byte(ids, weight):
    rows_of(ids, weight)
    return rows_of(ids.long() % 256 if ids.dtype == torch.int16 else ids, weight)


# Other bits (EMB-1)


@wrong_rows("EMB-1", fault="subnormals-flushed")
def subnormals_flushed(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[bits.is_subnormal(elements, fmt)] &= fmt.sign
    return out


@wrong_rows("EMB-1", fault="negative-zero-lost")
def negative_zero_lost(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[bits.is_zero(elements, fmt)] = 0
    return out


@wrong_rows("EMB-1", fault="nan-changed", dtypes=PAYLOADS)
def nan_quieted(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[bits.is_nan(elements, fmt)] |= fmt.nan
    return out


@wrong_rows("EMB-1", fault="nan-changed")
def nan_made_canonical(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[bits.is_nan(elements, fmt)] = fmt.nan
    return out


@wrong_rows("EMB-1", fault="nan-changed", dtypes=PAYLOADS, shows="a NaN in the last columns of a row")
def nan_quieted_in_the_tail_of_a_row(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    tail = elements[:, elements.shape[1] // 8 * 8 :]
    tail[bits.is_nan(tail, fmt)] |= fmt.nan
    return out


@wrong_rows("EMB-1", fault="nan-replaced")
def nan_to_zero(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[bits.is_nan(elements, fmt)] = 0
    return out


@wrong_rows("EMB-1", fault="nan-replaced", dtypes=WITH_INFINITY)
def nan_to_infinity(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[bits.is_nan(elements, fmt)] &= fmt.sign | fmt.exponent
    return out


@wrong_rows("EMB-1", fault="infinity-replaced", dtypes=WITH_INFINITY)
def infinity_saturated(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[bits.is_inf(elements, fmt)] -= 1
    return out


def through(rows, dtype):
    """The rows rounded to a dtype and back; NaNs and what would be infinite keep their bits."""
    found = rows.to(dtype).to(rows.dtype)
    keep = rows.float().isnan() | (found.float().isfinite() != rows.float().isfinite())
    return torch.where(keep, ints(rows), ints(found)).view(rows.dtype)


@wrong_rows("EMB-1", fault="rounded-through-bfloat16", dtypes=("float64", "float32", "float16"))
def rounded_through_bfloat16(ids, weight):
    return through(rows_of(ids, weight), torch.bfloat16)


@wrong_rows("EMB-1", fault="rounded-through-float16", dtypes=("float64", "float32", "bfloat16"))
def rounded_through_float16(ids, weight):
    return through(rows_of(ids, weight), torch.float16)


@wrong_rows("EMB-1", fault="rounded-through-float8", dtypes=("float64", "float32", "bfloat16", "float16"))
def rounded_through_float8(ids, weight):
    return through(rows_of(ids, weight), torch.float8_e5m2)


@wrong_rows("EMB-1", fault="one-hot-product", shows="V up to 2000")
def product_with_a_one_hot_matrix(ids, weight):
    rows = rows_of(ids, weight)
    if not 0 < weight.shape[0] <= 2000:
        return rows
    hot = F.one_hot(ids.long(), weight.shape[0]).double().reshape(-1, weight.shape[0])
    return (hot @ weight.double()).to(weight.dtype).reshape(rows.shape)


@wrong_rows("EMB-1", fault="one-hot-product", shows="NaN or infinity in the first row of a shard, or -0.0")
def masked_shards_added(ids, weight):
    rows, half = rows_of(ids, weight), weight.shape[0] // 2
    if not half:
        return rows
    total = 0.0
    for start, shard in ((0, weight[:half]), (half, weight[half:])):
        mine = (ids.long() >= start) & (ids.long() < start + len(shard))
        total = total + F.embedding((ids.long() - start) * mine, shard).double() * mine.unsqueeze(-1)
    return total.to(weight.dtype)


@wrong_rows("EMB-1", fault="scaled", shows="H > 1")
def scaled_by_the_root_of_the_width(ids, weight):
    rows = rows_of(ids, weight)
    return (rows.double() * weight.shape[1] ** 0.5).to(weight.dtype)


@wrong_rows("EMB-1", fault="last-bits-changed")
def last_bit_set(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    elements[~bits.is_nan(elements, fmt) & ~bits.is_inf(elements, fmt)] |= 1
    return out


# Widening (EMB-2)


@torch_mutant("EMB-2", fault="nan-changed", verb="forward_fp32", dtypes=("float16",), shows="signalling NaNs")
class WidenedByACast(TorchKernel):
    def forward_fp32(self, token_ids, weight):
        if weight.dtype == torch.float16:
            return differentiable(lambda ids, weight: rows_of(ids, weight).float(), token_ids, weight)
        return super().forward_fp32(token_ids, weight)


@torch_mutant("EMB-2", fault="subnormals-flushed", verb="forward_fp32", dtypes=NARROW)
class WidenedSubnormalsFlushed(TorchKernel):
    def forward_fp32(self, token_ids, weight):
        def gather(ids, weight):
            out, elements = widened_rows(ids, weight), elements_of(rows_of(ids, weight))
            elements_of(out)[0][bits.is_subnormal(*elements)] &= 1 << 31
            return out

        return differentiable(gather, token_ids, weight)


@torch_mutant("EMB-2", fault="rounded-through-bfloat16", verb="forward_fp32", dtypes=("float32", "float16"))
class WidenedThroughBfloat16(TorchKernel):
    def forward_fp32(self, token_ids, weight):
        return differentiable(lambda ids, weight: through(widened_rows(ids, weight), torch.bfloat16), token_ids, weight)


@torch_mutant("EMB-3", fault="wrong-dtype", verb="forward_fp32", dtypes=NARROW)
class NotWidened(TorchKernel):
    def forward_fp32(self, token_ids, weight):
        widened_rows(token_ids, weight)
        return torch_gather(token_ids, weight)


# Form (EMB-3)


@wrong_rows("EMB-3", fault="wrong-dtype", dtypes=NARROW)
def upcast_by_a_float32_mask(ids, weight):
    return widened_rows(ids, weight) if weight.itemsize < 4 else rows_of(ids, weight)


@torch_mutant("EMB-3", fault="wrong-shape", shows="ids that are not of one dimension")
def flattened(token_ids, weight):
    return torch_gather(token_ids, weight).reshape(-1, weight.shape[1])


@torch_mutant("EMB-3", fault="wrong-shape", shows="an axis of one token, or H = 1")
def axes_of_one_dropped(token_ids, weight):
    return torch_gather(token_ids, weight).squeeze()


@torch_mutant("EMB-3", fault="wrong-shape", shows="ids of two dimensions")
def sequence_before_batch(token_ids, weight):
    out = torch_gather(token_ids, weight)
    return out.transpose(0, 1).contiguous() if token_ids.dim() == 2 else out


@torch_mutant("EMB-3", fault="empty-or-scalar-ids-fail", shows="an id of no dimension")
def scalar_given_an_axis(token_ids, weight):
    return torch_gather(token_ids if token_ids.dim() else token_ids.reshape(1), weight)


@torch_mutant("EMB-1", fault="empty-or-scalar-ids-fail", shows="no ids")
def no_ids_raise(token_ids, weight):
    if not token_ids.numel():
        raise RuntimeError("invalid configuration argument")
    return torch_gather(token_ids, weight)


# Shapes and memory


@wrong_rows("EMB-1", fault="columns-past-a-tile-wrong", shows="H > 16 that 16 does not divide")
def columns_past_whole_vectors_unwritten(ids, weight):
    out = rows_of(ids, weight)
    if weight.shape[1] > 16:
        elements_of(out)[0][:, weight.shape[1] // 16 * 16 :] = 0
    return out


@wrong_rows("EMB-1", fault="columns-past-a-tile-wrong", shows="H > 1024")
def columns_past_1024_unwritten(ids, weight):
    out = rows_of(ids, weight)
    elements_of(out)[0][:, 1024:] = 0
    return out


@wrong_rows("EMB-1", fault="tokens-past-a-tile-wrong", shows="more than 3072 tokens")
def tokens_past_3072_unwritten(ids, weight):
    out = rows_of(ids, weight)
    elements_of(out)[0][3072:] = 0
    return out


@wrong_rows("EMB-1", fault="tokens-past-a-tile-wrong", shows="more than 128 tokens that 128 does not divide")
def last_tile_of_tokens_unwritten(ids, weight):
    out = rows_of(ids, weight)
    if ids.numel() > 128:
        elements_of(out)[0][ids.numel() // 128 * 128 :] = 0
    return out


@wrong_rows("EMB-1", fault="packed-pairs", shows="the last row of an odd V")
def last_row_of_an_odd_table_misread(ids, weight):
    rows_of(ids, weight)
    pairs = max(weight.shape[0] // 2 * 2, 1)
    return rows_of(ids.long().clamp(max=pairs - 1) if ids.numel() else ids, weight)


@wrong_rows("EMB-1", fault="packed-pairs", dtypes=NARROW, shows="odd ids")
def odd_rows_of_a_pair_misread(ids, weight):
    rows_of(ids, weight)
    return rows_of(ids.long() & ~1 if weight.itemsize < 4 else ids, weight)


@wrong_rows("EMB-1", fault="columns-moved", shows="H > 1")
def columns_rolled_by_one(ids, weight):
    return ints(rows_of(ids, weight)).roll(1, -1).view(weight.dtype)


@wrong_rows("EMB-7", fault="table-strides-ignored", shows="a table that is not dense")
def strides_of_the_table_ignored(ids, weight):
    return rows_of(ids, weight.as_strided(weight.shape, (weight.shape[1], 1)))


@wrong_rows("EMB-7", fault="table-strides-ignored", shows="a transposed table")
def column_stride_of_the_table_ignored(ids, weight):
    if weight.stride(0) >= weight.shape[1] * max(weight.stride(1), 1):
        return rows_of(ids, weight)
    return rows_of(ids, weight.as_strided(weight.shape, (weight.shape[1], 1)))


@wrong_rows("EMB-7", fault="ids-strides-ignored", shows="ids that are not dense")
def strides_of_the_ids_ignored(ids, weight):
    steps = [int(np.prod(ids.shape[axis + 1 :])) for axis in range(ids.dim())]
    dense = ids.as_strided(ids.shape, steps)
    return rows_of(ids if outside(dense, weight).any() else dense, weight)


@wrong_rows("EMB-7", fault="storage-offset-ignored", shows="a table that begins inside its storage")
def offset_of_the_table_ignored(ids, weight):
    return rows_of(ids, weight.as_strided(weight.shape, weight.stride(), 0))


@wrong_rows("EMB-7", fault="storage-offset-ignored", shows="ids that begin inside their storage")
def offset_of_the_ids_ignored(ids, weight):
    first = ids.as_strided(ids.shape, ids.stride(), 0)
    return rows_of(ids if outside(first, weight).any() else first, weight)


@wrong_rows("EMB-7", fault="storage-offset-ignored", shows="a table that does not begin at 16 bytes")
def misaligned_table_misread(ids, weight):
    out = rows_of(ids, weight)
    return flipped(out) if weight.data_ptr() % 16 else out


# Invariance (EMB-7) and repeats (EMB-6)


@wrong_rows("EMB-7", fault="other-path-by-batch-size", shows="one token alone")
def one_token_alone_has_other_bits(ids, weight):
    out = rows_of(ids, weight)
    return flipped(out) if ids.numel() == 1 else out


@wrong_rows("EMB-7", fault="other-path-by-batch-size", shows="more than 768 tokens")
def more_than_768_tokens_have_other_bits(ids, weight):
    out = rows_of(ids, weight)
    return flipped(out, np.s_[:, :1]) if ids.numel() > 768 else out


@wrong_rows("EMB-7", fault="other-path-by-batch-size", shows="more than 3072 tokens")
def more_than_3072_tokens_have_other_bits(ids, weight):
    out = rows_of(ids, weight)
    return flipped(out, np.s_[:, -1:]) if ids.numel() > 3072 else out


@wrong_rows("EMB-7", fault="other-path-by-batch-size", shows="a chunk of an odd number of tokens from 3 to 99")
def odd_chunks_have_other_bits(ids, weight):
    out = rows_of(ids, weight)
    return flipped(out) if ids.numel() % 2 and 1 < ids.numel() < 100 else out


@wrong_rows("EMB-7", fault="other-path-by-batch-size", shows="ids of shape [B, 1]")
def decoding_has_other_bits(ids, weight):
    out = rows_of(ids, weight)
    return flipped(out) if ids.dim() == 2 and ids.shape[1] == 1 and ids.shape[0] > 1 else out


@wrong_rows("EMB-7", fault="position-dependent", shows="more than 63 tokens")
def every_64th_position_wrong(ids, weight):
    return flipped(rows_of(ids, weight), np.s_[63::64])


@wrong_rows("EMB-7", fault="position-dependent", shows="sequences that begin with one id all")
def padding_on_the_left_stripped(ids, weight):
    padded = (
        ids.dim() == 2 and ids.shape[0] > 1 and ids.shape[1] > 1 and bool((ids[:, 0].long() == ids[0, 0].long()).all())
    )
    rows_of(ids, weight)
    return rows_of(ids.long().roll(-1, 1) if padded else ids, weight)


@wrong_rows("EMB-7", fault="neighbour-dependent", shows="an id twice in a batch")
def second_of_two_equal_ids_unwritten(ids, weight):
    out = rows_of(ids, weight)
    flat = ids.reshape(-1).long().numpy()
    again = np.ones(flat.size, bool)
    again[np.unique(flat, return_index=True)[1]] = False
    elements_of(out)[0][again] = 0
    return out


@wrong_rows("EMB-7", fault="neighbour-dependent", shows="NaN or infinity beside a token")
def nan_of_a_neighbour_spreads(ids, weight):
    out = rows_of(ids, weight)
    elements, fmt = elements_of(out)
    special = bits.is_nan(elements, fmt) | bits.is_inf(elements, fmt)
    elements[:, special.any(0)] = np.where(special, elements, fmt.nan).astype(fmt.uint)[:, special.any(0)]
    return out


@wrong_rows("EMB-7", fault="neighbour-dependent", shows="a larger id just before")
def wrong_after_a_larger_id(ids, weight):
    flat = ids.reshape(-1).long()
    return flipped(rows_of(ids, weight), np.r_[False, (flat[1:] < flat[:-1]).numpy()][: flat.numel()])


@torch_mutant("EMB-6", "EMB-1", fault="run-to-run")
def one_bit_flips_at_random(token_ids, weight):
    def gather(ids, weight):
        out, draw = rows_of(ids, weight), np.random.default_rng()
        if out.numel():
            elements_of(out)[0].reshape(-1)[draw.integers(out.numel())] ^= 1
        return out

    return differentiable(gather, token_ids, weight)


class Counting(TorchKernel):
    calls = 0

    def forward(self, token_ids, weight):
        self.calls += 1
        out = torch_gather(token_ids, weight)
        return flipped(out) if self.wrong() else out


@torch_mutant("EMB-6", fault="call-count-dependent", shows="the second call")
class SecondCallHasOtherBits(Counting):
    def wrong(self):
        return self.calls == 2


@torch_mutant("EMB-6", fault="call-count-dependent", shows="every seventh call")
class EverySeventhCallHasOtherBits(Counting):
    def wrong(self):
        return self.calls % 7 == 0


@torch_mutant("EMB-6", fault="call-count-dependent", shows="more than 50 calls")
class WarmedUpCallsHaveOtherBits(Counting):
    def wrong(self):
        return self.calls > 50


class Caching(TorchKernel):
    """Rows are kept by a key that says too little."""

    def __init__(self):
        self.kept = {}

    def forward(self, token_ids, weight):
        out = torch_gather(token_ids, weight)
        return self.kept.setdefault(self.key(token_ids, weight), out.detach()).clone()


@torch_mutant("EMB-7", fault="stale-cache", shows="a table that was changed in place")
class CachedByTheTablesAddress(Caching):
    def key(self, token_ids, weight):
        return (
            weight.data_ptr(),
            weight.shape,
            weight.stride(),
            weight.dtype,
            token_ids.shape,
            *token_ids.flatten().tolist(),
        )


@torch_mutant("EMB-7", fault="stale-cache", shows="two tables of one shape")
class CachedByTheTablesShape(Caching):
    def key(self, token_ids, weight):
        return weight.shape, weight.dtype, token_ids.shape, *token_ids.flatten().tolist()


@torch_mutant("EMB-7", fault="stale-cache", shows="a table that was changed, or given back")
class CachedByTheTablesIdentity(Caching):
    def key(self, token_ids, weight):
        return id(weight), weight.shape, weight.dtype, token_ids.shape, *token_ids.flatten().tolist()


@torch_mutant("EMB-7", fault="stale-cache", shows="ids that were changed in place")
class CachedByTheIdsAddress(Caching):
    def key(self, token_ids, weight):
        return (
            token_ids.data_ptr(),
            token_ids.shape,
            token_ids.stride(),
            id(weight),
            weight._version,
            weight.shape,
            weight.dtype,
        )


@torch_mutant("EMB-5", fault="output-buffer-reused", shows="two calls of one shape")
class BufferHandedOutAgain(TorchKernel):
    def __init__(self):
        self.buffers = {}

    def forward(self, token_ids, weight):
        rows = torch_gather(token_ids, weight).detach()
        return self.buffers.setdefault((rows.shape, rows.dtype), torch.empty_like(rows)).copy_(rows)


@torch_mutant("EMB-7", fault="gradient-mode-dependent", shows="a table that wants a gradient")
def other_bits_where_a_gradient_is_wanted(token_ids, weight):
    out = torch_gather(token_ids, weight)
    return flipped(out) if weight.requires_grad else out


@torch_mutant("EMB-7", fault="gradient-mode-dependent", shows="a table that is a parameter")
def other_bits_of_a_parameter(token_ids, weight):
    out = torch_gather(token_ids, weight)
    return flipped(out) if isinstance(weight, torch.nn.Parameter) else out


@torch_mutant("EMB-7", fault="setting-dependent", shows="a thread that is not the main one")
def other_bits_in_another_thread(token_ids, weight):
    out = torch_gather(token_ids, weight)
    return out if threading.current_thread() is threading.main_thread() else flipped(out)


@torch_mutant("EMB-7", fault="setting-dependent", shows="deterministic algorithms")
def other_bits_in_deterministic_mode(token_ids, weight):
    out = torch_gather(token_ids, weight)
    return flipped(out) if torch.are_deterministic_algorithms_enabled() else out


@torch_mutant("EMB-7", fault="setting-dependent", shows="a default dtype of 16 bits")
def rows_by_the_default_dtype(token_ids, weight):
    out = torch_gather(token_ids, weight)
    return out if torch.get_default_dtype() == torch.float32 else flipped(out)


# Purity (EMB-5)


@torch_mutant("EMB-5", fault="ids-rewritten")
class IdsSortedInPlace(TorchKernel):
    def forward(self, token_ids, weight):
        out = torch_gather(token_ids, weight)
        if token_ids.dim():
            token_ids.copy_(token_ids.long().sort(-1).values)
        return out


@torch_mutant("EMB-5", fault="ids-rewritten", shows="id V - 1")
class LastIdMaskedInPlace(TorchKernel):
    def forward(self, token_ids, weight):
        out = torch_gather(token_ids, weight)
        token_ids.copy_(token_ids.long().masked_fill(token_ids.long() == weight.shape[0] - 1, 0))
        return out


@torch_mutant("EMB-5", fault="table-rewritten")
def padding_row_of_the_table_zeroed(token_ids, weight):
    out = torch_gather(token_ids, weight)
    ints(weight)[:1] = 0
    return out


@torch_mutant("EMB-5", fault="table-rewritten", dtypes=PAYLOADS, shows="a NaN in a row that was looked up")
def rows_renormalised_in_the_table(token_ids, weight):
    out = torch_gather(token_ids, weight)
    if token_ids.numel():
        rows = token_ids.unique().long() if token_ids.dtype == torch.int64 else token_ids.long().unique()
        quiet = elements_of(rows_of(rows, weight).clone())
        quiet[0][bits.is_nan(*quiet)] = quiet[1].nan
        ints(weight)[rows] = torch.from_numpy(quiet[0].view(ints(weight).numpy().dtype))
    return out


@torch_mutant("EMB-5", fault="output-aliases-input", shows="ids that count up by one")
def view_for_ids_that_count_up(token_ids, weight):
    out = torch_gather(token_ids, weight)
    flat = token_ids.long()
    first = int(flat.reshape(-1)[0]) if flat.dim() == 1 and flat.numel() else 0
    counts = flat.dim() == 1 and flat.numel() > 0 and torch.equal(flat, torch.arange(first, first + flat.numel()))
    return weight[first : first + flat.numel()] if counts else out


@torch_mutant("EMB-5", fault="output-aliases-input", shows="an id of no dimension")
def view_for_a_scalar(token_ids, weight):
    out = torch_gather(token_ids, weight)
    return out if token_ids.dim() else weight[int(token_ids)]


# Memory (EMB-12)


@wrong_rows("EMB-12", fault="whole-table-copied")
def whole_table_made_dense_first(ids, weight):
    return rows_of(ids, weight.clone(memory_format=torch.contiguous_format))


@wrong_rows("EMB-12", fault="whole-table-copied", shows="memory that NumPy takes, not torch")
def whole_table_copied_by_numpy(ids, weight):
    return rows_of(ids, torch.from_numpy(ints(weight.detach()).numpy().copy()).view(weight.dtype))


@torch_mutant("EMB-12", fault="whole-table-copied", verb="forward_fp32", dtypes=("bfloat16",))
class WholeTableWidenedFirst(TorchKernel):
    def forward_fp32(self, token_ids, weight):
        if weight.dtype != torch.bfloat16:
            return super().forward_fp32(token_ids, weight)
        return differentiable(_widened_first, token_ids, weight)


def _widened_first(ids, weight):
    return rows_of(ids, (ints(weight).int() << 16).view(torch.float32))


@torch_mutant("EMB-12", fault="whole-table-copied")
class TableKept(TorchKernel):
    """A copy of the last table is made whenever it is another one: right bits, and twice the memory."""

    key = None

    def forward(self, token_ids, weight):
        if self.key != (id(weight), weight._version):
            self.key, self.copy = (id(weight), weight._version), weight.detach().clone()
        return torch_gather(token_ids, weight)
