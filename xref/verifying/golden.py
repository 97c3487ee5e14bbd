"""The goldens as subjects: a framework's reference of an operator on one device, called in any thread."""

from __future__ import annotations

import dataclasses
import importlib
import threading

from xref import errors
from xref.engine import frameworks
from xref.engine.candidate import Candidate
from xref.engine.local import Local
from xref.engine.steps import Replies, Script
from xref.spec import Operator

__all__ = ["DEVICES", "Golden", "chosen", "golden_of", "goldens_of"]

DEVICES = ("auto", "cpu", "cuda", "tpu")
_CALL = "verify"


class Golden:
    """One framework's golden on one device, performed in this process: by an executor for each thread that calls."""

    elsewhere = False

    def __init__(self, candidate: Candidate) -> None:
        self.traits = candidate.traits(golden=True)
        self.concurrent = candidate.framework.arrays.CONCURRENT
        self._candidate, self._threads = candidate, threading.local()

    @property
    def where(self) -> tuple[str, str]:
        """Framework and device, as a verdict names them."""
        return self.traits.framework, self.traits.device

    def perform(self, script: Script) -> Replies:
        """Return the replies to a script; no golden ends the process, so that none needs another one."""
        return self._local().perform(dataclasses.replace(script, hazardous=False))

    def forget(self) -> None:
        """Give back what this thread keeps for later scripts: a call has written into it."""
        self._local().forget()

    def _local(self) -> Local:
        if not hasattr(self._threads, "local"):
            self._threads.local = Local(self._candidate, golden=True, traits=self.traits)
        local: Local = self._threads.local
        return local


def golden_of(operator: Operator, framework: frameworks.Framework, device: str) -> Golden:
    """Return a framework's golden of an operator: its verbs, and those of its gradient if the operator has any."""
    module = importlib.import_module(operator.goldens[framework.name])
    verbs = {verb: getattr(module, verb) for verb in operator.verbs}
    if "goldens" in operator.modules:
        verbs |= operator.module("goldens").verbs_of_gradient(framework)
    return Golden(Candidate(framework.name, framework, device, verbs))


def chosen(name: str, given: str | tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of an option, each once.

    Raises:
        UsageError: one is not allowed.
    """
    given = (given,) if isinstance(given, str) else given
    for value in given:
        if value not in allowed:
            raise errors.UsageError(f"--{name}", repr(value), f"one of {', '.join(allowed)}", _CALL)
    return tuple(dict.fromkeys(given))


def goldens_of(
    operator: Operator, names: str | tuple[str, ...], devices: str | tuple[str, ...]
) -> list[tuple[frameworks.Framework, str]]:
    """Return every framework with every device asked for; `verify` says which.

    Raises:
        MissingFrameworkError: a framework is not installed.
        UsageError: an unknown name, or a device that is not there.
    """
    known = tuple(operator.goldens)
    named = chosen("framework", names, known) or known
    kinds = chosen("device", devices, DEVICES) or ("auto",)
    wanted = [name for name in known if name in named]
    for name in wanted:  # all of them before the first is imported, which takes seconds
        frameworks.check_installed(name, _CALL)
    everyone = [frameworks.load(name, _CALL) for name in wanted]
    found = []
    for loaded in everyone:
        present = frameworks.devices(loaded, _CALL)
        here: dict[str, None] = {}
        for kind in kinds:
            if kind == "auto":
                here |= dict.fromkeys(present)
            elif loaded.arrays.supports(kind) or not any(other.arrays.supports(kind) for other in everyone):
                here[kind] = None
            else:
                here["cpu"] = None
        for kind in here:
            if kind not in present:
                there = f"a device that {loaded.name} has here: {', '.join(present)}"
                raise errors.UsageError("--device", kind, there, _CALL)
            found.append((loaded, kind))
    return found
