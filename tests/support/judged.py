"""Kernels of a test's judged in this process, by a few checks of the embedding's or by checks of the test's own."""

from __future__ import annotations

import dataclasses

from xref.engine.candidate import candidate_of
from xref.engine.local import Local
from xref.judging.judge import Judge
from xref.judging.options import checked
from xref.operators.embedding import OPERATOR

__all__ = ["judged", "only_calls_of"]


def only_calls_of(*names):
    """Return the embedding with the calls of these checks alone: of the others only what any call shows."""
    checks = (each if each.id in names else dataclasses.replace(each, calls=None) for each in OPERATOR.checks)
    return dataclasses.replace(OPERATOR, checks=tuple(checks))


def judged(kernel, operator=OPERATOR, **options):
    """Return the report on a kernel, as `xref.judge` makes it, smoke tier and bfloat16 if not said otherwise."""
    asked = {"framework": "torch", "tier": "smoke", "dtype": "bfloat16", **options}
    chosen = checked(operator, "judge", asked)
    candidate = candidate_of(
        kernel,
        verbs=operator.verbs,
        trial=operator.trial(),
        framework=chosen.framework,
        device=chosen.device,
        name="it",
    )
    judging = Judge(operator, Local(candidate), chosen)
    judging.run()
    return judging.report(in_process=True)
