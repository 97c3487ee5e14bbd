"""A candidate's conduct: bad ids (EMB-4) and memory (EMB-12)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from xref import bits as bit
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.contracts.inputs import Ids, make_table
from xref.judge.bench import described, main_dtypes
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.isolate import CrashedError, limited, run_in_child
from xref.spec import Tier

__all__ = ["OUT_OF_RANGE", "examine_memory", "examine_refusals", "refused_again"]

OUT_OF_RANGE = ("raise", "poison", "unchecked")
"""What a candidate may promise of ids out of range."""

_SILENCE = 10.0  # seconds without a word from the child
_MOST_STUCK = 3  # calls that die or never end, after which no more are made
_FIXED_OVERHEAD = 4 << 20


class _Bad(NamedTuple):
    """Ids that must not come back as rows."""

    name: str
    ids: Ids
    vocab: int

    @property
    def integers(self) -> bool:
        return self.ids.dtype.kind in "iu"


def _bad_ids(tier: Tier) -> Iterator[_Bad]:
    yield from (_Bad(bad.name, bad.ids, bad.vocab) for bad in contract.bad_ids())
    sizes = (1, 33, 1000, 5000) if tier is not Tier.SMOKE else (33,)
    for vocab, bad in ((300, 300), (300, -1), (4096, 4096), (31, 31), (31, -31), (70000, 70001), (64, 10**6)):
        for tokens in sizes:
            for place in sorted({0, tokens // 2, tokens - 1}):
                ids = np.arange(tokens, dtype=np.int64) % vocab
                ids[place] = bad
                yield _Bad(f"{bad} at {place} of {tokens}", ids, vocab)
                if tokens == 33:
                    yield _Bad(f"{bad} at {place} of 33, int32", ids.astype(np.int32), vocab)
                    yield _Bad(f"{bad} at {place} of 3x11", ids.reshape(3, 11), vocab)
                    yield _Bad(f"{bad} at {place} of 3x1x11, int32", ids.astype(np.int32).reshape(3, 1, 11), vocab)
    for id_dtype, vocab, bad in (("int8", 100, 127), ("uint8", 200, 200), ("int16", 300, -300), ("uint16", 300, 65535),
                                 ("uint32", 300, 2**31), ("uint64", 300, 2**63), ("int8", 300, -128)):  # fmt: skip
        yield _Bad(f"{id_dtype} {bad}", np.array([1, bad, 2], id_dtype), vocab)
        yield _Bad(f"{id_dtype} {bad}, 0-dimensional", np.array(bad, id_dtype), vocab)
    for dtype in ("float64", "bfloat16"):
        yield _Bad(f"{dtype} ids", bit.from_bits(np.zeros(3, FORMATS[dtype].uint), dtype), 5)
    yield _Bad("all bad", np.arange(300, 333), 300)
    yield _Bad("bool, 2-D", np.array([[True, False]]), 5)


def examine_refusals(
    candidate: Candidate, tier: Tier, dtypes: tuple[str, ...], findings: dict[str, Findings], out_of_range: str
) -> None:
    """Hand a candidate ids that it must refuse, or answer with rows of NaN where it promises that."""
    if out_of_range == "unchecked":
        findings["EMB-4"].skipped.append("the candidate promises nothing of ids out of range")
    else:
        tasks = [
            (verb, dtype, bad)
            # Where every shape is compiled anew, one dtype: the ids are what is judged.
            for dtype in main_dtypes(dtypes)[: 1 if candidate.framework.NAME == "jax" else None]
            for verb in candidate.verbs
            if verb in contract.verbs_of(dtype)
            for bad in _bad_ids(tier)
        ]
        _refused(candidate, tasks, findings["EMB-4"], out_of_range)
    for verb, call in candidate.verbs.items():
        _traced(candidate, verb, call, findings["EMB-4/traced"])


def _refused(candidate: Candidate, tasks: list[tuple[str, str, _Bad]], findings: Findings, out_of_range: str) -> None:
    """Try the tasks one after the other; one that kills the child is a failure, and the next child goes on after it."""
    forks = candidate.framework.NAME == "torch" and candidate.device == "cpu"
    done = 0

    def note(result: tuple[str, str, tuple[str, ...]] | None, task: tuple[str, str, _Bad]) -> None:
        if result is None:
            findings.passed(max(task[2].ids.size, 1))
        else:
            message, call, hints = result
            finding = Finding(message, call, hints=hints, rerun=_record(task))
            findings.fail(finding, max(task[2].ids.size, 1))

    if not forks:
        for task, result in zip(tasks, _until_stuck(candidate, tasks, out_of_range), strict=False):
            note(result, task)
        return
    crashes = 0
    while done < len(tasks) and crashes < _MOST_STUCK:

        def work(send: Callable[[Any], None], begin: int = done) -> None:
            candidate.framework.use_one_thread()
            for result in _until_stuck(candidate, tasks[begin:], out_of_range):
                send(result)

        results, died = run_in_child(work, seconds=_SILENCE)
        for result in results:
            note(result, tasks[done])
            done += 1
        if died is None:
            return  # at the end, or stuck too often
        if done < len(tasks):
            verb, dtype, bad = tasks[done]
            hints = ("endless-loop",) if "within" in died else ("crash", "bad-ids-unchecked")
            note((f"process: got {died}, expected an error", _name(candidate, verb, dtype, bad), hints), tasks[done])
        done, crashes = done + 1, crashes + 1


def _until_stuck(
    candidate: Candidate, tasks: list[tuple[str, str, _Bad]], out_of_range: str
) -> Iterator[tuple[str, str, tuple[str, ...]] | None]:
    """Try tasks one after the other, until some have taken too long: the others would as well."""
    stuck = 0
    for task in tasks:
        result = _tried(candidate, task, out_of_range)
        yield result
        stuck += result is not None and "endless-loop" in result[2]
        if stuck == _MOST_STUCK:
            return


def _record(task: tuple[str, str, _Bad]) -> str:
    verb, dtype, bad = task
    return json.dumps({"bad": bad.name, "verb": verb, "dtype": dtype, "vocab": bad.vocab})


def refused_again(candidate: Candidate, record: dict[str, Any], findings: Findings, out_of_range: str) -> None:
    """Hand a candidate the ids of one record again."""
    tasks = [
        (record["verb"], record["dtype"], bad)
        for bad in _bad_ids(Tier.STANDARD)
        if (bad.name, bad.vocab) == (record["bad"], record["vocab"])
    ]
    if not tasks or record["verb"] not in candidate.verbs or record["dtype"] not in FORMATS:
        raise ValueError("no such ids, verb or dtype")
    _refused(candidate, tasks[:1], findings, out_of_range)


def _name(candidate: Candidate, verb: str, dtype: str, bad: _Bad) -> str:
    return f"{candidate.name}.{verb}, {dtype} table of {bad.vocab} rows, ids: {bad.name}"


def _tried(
    candidate: Candidate, task: tuple[str, str, _Bad], out_of_range: str
) -> tuple[str, str, tuple[str, ...]] | None:
    """Return what is wrong with how a candidate takes bad ids, the call, and what that speaks for; None if nothing."""
    verb, dtype, bad = task
    framework, call = candidate.framework, _name(candidate, verb, dtype, bad)
    table = make_table("gaussian", bad.vocab, 5, FORMATS[dtype])
    with framework.precision("float64" if bad.ids.dtype == np.float64 else dtype):
        name = None if bad.ids.dtype.name not in FORMATS else bad.ids.dtype.name
        raw = bad.ids if name is None else bit.as_bits(bad.ids)
        given, laid = framework.put(raw, name, candidate.device), framework.put(table, dtype, candidate.device)
        try:
            with limited(_SILENCE / 2):
                out = candidate.verbs[verb](given, laid)
                shape, _, _ = framework.form_of(out)
                values = framework.bits_of(out) if shape else np.zeros(0, np.uint8)
        except CrashedError as error:
            return f"call: got {error}, expected an error", call, ("endless-loop",)
        except (Exception, SystemExit) as error:
            expected = "IndexError" if bad.integers and out_of_range == "raise" else None
            if not bad.integers or (expected and isinstance(error, IndexError)):
                return None
            wanted = expected or "rows of NaN"
            return f"error: got {described(error)}, expected {wanted}", call, ("bad-ids-unchecked",)
    if bad.integers and out_of_range == "poison":
        return _poisoned(values, bad, verb, dtype, table, call)
    expected = "IndexError" if bad.integers else "TypeError"
    hints = _hints(values, bad, table, verb, dtype) if bad.integers else ("non-integer-ids-taken",)
    return f"error: got a result, expected {expected}", call, hints


def _poisoned(
    values: Any, bad: _Bad, verb: str, dtype: str, table: Any, call: str
) -> tuple[str, str, tuple[str, ...]] | None:
    fmt = FORMATS[contract.result_dtype(verb, dtype)]
    inside = np.array([0 <= int(i) < bad.vocab for i in bad.ids.reshape(-1)], bool).reshape(bad.ids.shape)
    if values.shape != (*bad.ids.shape, table.shape[1]):
        return f"out: got shape {values.shape}, expected rows of NaN", call, ("wrong-shape",)
    if not bit.is_nan(values[~inside], fmt).all():
        hints = _hints(values, bad, table, verb, dtype)
        return "out: got a row of values for an id out of range, expected NaN", call, hints
    if inside.any():
        answer = contract.exact_answers(bad.ids[inside], table, dtype)[verb]
        if not np.array_equal(values[inside], answer):
            return "out: got other bits beside an id out of range, expected the rows", call, ()
    return None


def _hints(values: Any, bad: _Bad, table: Any, verb: str, dtype: str) -> tuple[str, ...]:
    """Return what the row that came back for the first bad id is consistent with."""
    if values.ndim == 0 or values.shape != (*bad.ids.shape, table.shape[1]) or bad.vocab == 0:
        return ("bad-ids-unchecked",)
    flat = [int(i) for i in bad.ids.reshape(-1)]
    place = next(n for n, value in enumerate(flat) if not 0 <= value < bad.vocab)
    rows = contract.exact_answers(np.arange(bad.vocab), table, dtype)[verb]
    row, value = values.reshape(-1, table.shape[1])[place], flat[place]
    fmt = FORMATS[contract.result_dtype(verb, dtype)]
    if (row == 0).all() or bit.is_nan(row, fmt).all():
        return ("bad-ids-filled",)
    held = set(np.flatnonzero((rows == row).all(axis=1)).tolist())
    narrowed = {
        # The widest first: what is narrowed further shows in ids that are in range.
        "ids-narrowed-to-32-bits": {value % 2**32, (value + 2**31) % 2**32 - 2**31},
        "ids-narrowed-to-16-bits": {value % 2**16, (value + 2**15) % 2**16 - 2**15},
        "ids-narrowed-to-8-bits": {value % 256, (value + 128) % 256 - 128},
    }
    order = [name for name, kept in narrowed.items() if value not in kept and held & kept]
    if value < 0 and held & {value + bad.vocab, value % bad.vocab}:
        order.insert(0, "negative-ids-wrap")
    if held & {0 if value < 0 else bad.vocab - 1}:
        order.append("ids-clamped")
    return tuple(order) or ("bad-ids-unchecked",)


def _traced(candidate: Candidate, verb: str, call: Callable[[Any, Any], Any], findings: Findings) -> None:
    """Under a trace nothing can be raised: an id out of range must give a row of NaN, never a real one."""
    framework = candidate.framework
    traced = framework.traced(call)
    if traced is None:
        findings.skipped.append(f"{framework.NAME} has no such trace")
        return
    ids = np.array([0, 4, 5, -1, -6, 2, 2**31 - 1, -(2**31)], np.int32)
    inside = (ids >= 0) & (ids < 5)
    dtype, fmt = "float32", FORMATS["float32"]
    table = make_table("gaussian", 5, 33, fmt)
    where = f"{candidate.name}.{verb} under jit, float32 table of 5 rows, ids {ids.tolist()}"
    with framework.precision(dtype):
        given, laid = framework.put(ids, None, candidate.device), framework.put(table, dtype, candidate.device)
        try:
            values = framework.bits_of(traced(given, laid))
        except (Exception, SystemExit) as error:
            findings.skipped.append(f"{verb} cannot be traced: {described(error)}")
            return
    bad = _Bad("traced", ids, 5)
    if values.shape != (8, 33) or not bit.is_nan(values[~inside], fmt).all():
        hints = _hints(values, bad, table, verb, dtype)
        findings.fail(
            Finding("out: got a row of values for an id out of range, expected NaN", where, hints=hints), ids.size
        )
    elif not np.array_equal(values[inside], table[ids[inside]]):
        findings.fail(Finding("out: got other bits beside an id out of range, expected the rows", where), ids.size)
    else:
        findings.passed(values.size)
    if candidate.backward is None:
        _traced_gradient(candidate, verb, (ids, inside), findings)


def _traced_gradient(candidate: Candidate, verb: str, ids: tuple[Ids, Ids], findings: Findings) -> None:
    """Under a trace a row that no id in range names must have no gradient; `ids`, and which of them are in range."""
    framework, (given, inside) = candidate.framework, ids
    traced = framework.traced_gradient(candidate.verbs[verb])
    if traced is None:
        return
    one = FORMATS["float32"].bias << FORMATS["float32"].mantissa_bits
    ones = np.full((given.size, 3), one, np.uint32)
    expected = np.zeros((5, 3), np.uint32)
    expected[given[inside]] = one
    table = make_table("gaussian", 5, 3, FORMATS["float32"])
    where = f"{candidate.name}, gradient of {verb} under jit, float32 table of 5 rows, ids {given.tolist()}, ones"
    with framework.precision("float32"):
        arrays = [framework.put(each, "float32", candidate.device) for each in (table, ones)]
        try:
            values = framework.bits_of(traced(framework.put(given, None, candidate.device), *arrays))
        except (Exception, SystemExit) as error:
            findings.skipped.append(f"{verb} cannot be differentiated under a trace: {described(error)}")
            return
    if np.array_equal(values, expected):
        findings.passed(values.size)
    else:
        message = "gradient: got something from an id out of range, expected the sums of the others"
        findings.fail(Finding(message, where, hints=("ids-clamped", "negative-ids-wrap")), values.size)


def examine_memory(candidate: Candidate, dtypes: tuple[str, ...], findings: Findings) -> None:
    """Measure the peak extra memory of a call whose table is so large that a copy of it cannot hide (EMB-12)."""
    for dtype in main_dtypes(dtypes):
        for verb in candidate.verbs:
            if verb in contract.verbs_of(dtype):
                _measured(candidate, verb, dtype, findings)


def _measured(candidate: Candidate, verb: str, dtype: str, findings: Findings) -> None:
    framework = candidate.framework
    ids = np.arange(0, 151936, 2374, dtype=np.int32 if framework.NAME == "jax" else np.int64)
    hidden = 1024 // FORMATS[dtype].width
    table = make_table("hashed", 151936, hidden, FORMATS[dtype])
    where = f"{candidate.name}.{verb}, {dtype} table of 151936 x {hidden}, {ids.size} ids"
    output = ids.size * hidden * FORMATS[contract.result_dtype(verb, dtype)].width // 8
    limit = int(1.2 * output) + _FIXED_OVERHEAD
    with framework.precision(dtype):
        given, laid = framework.put(ids, None, candidate.device), framework.put(table, dtype, candidate.device)
        # The first call, which warms up, gets another table: what is kept of one must not make the next look free.
        tables = itertools.chain([framework.put(table.copy(), dtype, candidate.device)], itertools.repeat(laid))
        warmed = framework.NAME == "torch"

        def call(ids: Any, table: Any) -> Any:
            return candidate.verbs[verb](ids, next(tables) if warmed else table)

        try:
            peak = framework.peak_extra_bytes(call, given, laid)
        except (Exception, SystemExit) as error:
            findings.skipped.append(f"{verb}'s memory cannot be measured: {described(error)}")
            return
    if peak > limit:
        message = f"peak extra memory: got {peak} bytes, expected at most {limit} (the table has {table.nbytes})"
        findings.fail(Finding(message, where, hints=("whole-table-copied",)), ids.size)
    else:
        findings.passed(ids.size)
