"""What is judged: somebody's kernel, whatever its form, brought into one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from xref import errors
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.inputs import make_table
from xref.judge import frameworks
from xref.judge.frameworks import Framework
from xref.judge.subject import described

__all__ = ["Candidate", "candidate_of"]

_CALL = "judge"

Call = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel on one device: its verbs, and its own gradient if it has one."""

    name: str
    framework: Framework
    device: str
    verbs: dict[str, Call]
    """`forward` and `forward_fp32`, those that it has: `(token_ids, weight) -> out`."""
    backward: Callable[[Any, Any, int], Any] | None
    """`(token_ids, cotangent, vocab_size) -> [V, H]`."""


def candidate_of(target: object, *, framework: str | None, device: str, name: str | None = None) -> Candidate:
    """Return the candidate that a target stands for.

    Args:
        target: a function `(token_ids, weight) -> out`, or an object that is called like one; an object with `forward`,
            `forward_fp32` or both; either with its `backward(token_ids, cotangent, vocab_size)` if it has one; or a
            class that is made without arguments.
        framework: `torch` or `jax`; None finds it out by calling the target with arrays of each.
        device: `cpu`, `cuda` or `tpu`.
        name: what reports call it; its own name if None.

    Raises:
        MissingFrameworkError: the framework named, or any, is not installed.
        UsageError: the target is no kernel, the framework or the device is not there, or no framework fits.
    """
    name = name or getattr(target, "__qualname__", None) or type(target).__qualname__
    if inspect.isclass(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:  # its constructor is anybody's code
            expected = "a class that is made without arguments"
            raise errors.UsageError(errors.message(name, described(error), expected, _CALL)) from error
    try:
        found = {part: getattr(target, part, None) for part in (*contract.VERBS, "backward")}
    except (Exception, SystemExit) as error:  # a property may be anything
        expected = "an object whose parts can be read"
        raise errors.UsageError(errors.message(name, described(error), expected, _CALL)) from error
    backward = found.pop("backward")
    verbs = {verb: call for verb, call in found.items() if callable(call)}
    if not verbs and callable(target):
        verbs = {"forward": target}
    if not verbs:
        got, expected = type(target).__name__, "a function, or an object with forward or forward_fp32"
        raise errors.UsageError(errors.message(name, got, expected, _CALL))
    chosen = frameworks.load(framework, _CALL) if framework else _found(name, verbs, device)
    present = frameworks.devices(chosen, _CALL)
    if device not in present:
        there = f"a device that {chosen.NAME} has here: {', '.join(present)}"
        raise errors.UsageError(errors.message("--device", device, there, _CALL))
    return Candidate(name, chosen, device, verbs, backward if callable(backward) else None)


def _found(name: str, verbs: dict[str, Call], device: str) -> Framework:
    """Return the framework whose arrays the verbs take and return."""
    seen, present = [], []
    for installed in [each for each in frameworks.FRAMEWORKS if frameworks.installed(each)]:
        framework = frameworks.load(installed, _CALL)
        here = frameworks.devices(framework, _CALL)
        present.append(f"{installed} has {', '.join(here)}")
        if device not in here:
            continue
        ids = framework.put(np.array([1, 0]), None, device)
        table = framework.put(make_table("patterns", 3, 4, FORMATS["float32"]), "float32", device)
        for call in verbs.values():
            try:
                (shape, dtype, _) = framework.form_of(call(ids, table))
            except (Exception, SystemExit) as error:  # another framework's arrays end in anything
                seen.append(f"{installed} arrays end in {type(error).__name__}")
                continue
            if shape:
                return framework
            seen.append(f"{installed} arrays give a {dtype}")
    if not present:
        raise errors.MissingFrameworkError("torch", _CALL)
    if not seen:
        there = f"a device that is here ({'; '.join(present)})"
        raise errors.UsageError(errors.message("--device", device, there, _CALL))
    expected = "--framework torch or --framework jax"
    raise errors.UsageError(errors.message(name, f"no framework that fits ({'; '.join(seen)})", expected, _CALL))
