"""The frameworks as the engine sees them: by name, loaded when asked for, in three modules of their folders."""

# ruff: noqa: D102  (the protocols' methods are described where they are implemented)

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from xref import errors

__all__ = ["FRAMEWORKS", "Arrays", "Framework", "Memory", "Modes", "check_installed", "devices", "installed", "load"]

FRAMEWORKS = ("torch", "jax")

Call = Callable[[Any, Any], Any]


class Arrays(Protocol):
    """The names of `xref.torch_ops.arrays` and `xref.jax_ops.arrays`."""

    NAME: str
    CONCURRENT: bool
    golden: ModuleType

    def version(self) -> str: ...
    def devices(self) -> tuple[str, ...]: ...
    def supports(self, device: str) -> bool: ...
    def describe(self, device: str) -> str: ...
    def put(self, array: np.ndarray[Any, Any], dtype: str | None, device: str) -> Any: ...
    def numpy_of(self, array: Any) -> np.ndarray[Any, Any]: ...
    def bits_of(self, array: Any) -> np.ndarray[Any, Any]: ...
    def form_of(self, array: Any) -> tuple[tuple[int, ...], str, str]: ...
    def address_range(self, array: Any) -> tuple[int, int]: ...
    def precision(self, dtype: str) -> contextlib.AbstractContextManager[Any]: ...
    def overwrite(self, array: Any, contents: np.ndarray[Any, Any], *, counted: bool) -> bool: ...
    def use_one_thread(self) -> None: ...
    def dtype_of(self, name: str) -> Any: ...
    def accumulator(self, vocab_size: int, hidden: int, device: str, *, padding_idx: int | None = None) -> Any: ...
    def environment(self) -> dict[str, str]: ...


class Modes(Protocol):
    """The names of `xref.torch_ops.modes` and `xref.jax_ops.modes`."""

    def transforms(self) -> dict[str, Callable[[Call], Call]]: ...
    def grad_modes(self) -> dict[str, Callable[[Call], Call]]: ...
    def settings(self) -> dict[str, Callable[[Call], Call]]: ...
    def traced(self, call: Call) -> Call | None: ...
    def gradient(self, call: Call, ids: Any, table: Any, cotangent: Any) -> Any: ...
    def gradient_calls(self) -> dict[str, Callable[..., Any]]: ...
    def traced_gradient(self, call: Call) -> Callable[[Any, Any, Any], Any] | None: ...


class Memory(Protocol):
    """The names of `xref.torch_ops.memory` and `xref.jax_ops.memory`."""

    def peak_extra_bytes(self, call: Call, ids: Any, table: Any, *, alone: bool = True) -> int: ...
    def flushes_subnormals(self, device: str) -> bool: ...
    def saturates(self, device: str) -> bool: ...


@dataclasses.dataclass(frozen=True)
class Framework:
    """One framework's modules."""

    name: str
    arrays: Arrays
    modes: Modes
    memory: Memory


def installed(framework: str) -> bool:
    """Return whether the framework is installed, without importing it."""
    try:
        return importlib.util.find_spec(framework) is not None
    except (ImportError, ValueError):  # it is blocked, or something else stands in its place
        return False


def check_installed(name: str, call: str = "") -> None:
    """Raise unless a framework of that name exists and is installed, without importing it.

    Raises:
        MissingFrameworkError: it is not installed; the message has the line that installs it.
        UsageError: there is no framework of that name.
    """
    if name not in FRAMEWORKS:
        raise errors.UsageError("framework", name, f"one of {', '.join(FRAMEWORKS)}", call)
    if not installed(name):
        raise errors.MissingFrameworkError(name, call)


def load(name: str, call: str = "") -> Framework:
    """Return the framework, importing it.

    Raises:
        MissingFrameworkError: it is not installed; the message has the line that installs it.
        UsageError: there is no framework of that name, or it is installed and cannot be imported.
    """
    check_installed(name, call)
    try:
        return _loaded(name)
    except Exception as error:  # a framework without its libraries raises OSError, RuntimeError and others too
        raise errors.UsageError(name, f"an import error ({error})", "it to import", call) from error


@functools.cache
def _loaded(name: str) -> Framework:
    parts: dict[str, Any] = {
        part: importlib.import_module(f"xref.{name}_ops.{part}") for part in ("arrays", "modes", "memory")
    }
    return Framework(name, **parts)


def devices(framework: Framework, call: str = "") -> tuple[str, ...]:
    """Return the kinds of device that this machine has for a framework.

    Raises:
        UsageError: the framework cannot tell, such as JAX where `JAX_PLATFORMS` names what is not there.
    """
    try:
        return framework.arrays.devices()
    except Exception as error:  # each framework and version has its own
        got = f"an error ({error})"
        raise errors.UsageError(f"{framework.name} devices", got, "a list of them", call) from error
