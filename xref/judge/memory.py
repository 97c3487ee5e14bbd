"""The memory that a candidate takes beside its output (EMB-12)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.inputs import make_table
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.conditions import transposed
from xref.judge.subject import FIXED_OVERHEAD, described, main_dtypes
from xref.spec import Tier

__all__ = ["examine_memory"]


def examine_memory(candidate: Candidate, tier: Tier, dtypes: tuple[str, ...], findings: dict[str, Findings]) -> None:
    """Measure the peak extra memory of a call whose table is so large that a copy of it cannot hide (EMB-12).

    Whether a kernel makes a table dense that is not is graded alone: many do, and their users' tables are dense.
    """
    main = main_dtypes(dtypes)
    # JAX compiles a program for each.
    thorough = tier is not Tier.SMOKE and candidate.framework.NAME != "jax"
    for dtype in dtypes if thorough else main:
        for verb in candidate.verbs:
            if verb in contract.verbs_of(dtype):
                for table in ("dense", "transposed", "requires_grad") if thorough and dtype in main else ("dense",):
                    check = "EMB-12/strided" if table == "transposed" else "EMB-12"
                    _measured(candidate, verb, dtype, table, findings[check])
    if not thorough:
        why = "not in the smoke tier" if tier is Tier.SMOKE else f"{candidate.framework.NAME} has dense arrays alone"
        findings["EMB-12/strided"].skipped.append(why)


def _measured(candidate: Candidate, verb: str, dtype: str, how: str, findings: Findings) -> None:
    """Measure one call; `how` the table is: `dense`, `transposed` in memory, or one that `requires_grad`."""
    framework = candidate.framework
    ids = np.arange(0, 151936, 2374, dtype=np.int32 if framework.NAME == "jax" else np.int64)
    hidden = 1024 // FORMATS[dtype].width
    table = make_table("hashed", 151936, hidden, FORMATS[dtype])
    lies = "" if how == "dense" else f" {how}"
    where = f"{candidate.name}.{verb}, {dtype} table of 151936 x {hidden}{lies}, {ids.size} ids"
    output = ids.size * hidden * FORMATS[contract.result_dtype(verb, dtype)].width // 8
    limit = int(1.2 * output) + FIXED_OVERHEAD
    with framework.precision(dtype):
        place = transposed if how == "transposed" else np.copy
        given, laid = framework.put(ids, None, candidate.device), framework.put(place(table), dtype, candidate.device)
        # The first call, which warms up, gets another table: what is kept of one must not make the next look free.
        tables = itertools.chain([framework.put(place(table), dtype, candidate.device)], itertools.repeat(laid))
        warmed = framework.NAME == "torch"
        run = candidate.verbs[verb]
        if how == "requires_grad":
            run = framework.gradient_modes()[how](run)

        def call(ids: Any, table: Any) -> Any:
            return run(ids, next(tables) if warmed else table)

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
