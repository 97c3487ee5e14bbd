"""A gradient that grows: exact across micro-batches, ranks and saves, rounded once when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from xref import errors
from xref.torch_ops import _arguments
from xref.torch_ops._widen import integer_dtype
from xref.torch_ops.exact_sums.bins import segment_sums
from xref.torch_ops.exact_sums.digit_table import PLACES, DigitTable
from xref.torch_ops.exact_sums.segments import blocks, by_row, flat_bits, sorted_ids

__all__ = ["GradAccumulator"]

_VERSION = 1
# A digit that is loaded is at most this: what 2**30 ranks add up to.
_LARGEST_LOADED = 2**62
# However the caller runs, what is held, returned and saved are plain tensors: those made in inference mode could not be
# changed outside it.
_plain = torch.inference_mode(mode=False)


class GradAccumulator:
    """The exact gradient of a `[V, H]` table over any number of calls, rounded once when it is asked for.

    The bits of `result` are those of one `grad_weight` on all the tokens, in whatever order and pieces they came.
    Cotangents may be of different dtypes from call to call.

    What it holds is integers, for the rows that a token named. An element is a fixed-point number of K digits of 32
    bits: `digits[k, r, h]` weighs `2**(32 * (lowest + k))`, and K covers the exponents that occurred (3 or 4 on
    ordinary data, so about 8 * K bytes an element). Once a special occurred, `specials[0, r, h]` is 1 where a NaN or
    +inf came, and `specials[1, r, h]` where a NaN or -inf came. To merge is to line up rows and places and to add the
    integers: what an all-reduce with SUM over int64 does, without overflow for up to 2**30 ranks; `load_state_dict`
    takes such sums and carries them. The same tokens give the same integers in any order and any split.

    Not promised: more than 2**60 tokens in all.
    """

    @_plain
    def __init__(
        self,
        vocab_size: int,
        hidden: int,
        *,
        padding_idx: int | None = None,
        validate: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """Start from zero.

        Args:
            vocab_size: V, the rows of the table; less than 2**63.
            hidden: H, the elements of a row.
            padding_idx: a row whose tokens do not count; it stays +0.
            validate: check that every id is in `[0, V)`, as in `grad_weight`.
            device: where the sums are, and where ids and cotangents have to be.

        Raises:
            TypeError: a size is not an integer.
            ValueError: a size is negative or too large, or `padding_idx` is outside `[0, V)`.
        """
        call = "GradAccumulator"
        self.vocab_size = errors.checked_size(vocab_size, "vocab_size", call, limit=_arguments.LARGEST_SIZE)
        self.hidden = errors.checked_size(hidden, "hidden", call, limit=_arguments.LARGEST_SIZE)
        self.padding_idx = errors.checked_padding_idx(padding_idx, self.vocab_size, call)
        self.validate = validate
        self._sums = DigitTable(self.hidden, device)

    @_plain
    def add(self, token_ids: torch.Tensor, cotangent: torch.Tensor) -> None:
        """Add the cotangents of one micro-batch, `S + (H,)` for ids of any shape `S`: exact, no element is rounded.

        Raises:
            IndexError, TypeError, ValueError: as `grad_weight`, and `TypeError` under `torch.func`, whose tensors have
                no values of their own; nothing has been added then.
        """
        call = "GradAccumulator.add"
        _arguments.check_token_ids(token_ids, call)
        source = _arguments.check_cotangent(cotangent, token_ids, call, hidden=self.hidden)
        device = self._sums.rows.device
        if cotangent.device != device:
            raise errors.bad_value("cotangent", f"device {cotangent.device}", f"the sums', {device}", call)
        _arguments.check_storage(token_ids, "token_ids", call)
        _arguments.check_storage(cotangent, "cotangent", call)
        segments = by_row(sorted_ids(token_ids, self.vocab_size), self.vocab_size, self.padding_idx)
        if self.validate and segments.out_of_range:
            _arguments.check_range(token_ids, self.vocab_size, call)
        bits = flat_bits(cotangent)
        slots = self._sums.slots(segments.rows)
        for block in blocks(segments, self.hidden):
            elements = bits[:, block.columns].index_select(0, segments.positions[block.tokens])
            sums = segment_sums(elements, segments.within(block), block.size, block.longest, source)
            self._sums.add_sums(sums, slots[block.segments], block.columns)
        self._sums.added(1)

    @_plain
    def merge(self, other: GradAccumulator) -> None:
        """Add what another accumulator holds, which stays as it is and may be on another device.

        Raises:
            TypeError: `other` is no GradAccumulator.
            ValueError: `other` has another vocab_size, hidden or padding_idx, or is this accumulator itself.
        """
        call = "GradAccumulator.merge"
        if not isinstance(other, GradAccumulator):
            got = f"{type(other).__name__} of {type(other).__module__}"
            raise errors.bad_type("other", got, f"GradAccumulator of {__name__}", call)
        if other is self:
            raise errors.bad_value("other", "the accumulator itself", "another one", call)
        self._check_same(other._header(), "other", call)
        sums = other._sums
        self._sums.add_digits(sums.rows, sums.lowest, sums.digits, sums.specials, additions=sums.uncarried)

    @_plain
    def result(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the gradient, `[V, H]`: every element the exact sum, rounded once to `dtype`, any of the contract.

        Raises:
            TypeError: a dtype outside the contract.
        """
        target = _arguments.check_dtype(dtype, "GradAccumulator.result")
        row_ids = self._sums.rows
        out = row_ids.new_zeros((self.vocab_size, self.hidden), dtype=integer_dtype(target))
        for slots, codes in self._sums.rounded(target):
            out.index_copy_(0, row_ids[slots], codes)
        return out.view(dtype)

    @_plain
    def result_rows(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of `result` that a token named, without a `[V, H]` buffer.

        Returns:
            `(row_ids, rows)`: int64 `[R]`, ascending, each id once; and `[R, H]` of `dtype`.

        Raises:
            TypeError: a dtype outside the contract.
        """
        target = _arguments.check_dtype(dtype, "GradAccumulator.result_rows")
        row_ids = self._sums.rows
        out = row_ids.new_empty((row_ids.numel(), self.hidden), dtype=integer_dtype(target))
        for slots, codes in self._sums.rounded(target):
            out[slots] = codes
        return row_ids.clone(), out.view(dtype)

    @_plain
    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain integers and int64 tensors of their own, for `torch.save` or another rank.

        Keys: `version`, `vocab_size`, `hidden`, `padding_idx`, `lowest`, `row_ids` `[R]`, `digits` `[K, R, H]` and
        `specials` `[2, R, H]` or None. The class says what the integers mean.
        """
        sums = self._sums
        sums.carry()
        return {
            **self._header(),
            "lowest": sums.lowest,
            "row_ids": sums.rows.clone(),
            "digits": sums.digits.clone(),
            "specials": None if sums.specials is None else sums.specials.clone(),
        }

    @_plain
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a `state_dict`, whose tensors are copied; digits summed over ranks will do.

        Raises:
            TypeError: `state` is no mapping.
            ValueError: another version, vocab_size, hidden or padding_idx, tensors that do not fit, a row of
                `padding_idx`, a digit over 2**62 in magnitude, or a negative special; the sums stay as they were.
        """
        call = "GradAccumulator.load_state_dict"
        if not isinstance(state, Mapping):
            raise errors.bad_type("state", type(state).__name__, "what state_dict returns", call)
        self._check_same(state, "state", call)
        row_ids = _checked(state, "row_ids", ("R",), call)
        shape = (row_ids.numel(), self.hidden)
        digits = _checked(state, "digits", ("K", *shape), call)
        specials = None if state.get("specials") is None else _checked(state, "specials", (2, *shape), call)
        lowest = state.get("lowest")
        places = range(lowest, lowest + digits.shape[0]) if type(lowest) is int else range(0)
        if not places or places[0] not in PLACES or places[-1] not in PLACES:
            got = f"lowest {lowest!r} with {digits.shape[0]} digits"
            raise errors.bad_value("state", got, f"digits from {PLACES[0]} to {PLACES[-1]}", call)
        in_range = (row_ids >= 0) & (row_ids < self.vocab_size)
        if not bool(in_range.all() and (row_ids[1:] > row_ids[:-1]).all()):
            raise errors.bad_value("state", "row_ids in disorder", f"ascending ids in [0, V={self.vocab_size})", call)
        if self.padding_idx is not None and bool((row_ids == self.padding_idx).any()):
            raise errors.bad_value("state", f"row_ids with {self.padding_idx}", "no row of padding_idx", call)
        _check_range(digits, "digits", -_LARGEST_LOADED, _LARGEST_LOADED, call)
        if specials is not None:
            _check_range(specials, "specials", 0, _LARGEST_LOADED, call)
        sums = DigitTable(self.hidden, self._sums.rows.device)
        sums.add_digits(row_ids, places[0], digits, specials, additions=0)
        sums.carry()
        self._sums = sums

    def _header(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "vocab_size": self.vocab_size,
            "hidden": self.hidden,
            "padding_idx": self.padding_idx,
        }

    def _check_same(self, header: Mapping[str, Any], where: str, call: str) -> None:
        for key, expected in self._header().items():
            got = header.get(key, "none")
            if type(got) is not type(expected) or got != expected:
                raise errors.bad_value(where, f"{key} {got}", f"{key} {expected}", call)


def _checked(state: Mapping[str, Any], key: str, shape: tuple[int | str, ...], call: str) -> torch.Tensor:
    """Return the int64 tensor of that name and shape, where a letter stands for any size; else raise `ValueError`."""
    tensor = state.get(key)
    if not isinstance(tensor, torch.Tensor):
        raise errors.bad_value("state", f"{key} of type {type(tensor).__name__}", "an int64 tensor", call)
    if tensor.layout != torch.strided or tensor.is_meta:
        got = f"{key} of layout {tensor.layout}, device {tensor.device}"
        raise errors.bad_value("state", got, "a dense tensor with values", call)
    fits = tensor.dim() == len(shape) and all(
        isinstance(e, str) or e == s for e, s in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype != torch.int64 or not fits:
        got = f"{key} {_arguments.dtype_name(tensor.dtype)} {tuple(tensor.shape)}"
        raise errors.bad_value("state", got, f"int64 ({', '.join(map(str, shape))})", call)
    return tensor


def _check_range(tensor: torch.Tensor, key: str, least: int, most: int, call: str) -> None:
    """Raise `ValueError` unless the integers of a state are in `[least, most]`."""
    wrong = tensor[(tensor < least) | (tensor > most)]
    if wrong.numel():
        raise errors.bad_value("state", f"{key} with {int(wrong[0])}", f"{least} to {most}", call)
