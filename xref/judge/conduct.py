"""A candidate's conduct with ids that it must refuse (EMB-4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref import bits as bit
from xref import errors
from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.inputs import Ids, make_table
from xref.judge.bad_ids import BadIds, bad_ids, hints_of
from xref.operators.embedding.bound import exact_of, misses
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.frameworks import Framework
from xref.judge.isolate import CrashedError, limited, run_in_child
from xref.judge.subject import described, main_dtypes
from xref.judge.traced import examine_traced
from xref.spec import Tier

__all__ = ["OUT_OF_RANGE", "examine_refusals", "refused_again"]

OUT_OF_RANGE = ("raise", "poison", "unchecked")
"""What a candidate may promise of ids out of range."""

_SILENCE = 10.0  # seconds without a word from the child
_MISPLACED = "gradient: got something from an id out of range, expected an error or the sums of the others"
_MOST_STUCK = 3  # calls that die or never end, after which no more are made


Run = Callable[[Any, Any], Any]


def _modes(framework: Framework) -> dict[str, Callable[[Run], Run]]:
    """Return the modes in which a candidate may be called, and has to refuse as ever: none under a trace."""
    traced = framework.modes()
    modes = {**framework.gradient_modes(), **framework.surroundings()}
    return {name: mode for name, mode in modes.items() if name not in traced}


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
            for bad in bad_ids(tier, _modes(candidate.framework))
        ]
        if candidate.backward is not None and out_of_range == "raise":
            # A gradient of no rows has none that could be a wrong one.
            tasks += [("backward", dtypes[0], bad) for bad in bad_ids(tier) if bad.integers and bad.vocab]
        _refused(candidate, tasks, findings["EMB-4"], out_of_range)
    for verb, call in candidate.verbs.items():
        examine_traced(candidate, verb, call, findings["EMB-4/traced"])


def _refused(candidate: Candidate, tasks: list[tuple[str, str, BadIds]], findings: Findings, out_of_range: str) -> None:
    """Try the tasks one after the other; one that kills the child is a failure, and the next child goes on after it."""
    forks = candidate.framework.NAME == "torch" and candidate.device == "cpu"
    done = 0

    def note(result: tuple[str, str, tuple[str, ...]] | None, task: tuple[str, str, BadIds]) -> None:
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
    candidate: Candidate, tasks: list[tuple[str, str, BadIds]], out_of_range: str
) -> Iterator[tuple[str, str, tuple[str, ...]] | None]:
    """Try tasks one after the other, until some have taken too long: the others would as well."""
    stuck = 0
    for task in tasks:
        result = _tried(candidate, task, out_of_range)
        yield result
        stuck += result is not None and "endless-loop" in result[2]
        if stuck == _MOST_STUCK:
            return


def _record(task: tuple[str, str, BadIds]) -> str:
    verb, dtype, bad = task
    return json.dumps({"bad": bad.name, "verb": verb, "dtype": dtype, "vocab": bad.vocab})


def refused_again(candidate: Candidate, record: dict[str, Any], findings: Findings, out_of_range: str) -> None:
    """Hand a candidate the ids of one record again."""
    tasks = [
        (record["verb"], record["dtype"], bad)
        for bad in bad_ids(Tier.STANDARD, _modes(candidate.framework))
        if (bad.name, bad.vocab) == (record["bad"], record["vocab"])
    ]
    verbs = (*candidate.verbs, *(("backward",) if candidate.backward is not None else ()))
    if not tasks or record["verb"] not in verbs or record["dtype"] not in FORMATS:
        raise ValueError("no such ids, verb or dtype")
    _refused(candidate, tasks[:1], findings, out_of_range)


def _name(candidate: Candidate, verb: str, dtype: str, bad: BadIds) -> str:
    return f"{candidate.name}.{verb}, {dtype} table of {bad.vocab} rows, ids: {bad.name}"


def _tried(
    candidate: Candidate, task: tuple[str, str, BadIds], out_of_range: str
) -> tuple[str, str, tuple[str, ...]] | None:
    """Return what is wrong with how a candidate takes bad ids, the call, and what that speaks for; None if nothing."""
    verb, dtype, bad = task
    framework, call = candidate.framework, _name(candidate, verb, dtype, bad)
    table = make_table("gaussian", bad.vocab, 5, FORMATS[dtype])
    with framework.precision("float64" if bad.ids.dtype == np.float64 else dtype):
        name = None if bad.ids.dtype.name not in FORMATS else bad.ids.dtype.name
        raw = bad.ids if name is None else bit.as_bits(bad.ids)
        given, laid = framework.put(raw, name, candidate.device), framework.put(table.copy(), dtype, candidate.device)
        ids, run = bad.ids.copy(), _run_of(candidate, verb, bad)
        try:
            with limited(_SILENCE / 2):
                out = run(given, laid)
                shape, _, _ = framework.form_of(out)
                values = framework.bits_of(out) if shape else np.zeros(0, np.uint8)
        except CrashedError as error:
            return f"call: got {error}, expected an error", call, ("endless-loop",)
        except (Exception, SystemExit) as raised:
            is_mode = isinstance(raised, errors.RefusedError)
            refusal = (raised.__cause__ if is_mode else None) or raised
            if bad.integers and out_of_range != "raise":
                return f"error: got {described(refusal)}, expected rows of NaN", call, ("bad-ids-unchecked",)
            due = IndexError if bad.integers else TypeError
            if verb == "backward" or isinstance(refusal, due):  # of a backward no kind of error is asked
                return _rewritten(framework, (given, ids), (laid, table), call)
            return f"error: got {described(refusal)}, expected {due.__name__}", call, ("bad-ids-unchecked",)
    if bad.integers and out_of_range == "poison":
        return _poisoned(values, bad, verb, dtype, table, call)
    if verb == "backward":
        return None if _left_out(values, bad) else (_MISPLACED, call, ("bad-ids-unchecked",))
    expected = "IndexError" if bad.integers else "TypeError"
    hints = hints_of(values, bad, table, verb, dtype) if bad.integers else ("non-integer-ids-taken",)
    return f"error: got a result, expected {expected}", call, hints


def _run_of(candidate: Candidate, verb: str, bad: BadIds) -> Run:
    """Return what is called with the ids and a table; a backward gets cotangents instead of the table."""
    framework, backward = candidate.framework, candidate.backward
    if verb != "backward" or backward is None:
        plain = candidate.verbs[verb]
        return plain if bad.mode == "plain" else _modes(framework)[bad.mode](plain)
    laid = framework.put(_cotangent(bad), "float32", candidate.device)
    return lambda ids, table: backward(ids, laid, bad.vocab)


def _cotangent(bad: BadIds) -> Bits:
    return make_table("gaussian", bad.ids.size, 5, FORMATS["float32"]).reshape(*bad.ids.shape, 5)


def _left_out(values: Bits, bad: BadIds) -> bool:
    """Return whether a gradient is the sum of what the ids in range name: a backward may leave the others out."""
    fmt = FORMATS["float32"]
    inside = bad.inside
    known = exact_of(bad.ids[inside].astype(np.int64), _cotangent(bad)[inside], fmt)
    if values.shape != (bad.vocab, 5) or misses(values, known, fmt, fmt).message:
        return False
    return not values[np.setdiff1d(np.arange(bad.vocab), known.rows)].any()


def _rewritten(
    framework: Framework, ids: tuple[Any, Ids], table: tuple[Any, Bits], call: str
) -> tuple[str, str, tuple[str, ...]] | None:
    """Return what a call that was refused has written into: what it was given, beside plain copies."""
    if not np.array_equal(framework.bits_of(table[0]), table[1]):
        return "weight: got other bits after the error, expected the same", call, ("table-rewritten",)
    if ids[1].dtype.kind in "iu" and not np.array_equal(framework.numpy_of(ids[0]), ids[1]):
        return "token_ids: got other values after the error, expected the same", call, ("ids-rewritten",)
    return None


def _poisoned(
    values: Any, bad: BadIds, verb: str, dtype: str, table: Any, call: str
) -> tuple[str, str, tuple[str, ...]] | None:
    fmt = FORMATS[contract.result_dtype(verb, dtype)]
    inside = bad.inside
    if values.shape != (*bad.ids.shape, table.shape[1]):
        return f"out: got shape {values.shape}, expected rows of NaN", call, ("wrong-shape",)
    if not bit.is_nan(values[~inside], fmt).all():
        hints = hints_of(values, bad, table, verb, dtype)
        return "out: got a row of values for an id out of range, expected NaN", call, hints
    if inside.any():
        answer = contract.exact_answers(bad.ids[inside], table, dtype)[verb]
        if not np.array_equal(values[inside], answer):
            return "out: got other bits beside an id out of range, expected the rows", call, ()
    return None
