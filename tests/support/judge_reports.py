"""Reports of `xref judge` made by hand."""

from __future__ import annotations

from xref.engine.outcomes import Outcome
from xref.judging.report import CheckVerdict, JudgeReport


def verdict(outcome="pass", check="EMB-1", *, required=True, elements=10, **fields):
    """Return how one check came out."""
    clause, _, condition = check.partition("/")
    return CheckVerdict(
        **{
            "check": check, "clause": clause, "condition": condition, "judgment": "forward_accuracy",
            "what": "forward has the bits of the rows", "required": required, "outcome": Outcome(outcome),
            "cases": 1 if elements else 0, "elements": elements, **fields,
        }
    )  # fmt: skip


def report(*verdicts, **fields):
    """Return the report of these verdicts."""
    return JudgeReport(
        **{
            "xref": "1", "operator": "embedding", "contract_version": 1, "candidate": "it", "framework": "torch",
            "version": "2", "device": "cpu", "device_name": "CPU", "tier": "smoke", "dtypes": ["bfloat16"],
            "out_of_range": "raise", "accumulate": "float32", "verdicts": list(verdicts), "seconds": 1.5, **fields,
        }
    )  # fmt: skip


def report_of(outcome=Outcome.PASS, elements=1, *, required=True, **more):
    """Return the report of one check, EMB-7/padding of `k.py:kernel`."""
    names = ("reason", "problems", "rerun", "explanations", "failed")
    own = {key: more.pop(key) for key in names if key in more}
    found = verdict(outcome, "EMB-7/padding", required=required, elements=elements, **{"cases": 1, **own})
    return report(found, **{"candidate": "k.py:kernel", **more})
