"""The exact gradient of the token embedding: a row's cotangents summed exactly, then rounded once (EMB-8 to EMB-12).

Why it exists: a framework's own gradient is no truth to compare with. It sums in the table's dtype, so that a
bfloat16 row stops growing at 256, and its bits depend on the order of the tokens, on the number of threads, and on
some devices on the run. An exact sum depends on none of these: order, split, padding by zeros, device and thread
count cannot change it, and neither can torch's deterministic, default-dtype or flush-denormal settings.

How: the tokens are grouped by row (`segments`), the groups summed block by block in float64 bins whose additions are
proven exact (`bins`), and each sum rounded once (`rounding`). Sums that take more than two bins, and those of an
accumulator, are integers in between (`fixed_point`). On a GPU a dense gradient that is small enough, and of the
cotangent's dtype, first has every token's elements copied to its row, and then sums where that was not all.

`grad_weight` is one operator to autograd and to `torch.func`, `vmap` included.

Not promised: second derivatives, which raise; more than 2**36 tokens in one call, which raise too; and, on a GPU, that
nothing waits: the ids, the elements' exponents and the number of tokens that share rows are read back.
"""

from __future__ import annotations

from typing import Any

import torch

from xref import errors
from xref.bits import FloatFormat
from xref.torch_ops import _arguments
from xref.torch_ops._host import fetched, join_side_stream, side_stream
from xref.torch_ops._widen import integer_dtype
from xref.torch_ops.exact_sums import fixed_point
from xref.torch_ops.exact_sums.bins import measured, segment_sums, widened
from xref.torch_ops.exact_sums.rounding import copied, encode
from xref.torch_ops.exact_sums.segments import (
    Segments,
    blocks,
    by_row,
    counting_pays,
    flat_bits,
    of_rows,
    shared_rows,
    sorted_ids,
)

__all__ = ["grad_rows", "grad_weight"]


def grad_weight(
    token_ids: torch.Tensor,
    cotangent: torch.Tensor,
    vocab_size: int,
    *,
    dtype: torch.dtype | None = None,
    padding_idx: int | None = None,
    validate: bool = True,
) -> torch.Tensor:
    """Return the gradient of the table: row v is the exact sum of its tokens' cotangents, each element rounded once.

    The temporaries grow with the tokens times H; the result is the only tensor of the size of the table.

    Args:
        token_ids: any shape `S`, 0-dimensional and empty included; any integer dtype. At most 2**36 of them.
        cotangent: `S + (H,)`, any strides, on the ids' device; any dtype of the contract.
        vocab_size: V, the rows of the table; less than 2**63.
        dtype: of the result, any of the contract; the cotangent's if None.
        padding_idx: a row whose tokens do not count; it stays +0.
        validate: raise for ids outside `[0, V)`. Without it they add nothing.

    Returns:
        `[V, H]`, contiguous, on the cotangent's device. Rows that no token names are +0, and so is an exact zero sum.
        A NaN, or infinities of both signs, give the canonical quiet NaN, infinities of one sign that infinity, and a
        sum that is too large what round-to-nearest gives: an infinity. float8_e4m3fn has its NaN for all of these.

    Raises:
        IndexError: an id is out of range; the message names how many, the first one's position and value, and V.
        TypeError: the ids are not integers, or a dtype is not of the contract.
        ValueError: the shapes do not fit, `padding_idx` is outside `[0, V)`, V is negative or too large, the devices
            differ, or there are too many tokens.
        UsageError: in the backward pass of the result: the gradient is not differentiable.
    """
    call = "grad_weight"
    vocab_size = errors.checked_size(vocab_size, "vocab_size", call, limit=_arguments.LARGEST_SIZE)
    source, target = _check(token_ids, cotangent, dtype, call)
    padding_idx = errors.checked_padding_idx(padding_idx, vocab_size, call)
    return _GradWeight.apply(  # type: ignore[no-untyped-call]
        token_ids, cotangent, vocab_size, source, target, padding_idx, call if validate else None
    )


def grad_rows(
    token_ids: torch.Tensor,
    cotangent: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    vocab_size: int | None = None,
    padding_idx: int | None = None,
    validate: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of `grad_weight` that a token names, without a `[V, H]` buffer.

    Args:
        token_ids: as in `grad_weight`.
        cotangent: as in `grad_weight`.
        dtype: as in `grad_weight`.
        vocab_size: V; None takes every id from 0 to 2**63 - 2.
        padding_idx: as in `grad_weight`; the row is not among those returned.
        validate: as in `grad_weight`.

    Returns:
        `(row_ids, rows)`: int64 `[R]`, ascending, each id once; and `[R, H]`, the bits of those rows of `grad_weight`.

    Raises:
        IndexError, TypeError, ValueError, UsageError: as `grad_weight`, and `UsageError` under `vmap`, whose entries
            would have different numbers of rows.
    """
    call = "grad_rows"
    limit = _arguments.LARGEST_SIZE
    size = limit if vocab_size is None else errors.checked_size(vocab_size, "vocab_size", call, limit=limit)
    source, target = _check(token_ids, cotangent, dtype, call)
    padding_idx = errors.checked_padding_idx(padding_idx, size, call)
    return _GradRows.apply(  # type: ignore[no-untyped-call]
        token_ids, cotangent, size, source, target, padding_idx, call if validate else None
    )


class _GradRows(torch.autograd.Function):
    """The named rows as one operator; `call` as in `_GradWeight`."""

    @staticmethod
    def forward(
        token_ids: torch.Tensor,
        cotangent: torch.Tensor,
        vocab_size: int,
        source: FloatFormat,
        target: FloatFormat,
        padding_idx: int | None,
        call: str | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        segments = by_row(sorted_ids(token_ids, vocab_size), vocab_size, padding_idx)
        if call is not None and segments.out_of_range:
            _arguments.check_range(token_ids, vocab_size, call)
        row_ids = segments.rows.sort().values
        out = cotangent.new_empty((row_ids.numel(), cotangent.shape[-1]), dtype=integer_dtype(target))
        _write(out, torch.searchsorted(row_ids, segments.rows), segments, flat_bits(cotangent), source, target)
        return row_ids, out.view(getattr(torch, target.name))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise _second_derivative("grad_rows")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        got = "entries that may name different numbers of rows"
        raise errors.UsageError(errors.message("vmap", got, "grad_weight to be used there", "grad_rows"))


class _GradWeight(torch.autograd.Function):
    """The dense gradient as one operator: transforms of `torch.func` hand its `forward` plain tensors.

    `call` names the public function in the range check's message, and None leaves the check out.
    """

    @staticmethod
    def forward(
        token_ids: torch.Tensor,
        cotangent: torch.Tensor,
        vocab_size: int,
        source: FloatFormat,
        target: FloatFormat,
        padding_idx: int | None,
        call: str | None,
    ) -> torch.Tensor:
        bits, ids = flat_bits(cotangent), token_ids.reshape(-1).to(torch.int64)
        counted = source == target and counting_pays(bits, vocab_size)
        ordered = None if counted else sorted_ids(ids, vocab_size)
        planning = side_stream(bits.device) if counted else None
        # A GPU looks at all elements and writes the zeros while the host plans. The host waits for that look, but not
        # for the zeros, nor after that for anything but specials and elements near the ends of float64's range.
        extent = measured(bits, source) if bits.is_cuda and bits.numel() else None
        out = bits.new_zeros((vocab_size, bits.shape[1]), dtype=integer_dtype(target))
        shared = None
        if planning is not None:
            with planning():
                in_range = _arguments.in_range(fetched(ids)(), vocab_size)
                shared = shared_rows(ids, vocab_size, padding_idx) if in_range else None
        if shared is None:
            segments = by_row(ordered or sorted_ids(ids, vocab_size), vocab_size, padding_idx)
            if call is not None and segments.out_of_range:
                _arguments.check_range(token_ids, vocab_size, call)
            within = extent and extent()
        else:
            within = extent and extent()
            join_side_stream(bits.device, *shared)
            # What most rows need is a copy, at which a GPU is while the host launches the many operations of sums.
            _copy(out, ids, bits, source, padding_idx, has_nan=_has_nan(within, source))
            segments = of_rows(*shared, ids)
        _write(out, segments.rows, segments, bits, source, target, within=within)
        return out.view(getattr(torch, target.name))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise _second_derivative("grad_weight")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[torch.Tensor, int]:
        ids, cotangents = (
            arg.expand(info.batch_size, *arg.shape) if dim is None else arg.movedim(dim, 0)
            for arg, dim in zip(args[:2], in_dims[:2], strict=True)
        )
        vocab_size, target = args[2], args[4]
        out = cotangents.new_empty(
            (info.batch_size, vocab_size, cotangents.shape[-1]), dtype=getattr(torch, target.name)
        )
        for entry, pair in zip(out, zip(ids, cotangents, strict=True), strict=True):
            entry.copy_(_GradWeight.apply(*pair, *args[2:]))  # type: ignore[no-untyped-call]
        return out, 0


def _second_derivative(call: str) -> errors.UsageError:
    return errors.UsageError(errors.message("derivative", "a second one", "the gradient to be the last", call))


def _check(
    token_ids: torch.Tensor, cotangent: torch.Tensor, dtype: torch.dtype | None, call: str
) -> tuple[FloatFormat, FloatFormat]:
    """Return the formats of the cotangent and of the result."""
    _arguments.check_token_ids(token_ids, call)
    source = _arguments.check_cotangent(cotangent, token_ids, call)
    return source, source if dtype is None else _arguments.check_dtype(dtype, call)


def _write(
    out: torch.Tensor,
    slots: torch.Tensor,
    segments: Segments,
    bits: torch.Tensor,
    source: FloatFormat,
    target: FloatFormat,
    *,
    within: tuple[int, int] | None = None,
) -> None:
    """Write the rounded sum of every segment into row `slots[segment]` of `out`, `[*, H]` in the target's integers.

    `within` is what `measured` finds of all the elements, whose `bits` are `[T, H]`; None if that is not known.
    """
    has_nan = _has_nan(within, source)
    for block in blocks(segments, bits.shape[1], copy_bytes=bits.element_size() if source == target else None):
        elements = bits[:, block.columns].index_select(0, segments.positions[block.tokens])
        if block.longest > 1:
            segment_of = segments.within(block)
            sums = segment_sums(elements, segment_of, block.size, block.longest, source, within=within)
            codes = fixed_point.rounded_sums(sums, target)
        elif source == target:
            codes = copied(elements, source, has_nan=has_nan)
        else:
            codes = encode(widened(elements, source, subnormals=True), target)
        out[:, block.columns].index_copy_(0, slots[block.segments], codes)


def _copy(
    out: torch.Tensor,
    ids: torch.Tensor,
    bits: torch.Tensor,
    fmt: FloatFormat,
    padding_idx: int | None,
    *,
    has_nan: bool,
) -> None:
    """Write the gradient of all rows that one token names; rows that several name get that of any one of them.

    `ids` is `[T]` int64, all in range, and `bits` the `[T, H]` elements; the row of `padding_idx` stays +0.
    """
    out.index_copy_(0, ids, copied(bits.clone(), fmt, has_nan=has_nan))
    if padding_idx is not None:
        out[padding_idx] = 0


def _has_nan(within: tuple[int, int] | None, fmt: FloatFormat) -> bool:
    """Return whether there may be a NaN among elements of which `measured` finds this; None if that is not known."""
    return within is None or within[1] > fmt.largest_finite
