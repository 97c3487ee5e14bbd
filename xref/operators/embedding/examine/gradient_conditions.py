"""What is examined of a gradient's invariance: the same bits, whatever surrounds a token or a call."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from xref.operators.embedding.calls.gradient import TRACED, Gradient
from xref.operators.embedding.calls.gradient_batches import Condition, GradientBatches
from xref.operators.embedding.calls.gradient_history import GradientHistory
from xref.operators.embedding.clauses import main_dtypes
from xref.operators.embedding.examine.gradient import fixed_cases, maker, routes
from xref.operators.embedding.sweeps.gradient import layouts
from xref.spec import Call, Exam, Skip, Tier, check

__all__ = ["history", "layout", "padding", "permuted", "repeat", "settings", "split"]

_check = functools.partial(check, judgment="gradient_invariance", against="plain call")
_NONE = Skip("no table dtype that it is tried on: not float8, and with JAX bfloat16 and float32 alone")


@_check("EMB-10/repeat", text="the same bits, run after run")
def repeat(exam: Exam) -> Iterator[Call | Skip]:
    """Yield repeated calls, of long batches too."""
    yield from _batches(exam, "repeat")
    if exam.tier is not Tier.SMOKE and exam.traits.framework == "jax" and not exam.pinned:
        for route in _tried(exam):
            if route[1] == route[2]:  # on a shape that is compiled already
                plain = maker(exam, route, "EMB-10/repeat")(vocab=31, hidden=2, shape=(4097,))
                yield GradientBatches(check="EMB-10/repeat", plain=plain, condition="repeat")


@_check("EMB-10/layout", text="in any shape and strides of ids and cotangents")
def layout(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the same tokens in other shapes and strides."""
    yield from _batches(exam, "layout")
    if exam.tier is not Tier.SMOKE and exam.traits.framework != "jax":
        for route in routes(exam):
            yield from layouts(maker(exam, route, "EMB-10/layout"))


@_check("EMB-10/padding", text="with padding of zero cotangent")
def padding(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the same tokens among padding."""
    yield from _batches(exam, "padding")


@_check("EMB-10/history", text="whatever was asked for before: other ids, cotangents and tables")
def history(exam: Exam) -> Iterator[Call | Skip]:
    """Yield calls one after another."""
    made = False
    for route in _tried(exam, all_dtypes=False):
        made = True
        yield GradientHistory(check="EMB-10/history", plain=_whole(exam, route, "EMB-10/history"))
    if not made:
        yield _NONE


@_check("EMB-10/settings", text="in any thread, setting and way of asking, within the bound")
def settings(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the same calls in other threads and settings, and asked for in other ways."""
    traits = exam.traits
    if not traits.settings and not traits.gradient_calls:
        yield Skip(f"{traits.framework} has no such settings")
    elif not any(_tried(exam, all_dtypes=False)):
        yield _NONE
    for route in _tried(exam, all_dtypes=False):
        own = route[0] == "backward"
        varied = [{"mode": mode} for mode in (*traits.settings, *(traits.grad_modes if own else ()))]
        if not traits.settings and own:
            varied = []  # where all modes trace, they are transforms of the forward
        varied += [] if own else [{"way": way} for way in traits.gradient_calls]
        for changed in varied:
            plain = _whole(exam, route, "EMB-10/settings")
            for size in ({}, {"vocab": 8, "hidden": 8}):
                yield msgspec.structs.replace(plain, **changed, **size)
    for case in fixed_cases(exam) if exam.pinned and traits.traces else ():
        if case.conditions:
            yield msgspec.structs.replace(case.call, check="EMB-10/settings", way=TRACED)


@_check("EMB-10/permuted", text="in any order of the tokens", required=False)
def permuted(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the same tokens in other orders."""
    yield from _batches(exam, "permuted")


@_check("EMB-10/split", text="summed in parts, and the parts added", required=False)
def split(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the same tokens in parts."""
    yield from _batches(exam, "split")


def _tried(exam: Exam, *, all_dtypes: bool = True) -> Iterator[tuple[str, str, str]]:
    """Yield the routes whose surroundings are changed: few where every shape is compiled anew."""
    jax, smoke = exam.traits.framework == "jax", exam.tier is Tier.SMOKE
    for route in routes(exam):
        main = route[2] in main_dtypes(exam.dtypes)
        if route[2].startswith("float8") or (jax and not main) or (jax and smoke and route[1] != route[2]):
            continue
        if main or (all_dtypes or not smoke):
            yield route


def _batches(exam: Exam, condition: Condition) -> Iterator[Call | Skip]:
    name, made = f"EMB-10/{condition}", False
    for plain in _plain_calls(exam, condition):
        made = True
        yield GradientBatches(check=name, plain=msgspec.structs.replace(plain, check=name), condition=condition)
    if not made:
        yield _NONE


def _plain_calls(exam: Exam, condition: str) -> Iterator[Gradient]:
    """Yield the calls that a condition is tried on; with JAX on a shape that is compiled already, if that will do."""
    if exam.pinned:
        yield from (case.call for case in fixed_cases(exam) if case.conditions)
        return
    for route in _tried(exam):
        make = maker(exam, route, f"EMB-10/{condition}")
        if exam.traits.framework == "jax":
            tokens = 128 if condition == "padding" else 256
            yield make(values="cancelling", vocab=256, shape=(tokens,))
            continue
        yield make(values="cancelling", vocab=40)
        if exam.tier is not Tier.SMOKE:
            yield make(vocab=50, hidden=64, shape=(1000,))
            yield make(vocab=31, hidden=4, shape=(4097,))


def _whole(exam: Exam, route: tuple[str, str, str], check: str) -> Gradient:
    """Return a call of small whole numbers, whose sums are exact in any order."""
    jax = exam.traits.framework == "jax"
    size = {"vocab": 256, "hidden": 8, "shape": (256,)} if jax else {"vocab": 40, "hidden": 4, "shape": (33,)}
    return maker(exam, route, check)(values="whole", **size)
