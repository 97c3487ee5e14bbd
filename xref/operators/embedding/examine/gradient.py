"""What is examined of a gradient's sums: those of a candidate within the proven bound, those of a golden exactly."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from xref.operators.embedding.calls.gradient import TRACED, Gradient
from xref.operators.embedding.calls.gradient_batches import GradientBatches, GradientDtypes
from xref.operators.embedding.clauses import VERBS, main_dtypes, result_dtype, verbs_of
from xref.operators.embedding.goldens import ACCUMULATED, BY_ROWS
from xref.operators.embedding.gradient_cases import GradientCase, cases
from xref.operators.embedding.sweeps import gradient as sweep
from xref.spec import Call, Check, Exam, Skip, Tier, check

__all__ = ["coverage", "fixed_cases", "maker", "routes", "specials", "sums", "zero_signs"]

_JUDGMENT = "gradient_accuracy"


def routes(exam: Exam) -> Iterator[tuple[str, str, str]]:
    """Yield each verb whose gradient is asked for, with the dtypes of its cotangents and of the gradient."""
    for dtype in main_dtypes(exam.dtypes) if exam.pinned else exam.dtypes:
        if "backward" in exam.traits.verbs:
            yield "backward", dtype, dtype
            continue
        for verb in verbs_of(dtype):
            if verb in exam.traits.verbs:
                yield verb, result_dtype(verb, dtype), dtype


def maker(exam: Exam, route: tuple[str, str, str], check: str) -> functools.partial[Gradient]:
    """Return what makes the calls of a route for a check; JAX has no 64-bit ids but beside float64."""
    verb, source, result = route
    ids = "int32" if exam.traits.framework == "jax" and source != "float64" else "int64"
    return functools.partial(Gradient, check=check, verb=verb, source=source, result=result, id_dtype=ids)


def fixed_cases(exam: Exam) -> tuple[GradientCase, ...]:
    """Return the contract's cases of the dtypes and the tier that are examined."""
    return cases(exam.tier, dtypes=exam.dtypes)


@check("EMB-8", judgment=_JUDGMENT, text="the sum of each row's cotangents, within the proven bound")
def sums(exam: Exam) -> Iterator[Call | Skip]:
    """Yield first what tells whether there is a gradient, and whether the second call is as the first."""
    for route in routes(exam):
        plain = maker(exam, route, "EMB-10/repeat")().ordinary(exam)
        yield GradientBatches(check="EMB-10/repeat", plain=plain, condition="repeat")
    yield from _of_all_dtypes(exam)
    yield from _calls(exam, "EMB-8")


coverage = Check(id="EMB-9", judgment=_JUDGMENT, text="rows that no id names are +0")


@check("EMB-11", judgment=_JUDGMENT, text="NaN, infinities and overflow")
def specials(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the calls whose cotangents are special."""
    yield from _calls(exam, "EMB-11")


zero_signs = Check(id="EMB-11/zero sign", judgment=_JUDGMENT, text="an exact zero sum is +0", required=False)


def _of_all_dtypes(exam: Exam) -> Iterator[Call]:
    """Yield small calls of several dtypes: float64 beside one other, since JAX has it only where all are 64-bit."""
    by_verb: dict[str, list[Gradient]] = {}
    for route in routes(exam):
        by_verb.setdefault(route[0], []).append(maker(exam, route, "EMB-8")().ordinary(exam))
    for verb, calls in by_verb.items():
        double = [call for call in calls if call.precision == "float64"]
        single = [call for call in calls if call.precision != "float64"]
        for group in (single, [*double, *single[:1]] if double else []):
            if len(group) > 1:
                yield GradientDtypes(check="EMB-8", verb=verb, calls=tuple(group))


def _calls(exam: Exam, check: str) -> Iterator[Call | Skip]:
    made = False
    for call in _fixed(exam) if exam.pinned else _swept(exam):
        if call.accuracy == check:
            made = True
            yield msgspec.structs.replace(call, check=check)
    if not made:
        yield Skip(f"no such case in the {exam.tier} tier")


def _swept(exam: Exam) -> Iterator[Gradient]:
    framework, smoke, main = exam.traits.framework, exam.tier is Tier.SMOKE, main_dtypes(exam.dtypes)
    for route in routes(exam):
        make, dealt = maker(exam, route, "EMB-8"), sweep.Dealt.NONE
        if route[2] in main:
            dealt |= sweep.Dealt.FIRST if route[2] == main[-1] else sweep.Dealt.NONE
            dealt |= sweep.Dealt.SECOND if route[2] == main[0] else sweep.Dealt.NONE
        yield from sweep.sums(make, framework, dealt=dealt, smoke=smoke)
        if exam.traits.traces and route[0] == "forward" and dealt & sweep.Dealt.FIRST and not smoke:
            yield from sweep.sums(functools.partial(make, way=TRACED), framework, dealt=sweep.Dealt.NONE, smoke=True)


def _fixed(exam: Exam) -> Iterator[Gradient]:
    """Yield the contract's cases, in all the forms that a golden has."""
    for case in fixed_cases(exam):
        call = case.call
        yield call
        for verb in (BY_ROWS, ACCUMULATED) if case.forms else ():
            yield msgspec.structs.replace(call, verb=verb)
        for verb in VERBS if case.forms and call.padding_idx is None else ():
            if verb in verbs_of(call.result) and result_dtype(verb, call.result) == call.source:
                yield msgspec.structs.replace(call, verb=verb)
