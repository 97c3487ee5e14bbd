"""What the bits of a wrong output are consistent with: names from the fault catalogue, the likeliest first.

Never "caused by". Every row of a judge's table differs from every other, so a wrong row tells where it came from, and
an element that is not its own tells what was done to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from xref import bits as bit
from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.contracts import embedding as contract
from xref.contracts.inputs import Ids
from xref.judge.probes import SLICES, Observation, Probe, ids_of, table_of

__all__ = ["Found", "explain", "ranked"]

_LOOKED_AT = 4096  # wrong tokens of one call


@dataclasses.dataclass(frozen=True)
class _Wrong:
    """A wrong output beside the right one: rows `[T, H]`, and the ids that they were asked for by."""

    probe: Probe
    ids: Ids
    table: Bits
    """Every row's exact answer, `[V, H]`."""
    got: Bits
    expected: Bits
    fmt: FloatFormat

    @property
    def differs(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        return self.got != self.expected

    @property
    def tokens(self) -> Ids:
        """The tokens that are wrong."""
        return np.flatnonzero(self.differs.any(axis=1))[:_LOOKED_AT]


Found = tuple[float, str, str]
"""How much it speaks for a fault, the fault, and what was seen."""


def explain(seen: Observation, hints: tuple[str, ...] = (), *, telling: bool = False) -> list[Found]:
    """Return what speaks for which fault, for a probe that failed; `hints`: what the way it fails speaks for.

    `telling`: the way it fails says more than its bits, as where the plain call is right.
    """
    found = list(_from_form(seen))
    if seen.probe.table == "sparse" and seen.wrong is not None:
        found.append((1.0, "row-offset-overflow", "only a table past 2**31 elements comes back wrong"))
    elif seen.got is not None and seen.wrong is not None:
        ids = ids_of(seen.probe)
        table = table_of(seen.probe, ids)
        if table.nbytes < 1 << 28:
            rows = np.arange(seen.probe.vocab) if seen.probe.vocab else np.zeros(0, np.int64)
            answers = contract.exact_answers(rows, table, seen.probe.dtype)[seen.probe.verb]
            shape = (ids.size, seen.probe.hidden)
            fmt = FORMATS[contract.result_dtype(seen.probe.verb, seen.probe.dtype)]
            wrong = _Wrong(
                seen.probe,
                ids.reshape(-1).astype(np.int64),
                answers,
                seen.got.reshape(shape),
                seen.expected.reshape(shape),
                fmt,
            )
            # Of a table of zeros alone every lost row looks like a padding's: its elements are all there is to see.
            detectors = (_from_elements,) if seen.probe.table == "zeros" else _DETECTORS
            found += [each for detector in detectors for each in detector(wrong)]
    found += [
        ((0.99 if telling else 0.55) - 0.02 * n, hint, "that is how the call fails") for n, hint in enumerate(hints)
    ]
    return ranked(found)


def ranked(found: Iterable[Found]) -> list[Found]:
    """Return each fault once, with what speaks most for it, the likeliest first."""
    best: dict[str, Found] = {}
    for each in found:
        if each[1] not in best or each > best[each[1]]:
            best[each[1]] = each
    return sorted(best.values(), key=lambda each: -each[0])


def _from_form(seen: Observation) -> Iterator[Found]:
    probe = seen.probe
    if seen.impure is not None:
        if seen.impure.startswith("weight"):
            yield 1.0, "table-rewritten", "the table has other bits after the call"
        elif seen.impure.startswith("token_ids"):
            yield 1.0, "ids-rewritten", "the ids are others after the call"
        else:
            yield 1.0, "output-aliases-input", "the output lies in memory of an input"
    if seen.misformed is not None:
        got, _, expected = seen.misformed.partition(", expected ")
        same_shape = (
            got.partition("shape ")[2].rpartition(", ")[0].rpartition(", ")[0]
            == (expected.partition("shape ")[2].rpartition(", ")[0].rpartition(", ")[0])
        )
        small = not probe.shape or 0 in probe.shape
        if small and not same_shape:
            yield 1.0, "empty-or-scalar-ids-fail", "ids of no dimension, or none, give another shape"
        yield 0.9, "wrong-dtype" if same_shape else "wrong-shape", seen.misformed
    if seen.raised is not None:
        if not probe.shape or 0 in probe.shape:
            yield 0.9, "empty-or-scalar-ids-fail", "ids of no dimension, or none, raise"
        if probe.layout != "dense":
            yield 0.8, "table-strides-ignored", f"a table that is {probe.layout} raises"
        if probe.id_layout != "dense":
            yield 0.8, "ids-strides-ignored", f"ids that are {probe.id_layout} raise"
        if probe.id_dtype not in ("int64", "int32"):
            yield 0.7, "id-dtype-misread", f"ids of {probe.id_dtype} raise"


def _held(wrong: _Wrong) -> dict[int, Ids]:
    """Return, by wrong token, the rows of the table that its output has the bits of: whole rows only."""
    places: dict[bytes, list[int]] = {}
    for row, elements in enumerate(np.ascontiguousarray(wrong.table)):
        places.setdefault(elements.tobytes(), []).append(row)
    if len(places) < 0.9 * wrong.table.shape[0]:
        return {}  # where rows are alike, one of them tells nothing
    found = {}
    for token in wrong.tokens.tolist():
        rows = places.get(np.ascontiguousarray(wrong.got[token]).tobytes())
        if rows:
            found[token] = np.array(rows)
    return found


def _from_rows(wrong: _Wrong) -> Iterator[Found]:
    """Another row of the table came back: which one?"""
    held, tokens = _held(wrong), wrong.tokens
    if len(held) < 0.8 * tokens.size or not held:
        return
    token, rows = next(iter(held.items()))
    what = f"out[{token}] holds row {rows[0]}, asked for {wrong.ids[token]}"
    right = np.setdiff1d(np.arange(wrong.ids.size), tokens)[:_LOOKED_AT].tolist()
    last = wrong.table.shape[0] - 1

    def explains(move: Callable[[int, int], int]) -> bool:
        # It must say what came back for every wrong token, and leave the right ones where they are.
        return all(move(t, int(wrong.ids[t])) in r for t, r in held.items()) and all(
            move(t, int(wrong.ids[t])) in (wrong.ids[t], -1) for t in right
        )

    asked = set(wrong.ids[tokens].tolist())
    kept = set(wrong.ids[right].tolist())
    moves: list[tuple[float, str, Callable[[int, int], int], str]] = [
        (0.99, "ids-narrowed-to-8-bits", lambda t, i: i % 256, "modulo 256"),
        (0.99, "ids-narrowed-to-8-bits", lambda t, i: i % 128, "modulo 128"),
        (0.99, "ids-narrowed-to-8-bits", lambda t, i: ((i + 128) % 256 - 128) % (last + 1), "as signed 8 bits"),
        (0.99, "ids-narrowed-to-16-bits", lambda t, i: i % 65536, "modulo 65536"),
        (0.99, "ids-narrowed-to-16-bits", lambda t, i: i % 32768, "modulo 32768"),
        (0.99, "ids-narrowed-to-16-bits", lambda t, i: ((i + 2**15) % 2**16 - 2**15) % (last + 1), "as signed 16 bits"),
        (0.985, "ids-through-float", _by_float("bfloat16", last), "rounded to bfloat16"),
        (0.985, "ids-through-float", _by_float("float16", last), "rounded to float16"),
        (0.985, "ids-through-float", _by_float("float32", last), "rounded to float32"),
        (0.95, "packed-pairs", lambda t, i: i ^ 1, "the other one of its pair"),
        (0.95, "packed-pairs", lambda t, i: i & ~1, "the even one of its pair"),
        (0.93, "row-off-by-one", lambda t, i: max(i - 1, 0), "the one before"),
        (0.93, "row-off-by-one", lambda t, i: (i - 1) % (last + 1), "the one before"),
        (0.93, "row-off-by-one", lambda t, i: min(i + 1, last), "the one after"),
        (0.93, "row-off-by-one", lambda t, i: (i + 1) % (last + 1), "the one after"),
    ]
    usual = wrong.probe.id_dtype in ("int32", "int64")
    for weight, fault, move, how in moves:
        if explains(move) and (usual or not fault.startswith("ids-narrowed")):
            # One id alone may be anything; the same step for several is no accident.
            yield (
                weight if len(asked) > 1 or (weight > 0.98 and wrong.probe.vocab > 2**16) else weight - 0.25,
                fault,
                f"{what}: {how}",
            )
    places: list[tuple[float, str, Callable[[int], int], str]] = [
        (0.8, "neighbour-dependent", lambda t: t - 1, "that of the token before"),
        (0.8, "neighbour-dependent", lambda t: t + 1, "that of the token after"),
        (0.75, "position-dependent", lambda t: 0, "that of the first token"),
        (0.75, "position-dependent", lambda t: wrong.ids.size - 1, "that of the last token"),
    ]
    for weight, fault, place, how in places:
        if all(0 <= place(t) < wrong.ids.size and int(wrong.ids[place(t)]) in r for t, r in held.items()):
            yield weight, fault, f"{what}: {how}"
    if len(asked) <= 8 and kept and not asked & kept:
        yield 0.85, "some-rows-wrong", f"{what}; only ids {sorted(asked)[:8]} are wrong"
    elif asked & kept:
        yield 0.65, "position-dependent", f"{what}; other tokens of the same ids are right"
    if asked == {last} and last % 2 == 0 and all(last - 1 in r for r in held.values()):
        yield 0.98, "packed-pairs", f"{what}: the last row of an odd number of them has no pair"
    if all(last in r for r in held.values()) and kept and min(asked) > max(kept):
        yield 0.9, "last-rows-lost", f"{what}: the last one"


def _by_float(name: str, last: int) -> Callable[[int, int], int]:
    fmt = FORMATS[name]

    def move(token: int, value: int) -> int:
        rounded = exact.round_once(value, 0, fmt)
        if rounded > fmt.largest_finite:
            return last
        significand, exponent = exact.decode(rounded, fmt)
        return min(significand << exponent if exponent >= 0 else significand >> -exponent, last)

    return move


def _from_elements(wrong: _Wrong) -> Iterator[Found]:
    """The row is the right one, and something was done to its elements."""
    got, expected, fmt = wrong.got[wrong.differs], wrong.expected[wrong.differs], wrong.fmt
    nan, zero = bit.is_nan(expected, fmt), bit.is_zero(expected, fmt)
    infinite, subnormal = bit.is_inf(expected, fmt), bit.is_subnormal(expected, fmt)
    source = FORMATS[wrong.probe.dtype]
    if source.name != fmt.name:  # what was subnormal in the table is a normal float32
        subnormal |= _was_subnormal(expected, source, fmt)
    got_nan, got_zero = bit.is_nan(got, fmt), bit.is_zero(got, fmt)
    total = got.size

    def share(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
        return float(np.count_nonzero(mask)) / total

    what = f"0x{int(expected[0]):x} became 0x{int(got[0]):x}"
    rounded = _rounding(got, expected, fmt)
    if rounded is not None:
        yield 0.99, rounded, f"{what}, as rounding and widening again gives"
        return
    poisoned = got_nan & ~nan
    if poisoned.any() and wrong.table.shape[0] == 1:
        yield 0.9, "some-rows-wrong", f"the only row of a table has NaN where it has none: {what}"
    elif poisoned.any():
        weight = 0.98 if wrong.probe.table == "poisoned" else 0.8
        yield weight * (0.6 + 0.4 * share(poisoned)), "one-hot-product", f"NaN where the row has none: {what}"
    quieted = nan & got_nan
    replaced = nan & ~got_nan
    kinds = [
        (quieted, "nan-changed", "a NaN has other bits"),
        (replaced, "nan-replaced", "a NaN is none any more"),
        (infinite & ~got_nan, "infinity-replaced", "an infinity is finite"),
        (zero & got_zero, "negative-zero-lost", "a zero has the other sign"),
        (subnormal & got_zero, "subnormals-flushed", "a subnormal became zero"),
    ]
    for mask, fault, how in kinds:
        if share(mask) > 0.999:
            yield 0.95, fault, f"{how}: {what}"
        elif mask.any():
            yield 0.35 + 0.4 * share(mask), fault, f"{how}: {what}"
    ordinary = ~(nan | infinite | zero | subnormal | poisoned)
    if ordinary.any():
        yield from _from_ordinary(got[ordinary], expected[ordinary], fmt, share(ordinary))
    elif (zero & got_zero).any() and nan.any() and share(quieted | replaced | (zero & got_zero) | poisoned) > 0.999:
        yield 0.96, "one-hot-product", f"zeros lost their sign and NaN changed, as in sums of products: {what}"


def _rounding(got: Bits, expected: Bits, fmt: FloatFormat) -> str | None:
    """Return the fault whose rounding gives all of a sample of the wrong elements, if there is one."""
    step = max(got.size // 400, 1)
    pairs = [
        (g, e)
        for g, e in zip(got[::step].tolist(), expected[::step].tolist(), strict=True)
        if e & (fmt.sign - 1) <= fmt.largest_finite
    ]
    for name in ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"):
        narrow = FORMATS[name]
        if narrow.mantissa_bits >= fmt.mantissa_bits and narrow.exponent_bits >= fmt.exponent_bits:
            continue
        same = [_through(e, fmt, narrow) == g for g, e in pairs]
        kept = any(g & (fmt.sign - 1) and g & (fmt.sign - 1) < fmt.largest_finite for g, _ in pairs)
        if pairs and kept and sum(same) >= 0.98 * len(same):
            return f"rounded-through-{name}" if not name.startswith("float8") else "rounded-through-float8"
    return None


def _was_subnormal(
    expected: Bits, source: FloatFormat, fmt: FloatFormat
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    smallest = (fmt.bias - source.bias + 1) << fmt.mantissa_bits if fmt.exponent_bits > source.exponent_bits else 0
    magnitude = expected & fmt.uint.type(fmt.sign - 1)
    return (magnitude != 0) & (magnitude < max(smallest, fmt.mantissa + 1))


def _from_ordinary(got: Bits, expected: Bits, fmt: FloatFormat, share: float) -> Iterator[Found]:
    """Finite numbers that came back as others: scaled, or a little off."""
    what = f"0x{int(expected[0]):x} became 0x{int(got[0]):x}"
    pairs = list(zip(got[:512].tolist(), expected[:512].tolist(), strict=True))
    steps = [bit.ulp_distance(g, e, fmt) for g, e in pairs]
    if all(step is not None and step <= 4 for step in steps):
        yield (
            0.85,
            "last-bits-changed",
            f"{what}: at most {max(step or 0 for step in steps)} units in the last place off",
        )
        return
    ratios = []
    for g, e in pairs[:64]:
        if bit.ulp_distance(g, e, fmt) is None or g & (fmt.sign - 1) > fmt.largest_finite:
            continue
        (a, b), (c, d) = exact.decode(g, fmt), exact.decode(e, fmt)
        if a and c and abs(b - d) < 200:
            ratios.append(a / c * 2.0 ** (b - d))
    alike = len(ratios) >= 3 and np.ptp(ratios) <= abs(np.median(ratios)) * 2.0 ** max(1 - fmt.mantissa_bits, -8)
    if alike and abs(np.median(ratios) - 1) > 1e-6:
        yield 0.9, "scaled", f"{what}: {np.median(ratios):.6g} times what it must be"


def _through(element: int, fmt: FloatFormat, narrow: FloatFormat) -> int:
    magnitude = element & (fmt.sign - 1)
    if magnitude > fmt.largest_finite:
        return element
    rounded = exact.round_once(*exact.decode(element, fmt), narrow)
    if (rounded & (narrow.sign - 1)) > narrow.largest_finite:
        if not narrow.has_inf:
            return fmt.nan
        return fmt.exponent | (element & fmt.sign)
    again = exact.round_once(*exact.decode(rounded, narrow), fmt)
    return again | (element & fmt.sign)


def _from_columns(wrong: _Wrong) -> Iterator[Found]:
    """Only some columns are wrong, the same ones in every row."""
    columns = np.flatnonzero(wrong.differs.any(axis=0))
    hidden = wrong.probe.hidden
    moved = _moved(wrong)
    if moved is not None:
        yield 0.9, "columns-moved", moved
    if (
        0 < columns.size < hidden
        and columns[0] > 0
        and columns[-1] == hidden - 1
        and columns.size == hidden - columns[0]
    ):
        yield (
            0.92,
            "columns-past-a-tile-wrong",
            f"columns {columns[0]} to {hidden - 1} are wrong, those before are right",
        )
    elif 0 < columns.size <= hidden // 2 and wrong.tokens.size > 0.5 * wrong.ids.size:
        yield 0.5, "columns-past-a-tile-wrong", f"columns {columns[:6].tolist()} are wrong, others are right"


def _moved(wrong: _Wrong) -> str | None:
    """Return where an element of a wrong row came from, if it is in that row's right answer elsewhere."""
    if wrong.probe.hidden < 2 or not wrong.tokens.size:
        return None
    token = int(wrong.tokens[0])
    got, expected = wrong.got[token], wrong.expected[token]
    if (np.sort(got) != np.sort(expected)).any():
        return None
    column = int(np.flatnonzero(got != expected)[0])
    return f"out[{token}, {column}] holds column {int(np.flatnonzero(expected == got[column])[0])}"


def _from_tokens(wrong: _Wrong) -> Iterator[Found]:
    """Only some tokens are wrong: the last ones, every n-th, those of some ids."""
    tokens, count = wrong.tokens, wrong.ids.size
    asked = set(wrong.ids[tokens].tolist())
    right = set(np.delete(wrong.ids, tokens).tolist())
    zero = (wrong.got[tokens] & wrong.fmt.uint.type(wrong.fmt.sign - 1) == 0).all()
    how = "zeros" if zero else "other bits"
    if (
        zero
        and asked
        and not asked & right
        and right
        and (asked <= {0, 1} or (len(asked) == 1 and min(asked) < max(right)))
    ):
        yield 0.975, "padding-id-zeroed", f"the row of id {sorted(asked)[0]} came back as zeros"
    if asked and not asked & right and right:
        few = len(asked) <= 8 and len(asked) * 8 < len(right) and _ordinary(wrong)
        yield 0.9 if few else 0.45, "some-rows-wrong", f"only ids {sorted(asked)[:8]} are wrong: {how}"
        if min(asked) > max(right) and zero:
            yield 0.975, "last-rows-lost", f"ids from {min(asked)} on give {how}"
    every = np.flatnonzero(wrong.differs.any(axis=1))
    if 0 < every.size < count and every[0] > 0 and every.size > 0.9 * (count - every[0]) and asked & right:
        yield 0.98, "tokens-past-a-tile-wrong", f"tokens {tokens[0]} to {count - 1} are wrong, those before are right"
    elif 0 < tokens.size < count and asked & right:
        yield 0.6, "position-dependent", f"tokens {tokens[:6].tolist()} are wrong, others of the same ids are right"


def _ordinary(wrong: _Wrong) -> bool:
    """Return whether most of what is wrong are ordinary numbers: no kind of element that was lost explains it."""
    elements, fmt = wrong.expected[wrong.differs], wrong.fmt
    magnitude = elements & fmt.uint.type(fmt.sign - 1)
    return bool(((magnitude > fmt.mantissa) & (magnitude <= fmt.largest_finite)).mean() > 0.5)


def _from_layout(wrong: _Wrong) -> Iterator[Found]:
    probe = wrong.probe
    if probe.layout in ("offset by one element", *SLICES):
        yield 0.93, "storage-offset-ignored", f"a table that is {probe.layout} comes back wrong"
    elif probe.layout != "dense":
        yield 0.93, "table-strides-ignored", f"a table that is {probe.layout} comes back wrong"
    if probe.id_layout in ("offset by one", "slice of a longer one"):
        yield 0.94, "storage-offset-ignored", f"ids that are {probe.id_layout} come back wrong"
    if probe.id_layout != "dense":
        yield 0.93, "ids-strides-ignored", f"ids that are {probe.id_layout} come back wrong"
    if probe.id_dtype not in ("int64", "int32"):
        yield 0.98, "id-dtype-misread", f"ids of {probe.id_dtype} come back wrong"
    if probe.mode != "plain":
        yield 0.8, "gradient-mode-dependent", f"under {probe.mode} it comes back wrong"
    if wrong.ids.size >= 64:
        yield 0.52, "other-path-by-batch-size", f"no fewer than {wrong.ids.size} tokens show it"


_DETECTORS: tuple[Callable[[_Wrong], Iterator[Found]], ...] = (
    _from_rows,
    _from_elements,
    _from_columns,
    _from_tokens,
    _from_layout,
)
