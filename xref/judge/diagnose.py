"""What the bits of a wrong output are consistent with: names from the fault catalogue, the likeliest first.

Never "caused by". Every row of a judge's table differs from every other, so a wrong row tells where it came from, and
an element that is not its own tells what was done to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.judge.diagnose_content import Found, Wrong, from_elements, from_rows
from xref.judge.probes import SLICES, Observation, ids_of, table_of

__all__ = ["explain", "ranked"]


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
            wrong = Wrong(
                seen.probe,
                ids.reshape(-1).astype(np.int64),
                answers,
                seen.got.reshape(shape),
                seen.expected.reshape(shape),
                fmt,
            )
            # Of a table of zeros alone every lost row looks like a padding's: its elements are all there is to see.
            detectors = (from_elements,) if seen.probe.table == "zeros" else _DETECTORS
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
        same_shape = seen.misformed.got[0] == seen.misformed.wanted[0]
        small = not probe.shape or 0 in probe.shape
        if small and not same_shape:
            yield 1.0, "empty-or-scalar-ids-fail", "ids of no dimension, or none, give another shape"
        yield 0.9, "wrong-dtype" if same_shape else "wrong-shape", str(seen.misformed)
    if seen.raised is not None:
        if not probe.shape or 0 in probe.shape:
            yield 0.9, "empty-or-scalar-ids-fail", "ids of no dimension, or none, raise"
        if probe.layout != "dense":
            yield 0.8, "table-strides-ignored", f"a table that is {probe.layout} raises"
        if probe.id_layout != "dense":
            yield 0.8, "ids-strides-ignored", f"ids that are {probe.id_layout} raise"
        if probe.id_dtype not in ("int64", "int32"):
            yield 0.7, "id-dtype-misread", f"ids of {probe.id_dtype} raise"


def _from_columns(wrong: Wrong) -> Iterator[Found]:
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


def _moved(wrong: Wrong) -> str | None:
    """Return where an element of a wrong row came from, if it is in that row's right answer elsewhere."""
    if wrong.probe.hidden < 2 or not wrong.tokens.size:
        return None
    token = int(wrong.tokens[0])
    got, expected = wrong.got[token], wrong.expected[token]
    if (np.sort(got) != np.sort(expected)).any():
        return None
    column = int(np.flatnonzero(got != expected)[0])
    return f"out[{token}, {column}] holds column {int(np.flatnonzero(expected == got[column])[0])}"


def _from_tokens(wrong: Wrong) -> Iterator[Found]:
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


def _ordinary(wrong: Wrong) -> bool:
    """Return whether most of what is wrong are ordinary numbers: no kind of element that was lost explains it."""
    elements, fmt = wrong.expected[wrong.differs], wrong.fmt
    magnitude = elements & fmt.uint.type(fmt.sign - 1)
    return bool(((magnitude > fmt.mantissa) & (magnitude <= fmt.largest_finite)).mean() > 0.5)


def _from_layout(wrong: Wrong) -> Iterator[Found]:
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
        yield 0.52, "other-path-by-batch-size", f"a call of {wrong.ids.size} tokens shows it"


_DETECTORS: tuple[Callable[[Wrong], Iterator[Found]], ...] = (
    from_rows,
    from_elements,
    _from_columns,
    _from_tokens,
    _from_layout,
)
