"""Sums of rows that grow, in rows and in range: integers, carried before int64 could be too small for them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xref.bits import FloatFormat
from xref.torch_ops.exact_sums import fixed_point
from xref.torch_ops.exact_sums.bins import Sums
from xref.torch_ops.exact_sums.rounding import overlaid
from xref.torch_ops.exact_sums.segments import block_size

__all__ = ["PLACES", "DigitTable"]

# Digits that sums of contract formats can have: from the smallest float64 subnormal to the headroom above its largest.
PLACES = range(-34, 34)
# After this many additions the digits are carried, so that int64 holds them: one addition changes a digit by less than
# 2**40 (2**36 tokens make at most 2**7 bins a block, and each changes a digit by less than 2**33).
_MOST_UNCARRIED = 2**20
# From here on a top digit is given room above: float64 would soon round it.
_FULL = 2**52


class DigitTable:
    """Fixed-point sums of some rows: `digits`, `[K, R, H]` int64, are the digits from `lowest` up (see `fixed_point`).

    `rows`, `[R]` int64, are the rows' ids, ascending; a row's place among them is its slot. `specials`, `[2, R, H]`
    int64 or None, is not 0 where a NaN or +inf was added, and where a NaN or -inf was. `uncarried` counts the additions
    since the last carry.
    """

    def __init__(self, hidden: int, device: torch.device | str) -> None:
        self.rows = torch.empty(0, dtype=torch.int64, device=device)
        self.lowest = 0
        self.digits = self.rows.new_zeros((1, 0, hidden))
        self.specials: torch.Tensor | None = None
        self.uncarried = 0

    def slots(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the slots of these row ids, any order; a new row gets one, with sums of zero."""
        united: torch.Tensor = torch.unique(torch.cat((self.rows, rows)))
        if united.numel() > self.rows.numel():
            slots = torch.searchsorted(united, self.rows)
            for name in ("digits", "specials"):
                old = getattr(self, name)
                if old is not None:
                    new = old.new_zeros((old.shape[0], united.numel(), old.shape[2]))
                    setattr(self, name, new.index_copy_(1, slots, old))
            self.rows = united
        return torch.searchsorted(self.rows, rows)

    def add_sums(self, sums: Sums, slots: torch.Tensor, columns: slice) -> None:
        """Add a block's sums to the rows at `slots`, all different. All blocks of a call are one addition: `added`."""
        if sums.special is not None:
            self._add_specials(_counted(sums.special), slots, columns)
        if sums.top is None or sums.bottom is None:
            return
        self._add_places(*fixed_point.window(sums.top, sums.bottom))
        for part in sums.bins:
            fixed_point.add_bin(self.digits[:, :, columns], self.lowest, part, slots)

    def add_digits(
        self, rows: torch.Tensor, lowest: int, digits: torch.Tensor, specials: torch.Tensor | None, *, additions: int
    ) -> None:
        """Add the digits and specials of another table, which went through so many additions since they were carried.

        They may be on another device.
        """
        device = self.rows.device
        slots = self.slots(rows.to(device))
        if specials is not None:
            self._add_specials(specials.to(device), slots, slice(None))
        self._add_places(lowest, digits.shape[0])
        self.digits[lowest - self.lowest :][: digits.shape[0]].index_add_(1, slots, digits.to(device))
        self.added(1 + additions)

    def added(self, additions: int) -> None:
        """Note additions to the digits, and carry these before int64 could be too small."""
        self.uncarried += additions
        if self.uncarried >= _MOST_UNCARRIED:
            self.carry()

    def carry(self) -> None:
        """Bring digits and specials into their range; the sums stay the same."""
        if self.uncarried:
            self._make_room()
            for rows in self._slices():
                fixed_point.carry(self.digits[:, rows])
            if self.specials is not None:
                self.specials.clamp_(max=1)
            self.uncarried = 0

    def rounded(self, target: FloatFormat) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield `(slots, codes)`: a slice of the rows and the bits of their sums rounded to `target`."""
        self.carry()
        for rows in self._slices():
            codes = fixed_point.rounded(self.digits[:, rows], self.lowest, target)
            yield rows, overlaid(codes, None if self.specials is None else _as_float(self.specials[:, rows]), target)

    def _add_places(self, lowest: int, places: int) -> None:
        """Make room for the digits `lowest` to `lowest + places - 1`."""
        old = self.digits
        first = min(self.lowest, lowest)
        stop = max(self.lowest + old.shape[0], lowest + places)
        if stop - first > old.shape[0]:
            self.digits = old.new_zeros((stop - first, *old.shape[1:]))
            self.digits[self.lowest - first :][: old.shape[0]] = old
            self.lowest = first

    def _add_specials(self, counts: torch.Tensor, slots: torch.Tensor, columns: slice) -> None:
        if self.specials is None:
            self.specials = self.digits.new_zeros((2, *self.digits.shape[1:]))
        self.specials[:, :, columns].index_add_(1, slots, counts)

    def _make_room(self) -> None:
        """Add a place above a top digit that is full, but where that is past every format's range anyway."""
        top, place = self.digits[-1], self.lowest + self.digits.shape[0]
        if place in PLACES and bool(((top >= _FULL) | (top <= -_FULL)).any()):
            self._add_places(place, 1)

    def _slices(self) -> Iterator[slice]:
        """Yield the rows, some at a time, so that temporaries stay small beside the sums."""
        itemsize = 32  # what there is of an element at a time: its digits, and what they become
        step = max(block_size(self.rows.device, itemsize) // max(self.digits.shape[2], 1), 1)
        for first in range(0, self.rows.numel(), step):
            yield slice(first, first + step)


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
