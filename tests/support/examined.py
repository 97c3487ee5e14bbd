"""A kernel of a test's, examined by checks of the embedding's in this process."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

from xref.engine.candidate import candidate_of
from xref.engine.examine import Examination
from xref.engine.local import Local
from xref.operators.embedding.clauses import VERBS
from xref.spec import Check, Exam, Tier

__all__ = ["Beside", "examination", "examined"]


class Beside(Local):
    """A subject whose hazardous scripts are performed here too: of kernels that end no process."""

    def perform(self, script):
        return super().perform(dataclasses.replace(script, hazardous=False))


def examination(kernel, *checks, framework="torch", local=Beside, golden=False, follow_up=lambda *_: (), **how):
    """Return the examination of a kernel by checks, not yet run; `how` are fields of `Exam`."""
    verbs = kernel if isinstance(kernel, dict) else None
    candidate = candidate_of(
        SimpleNamespace(**verbs) if verbs else kernel,
        verbs=(*VERBS, *(name for name in verbs or () if name not in VERBS)),
        trial={},
        framework=framework,
        device="cpu",
        name="it",
    )
    subject = local(candidate, golden=golden)
    standing = [
        Check(id=clause, judgment="conduct", text="") for clause in ("EMB-1", "EMB-2", "EMB-3", "EMB-5", "EMB-6")
    ]
    named = {check.id for check in checks}
    operator = SimpleNamespace(
        checks=[*checks, *(check for check in standing if check.id not in named)], follow_up=follow_up
    )
    fields = {"tier": Tier.SMOKE, "dtypes": ("bfloat16",), **how}
    return Examination(operator, Exam(traits=subject.traits, **fields), subject)


def examined(kernel, *checks, **how):
    """Return what checks find of a kernel, by check."""
    found = examination(kernel, *checks, **how)
    found.run(checks)
    return found.findings
