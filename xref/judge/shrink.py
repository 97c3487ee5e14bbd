"""The smallest call that still fails: fewest tokens, then the plainest memory, then the smallest H and V."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from xref.judge.probes import Observation, Probe, Prober, ids_of

__all__ = ["bad", "smallest"]

_RUNS = 40  # calls that each step of shrinking may take
_SECONDS = 4.0  # and all of them together: where every shape is compiled anew, a call takes a tenth of one
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000)


def bad(seen: Observation) -> bool:
    """Return whether an observation is of a failure."""
    return any(each is not None for each in (seen.raised, seen.misformed, seen.impure, seen.wrong))


def smallest(seen: Observation, prober: Prober) -> Observation:
    """Return what the smallest probe shows that fails in the same way as the one seen, itself if there is none."""
    kind, left, deadline = _kind(seen), 0, time.monotonic() + _SECONDS

    def fails(smaller: Probe) -> bool:
        nonlocal seen, left
        if left <= 0 or time.monotonic() > deadline:
            return False
        left -= 1
        tried = prober.run(smaller)
        if not bad(tried) or _kind(tried) != kind:
            return False
        seen = tried
        return True

    for step in (_plainer, _fewer_tokens, _narrower, _fewer_rows, _fewer_tokens):
        left = _RUNS
        step(lambda: seen.probe, fails)
    return seen


def _kind(seen: Observation) -> str:
    if seen.raised is not None:
        return f"raised {seen.raised.partition(':')[0]}"
    if seen.misformed is not None:
        return "misformed"
    return "wrong" if seen.wrong is not None else f"impure {str(seen.impure).partition(':')[0]}"


Now = Callable[[], Probe]
Fails = Callable[[Probe], bool]


def _plainer(now: Now, fails: Fails) -> None:
    ids = ids_of(now())
    if now().table != "poisoned":
        fails(msgspec.structs.replace(now(), ids=tuple(ids.reshape(-1).tolist())))
    for field, value in (
        ("layout", "dense"),
        ("id_layout", "dense"),
        ("mode", "plain"),
        ("seed", 0),
        ("id_dtype", "int64"),
    ):
        if getattr(now(), field) != value and not (field == "id_dtype" and now().id_dtype == "int32"):
            fails(msgspec.structs.replace(now(), **{field: value}))
    if len(now().shape) > 1 and not isinstance(now().ids, str):
        fails(msgspec.structs.replace(now(), shape=(len(now().ids),)))


def _fewer_tokens(now: Now, fails: Fails) -> None:
    """Take away the last tokens, then the first ones; then half of them, a quarter, and so on down to single ones."""
    if len(now().shape) != 1 or isinstance(now().ids, str):
        return
    _bisected(now, fails, last=False)
    _bisected(now, fails, last=True)
    while len(ids := now().ids) > 1 and not isinstance(ids, str):
        if not any(fails(_with_ids(now(), some)) for some in _shares(ids)):
            return


def _bisected(now: Now, fails: Fails, *, last: bool) -> None:
    """Keep as few of the first tokens, or the last, as still fail: found at once if no fewer ever do."""
    ids = now().ids
    too_few, enough = 0, len(ids)
    while enough - too_few > 1 and not isinstance(ids, str):
        count = (enough + too_few) // 2
        if fails(_with_ids(now(), ids[-count:] if last else ids[:count])):
            enough = count
        else:
            too_few = count


def _shares(ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    parts = 2
    while parts <= min(len(ids), 16):
        edges = np.linspace(0, len(ids), parts + 1).astype(int).tolist()
        spans = list(itertools.pairwise(edges))
        yield from (ids[start:stop] for start, stop in spans)
        if parts > 2:
            yield from (ids[:start] + ids[stop:] for start, stop in spans)
        parts *= 2


def _with_ids(probe: Probe, ids: tuple[int, ...]) -> Probe:
    return msgspec.structs.replace(probe, ids=ids, shape=(len(ids),))


def _narrower(now: Now, fails: Fails) -> None:
    for hidden in _SIZES:
        if hidden >= now().hidden or fails(msgspec.structs.replace(now(), hidden=hidden)):
            return


def _fewer_rows(now: Now, fails: Fails) -> None:
    probe = now()
    if isinstance(probe.ids, str) or not probe.ids or probe.table == "sparse":
        return
    ranks = tuple(np.unique(probe.ids, return_inverse=True)[1].tolist())
    if ranks != probe.ids and fails(_with_vocab(probe, ranks, max(ranks) + 1)):
        return
    for vocab in (max(probe.ids) + 1, *(size for size in _SIZES if size > max(probe.ids))):
        if vocab >= probe.vocab or fails(_with_vocab(probe, tuple(probe.ids), vocab)):
            return


def _with_vocab(probe: Probe, ids: tuple[int, ...], vocab: int) -> Probe:
    return msgspec.structs.replace(probe, ids=ids, vocab=vocab)
