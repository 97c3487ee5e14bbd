"""Reports of `xref judge` made by hand."""

from __future__ import annotations

from xref.judge.judged import Judged, JudgeReport
from xref.judge.verdict import Outcome


def report_of(outcome=Outcome.PASS, elements=1, *, required=True, **more):
    verdict = Judged(
        check="EMB-7/padding",
        clause="EMB-7",
        condition="padding",
        judgment="forward_invariance",
        what="with padding",
        required=required,
        outcome=outcome,
        cases=1,
        elements=elements,
        **{key: more.pop(key) for key in ("reason", "problems", "rerun", "explanations", "failed") if key in more},
    )
    fields = {"accumulate": "float32", "out_of_range": "raise", **more}
    return JudgeReport(
        xref="1",
        operator="embedding",
        contract_version=1,
        candidate="k.py:kernel",
        framework="torch",
        version="2",
        device="cpu",
        device_name="CPU",
        tier="smoke",
        dtypes=["bfloat16"],
        verdicts=[verdict],
        seconds=0.1,
        **fields,
    )
