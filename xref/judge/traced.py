"""What a candidate does with ids out of range under a trace, where nothing can be raised (EMB-4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xref import bits as bit
from xref.bits import FORMATS
from xref.inputs import Ids, make_table
from xref.judge.bad_ids import BadIds, hints_of
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.subject import described

__all__ = ["examine_traced"]


def examine_traced(candidate: Candidate, verb: str, call: Callable[[Any, Any], Any], findings: Findings) -> None:
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
    bad = BadIds("traced", ids, 5)
    if values.shape != (8, 33) or not bit.is_nan(values[~inside], fmt).all():
        hints = hints_of(values, bad, table, verb, dtype)
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
