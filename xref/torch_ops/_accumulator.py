"""A gradient that grows: exact across micro-batches, ranks and saves, rounded once when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from xref import errors
from xref.bits import FloatFormat
from xref.torch_ops import _arguments, _digits
from xref.torch_ops._bins import Sums, segment_sums
from xref.torch_ops._rounding import overlaid
from xref.torch_ops._segments import block_size, blocks, by_row, flat_bits, sorted_ids
from xref.torch_ops._widen import integer_dtype

__all__ = ["GradAccumulator"]

_VERSION = 1
# After this many additions the digits are carried, so that int64 holds them: one addition changes a digit by less than
# 2**40 (2**36 tokens make at most 2**7 bins a block, and each changes a digit by less than 2**33).
_MOST_UNCARRIED = 2**20
# A digit that is loaded is at most this: what 2**30 ranks add up to.
_LARGEST_LOADED = 2**62
# From here on a top digit is given room above: float64 would soon round it.
_FULL = 2**52
# Digits that sums of contract formats can have: from the smallest float64 subnormal to the headroom above its largest.
_PLACES = range(-34, 34)


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
            vocab_size: V, the rows of the table.
            hidden: H, the elements of a row.
            padding_idx: a row whose tokens do not count; it stays +0.
            validate: check that every id is in `[0, V)`, as in `grad_weight`.
            device: where the sums are, and where ids and cotangents have to be.

        Raises:
            TypeError: a size is not an integer.
            ValueError: a size is negative, or `padding_idx` is outside `[0, V)`.
        """
        call = "GradAccumulator"
        self.vocab_size = errors.checked_size(vocab_size, "vocab_size", call)
        self.hidden = errors.checked_size(hidden, "hidden", call)
        self.padding_idx = errors.checked_padding_idx(padding_idx, self.vocab_size, call)
        self.validate = validate
        self._rows = torch.empty(0, dtype=torch.int64, device=device)
        self._clear()

    def add(self, token_ids: torch.Tensor, cotangent: torch.Tensor) -> None:
        """Add the cotangents of one micro-batch, `S + (H,)` for ids of any shape `S`: exact, no element is rounded.

        Raises:
            IndexError, TypeError, ValueError: as `grad_weight`; nothing has been added then.
        """
        call = "GradAccumulator.add"
        _arguments.check_token_ids(token_ids, call)
        source = _arguments.check_cotangent(cotangent, token_ids, call, hidden=self.hidden)
        if cotangent.device != self._rows.device:
            raise errors.bad_value("cotangent", f"device {cotangent.device}", f"the sums', {self._rows.device}", call)
        segments = by_row(sorted_ids(token_ids), self.vocab_size, self.padding_idx)
        if self.validate and segments.out_of_range:
            _arguments.check_range(token_ids, self.vocab_size, call)
        self._add_rows(segments.rows)
        slots = torch.searchsorted(self._rows, segments.rows)
        bits = flat_bits(cotangent)
        for block in blocks(segments, self.hidden):
            elements = bits[:, block.columns].index_select(0, segments.positions[block.tokens])
            sums = segment_sums(elements, segments.within(block), block.size, block.longest, source)
            self._add_sums(sums, slots[block.segments], block.columns)
        self._added(1)

    def merge(self, other: GradAccumulator) -> None:
        """Add what another accumulator holds, which stays as it is and may be on another device.

        Raises:
            TypeError: `other` is no GradAccumulator.
            ValueError: `other` has another vocab_size, hidden or padding_idx, or is this accumulator itself.
        """
        call = "GradAccumulator.merge"
        if not isinstance(other, GradAccumulator):
            raise errors.bad_type("other", type(other).__name__, "GradAccumulator", call)
        if other is self:
            raise errors.bad_value("other", "the accumulator itself", "another one", call)
        self._check_same(other._header(), "other", call)
        self._merge(other._rows, other._lowest, other._digits, other._specials)
        self._added(1 + other._uncarried)

    def result(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the gradient, `[V, H]`: every element the exact sum, rounded once to `dtype`, any of the contract.

        Raises:
            TypeError: a dtype outside the contract.
        """
        target = _arguments.check_dtype(dtype, "GradAccumulator.result")
        out = self._rows.new_zeros((self.vocab_size, self.hidden), dtype=integer_dtype(target))
        for rows, codes in self._rounded(target):
            out.index_copy_(0, self._rows[rows], codes)
        return out.view(dtype)

    def result_rows(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of `result` that a token named, without a `[V, H]` buffer.

        Returns:
            `(row_ids, rows)`: int64 `[R]`, ascending, each id once; and `[R, H]` of `dtype`.

        Raises:
            TypeError: a dtype outside the contract.
        """
        target = _arguments.check_dtype(dtype, "GradAccumulator.result_rows")
        out = self._rows.new_empty((self._rows.numel(), self.hidden), dtype=integer_dtype(target))
        for rows, codes in self._rounded(target):
            out[rows] = codes
        return self._rows.clone(), out.view(dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain integers and int64 tensors of their own, for `torch.save` or another rank.

        Keys: `version`, `vocab_size`, `hidden`, `padding_idx`, `lowest`, `row_ids` `[R]`, `digits` `[K, R, H]` and
        `specials` `[2, R, H]` or None. The class says what the integers mean.
        """
        self._carry()
        return {
            **self._header(),
            "lowest": self._lowest,
            "row_ids": self._rows.clone(),
            "digits": self._digits.clone(),
            "specials": None if self._specials is None else self._specials.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a `state_dict`, whose tensors are copied; digits summed over ranks will do.

        Raises:
            ValueError: another version, vocab_size, hidden or padding_idx, tensors that do not fit, a row of
                `padding_idx`, a digit over 2**62 in magnitude, or a negative special; the sums stay as they were.
        """
        call = "GradAccumulator.load_state_dict"
        self._check_same(state, "state", call)
        row_ids = _checked(state, "row_ids", ("R",), call)
        shape = (row_ids.numel(), self.hidden)
        digits = _checked(state, "digits", ("K", *shape), call)
        specials = None if state.get("specials") is None else _checked(state, "specials", (2, *shape), call)
        lowest = state.get("lowest")
        places = range(lowest, lowest + digits.shape[0]) if isinstance(lowest, int) else range(0)
        if not places or places[0] not in _PLACES or places[-1] not in _PLACES:
            got = f"lowest {lowest!r} with {digits.shape[0]} digits"
            raise errors.bad_value("state", got, f"digits from {_PLACES[0]} to {_PLACES[-1]}", call)
        edges = torch.cat((row_ids.new_tensor([-1]), row_ids, row_ids.new_tensor([self.vocab_size])))
        if not bool((edges.diff() > 0).all()):
            raise errors.bad_value("state", "row_ids in disorder", f"ascending ids in [0, V={self.vocab_size})", call)
        if self.padding_idx is not None and bool((row_ids == self.padding_idx).any()):
            raise errors.bad_value("state", f"row_ids with {self.padding_idx}", "no row of padding_idx", call)
        _check_range(digits, "digits", -_LARGEST_LOADED, _LARGEST_LOADED, call)
        if specials is not None:
            _check_range(specials, "specials", 0, _LARGEST_LOADED, call)
        self._clear()
        self._merge(row_ids, places[0], digits, specials)
        self._added(_MOST_UNCARRIED)

    def _clear(self) -> None:
        self._rows = self._rows.new_empty(0)
        self._lowest = 0
        self._digits = self._rows.new_zeros((1, 0, self.hidden))
        self._specials: torch.Tensor | None = None
        self._uncarried = 0

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

    def _add_rows(self, rows: torch.Tensor) -> None:
        """Make room for these row ids, any order, with sums of zero."""
        united: torch.Tensor = torch.unique(torch.cat((self._rows, rows)))
        if united.numel() == self._rows.numel():
            return
        slots = torch.searchsorted(united, self._rows)
        for name in ("_digits", "_specials"):
            old = getattr(self, name)
            if old is not None:
                new = old.new_zeros((old.shape[0], united.numel(), self.hidden))
                setattr(self, name, new.index_copy_(1, slots, old))
        self._rows = united

    def _add_places(self, lowest: int, places: int) -> None:
        """Make room for the digits `lowest` to `lowest + places - 1`."""
        old = self._digits
        first = min(self._lowest, lowest)
        stop = max(self._lowest + old.shape[0], lowest + places)
        if stop - first > old.shape[0]:
            self._digits = old.new_zeros((stop - first, *old.shape[1:]))
            self._digits[self._lowest - first :][: old.shape[0]] = old
            self._lowest = first

    def _add_sums(self, sums: Sums, slots: torch.Tensor, columns: slice) -> None:
        """Add a block's sums to the rows at `slots`, all different."""
        if sums.special is not None:
            self._add_specials(_counted(sums.special), slots, columns)
        if sums.top is None or sums.bottom is None:
            return
        self._add_places(*_digits.window(sums.top, sums.bottom))
        for part in sums.bins:
            _digits.add_bin(self._digits[:, :, columns], self._lowest, part, slots)

    def _add_specials(self, counts: torch.Tensor, slots: torch.Tensor, columns: slice) -> None:
        if self._specials is None:
            self._specials = self._digits.new_zeros((2, *self._digits.shape[1:]))
        self._specials[:, :, columns].index_add_(1, slots, counts)

    def _merge(self, rows: torch.Tensor, lowest: int, digits: torch.Tensor, specials: torch.Tensor | None) -> None:
        rows, digits = rows.to(self._rows.device), digits.to(self._rows.device)
        self._add_rows(rows)
        slots = torch.searchsorted(self._rows, rows)
        if specials is not None:
            self._add_specials(specials.to(self._rows.device), slots, slice(None))
        self._add_places(lowest, digits.shape[0])
        self._digits[lowest - self._lowest :][: digits.shape[0]].index_add_(1, slots, digits)

    def _added(self, additions: int) -> None:
        """Note additions to the digits, and carry these before int64 could be too small."""
        self._uncarried += additions
        if self._uncarried >= _MOST_UNCARRIED:
            self._carry()

    def _carry(self) -> None:
        """Bring digits and specials into their range; the sums stay the same."""
        if self._uncarried:
            self._make_room()
            for rows in self._slices():
                _digits.carry(self._digits[:, rows])
            if self._specials is not None:
                self._specials.clamp_(max=1)
            self._uncarried = 0

    def _make_room(self) -> None:
        """Add a place above a top digit that is full, but where that is past every format's range anyway."""
        top, place = self._digits[-1], self._lowest + self._digits.shape[0]
        if place in _PLACES and bool(((top >= _FULL) | (top <= -_FULL)).any()):
            self._add_places(place, 1)

    def _slices(self) -> Iterator[slice]:
        """Yield the held rows, some at a time, so that temporaries stay small beside the sums."""
        itemsize = 32  # what there is of an element at a time: its digits, and what they become
        step = max(block_size(self._rows.device, itemsize) // max(self.hidden, 1), 1)
        for first in range(0, self._rows.numel(), step):
            yield slice(first, first + step)

    def _rounded(self, target: FloatFormat) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield `(rows, codes)`: a slice of the held rows and the bits of their sums rounded to `target`."""
        self._carry()
        for rows in self._slices():
            codes = _digits.rounded(self._digits[:, rows], self._lowest, target)
            yield rows, overlaid(codes, None if self._specials is None else _as_float(self._specials[:, rows]), target)


def _checked(state: Mapping[str, Any], key: str, shape: tuple[int | str, ...], call: str) -> torch.Tensor:
    """Return the int64 tensor of that name and shape, where a letter stands for any size; else raise `ValueError`."""
    tensor = state.get(key)
    if not isinstance(tensor, torch.Tensor):
        raise errors.bad_value("state", f"{key} of type {type(tensor).__name__}", "an int64 tensor", call)
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


def _counted(special: torch.Tensor) -> torch.Tensor:
    """Return `[2, R, C]` int64: 1 where a sum of specials is a NaN or +inf, and 1 where it is a NaN or -inf."""
    is_nan = special.isnan()
    return torch.stack(((special > 0) | is_nan, (special < 0) | is_nan)).to(torch.int64)


def _as_float(counts: torch.Tensor) -> torch.Tensor:
    """Return the float64 that such counts, added up, stand for: NaN, an infinity or 0."""
    plus, minus = counts != 0
    special = torch.zeros(plus.shape, dtype=torch.float64, device=plus.device)
    special.masked_fill_(plus, torch.inf).masked_fill_(minus, -torch.inf)
    return special.masked_fill_(plus & minus, torch.nan)
