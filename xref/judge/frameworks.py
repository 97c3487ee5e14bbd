"""The frameworks as the judge sees them: by name, loaded when asked for, through their folders' `framework` modules."""

# ruff: noqa: D102  (the protocol's methods are described where they are implemented)

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from xref import errors
from xref.registry import FRAMEWORKS, installed

__all__ = ["FRAMEWORKS", "Framework", "check_installed", "devices", "installed", "load"]

Call = Callable[[Any, Any], Any]


class Framework(Protocol):
    """The names of `xref.torch_ops.framework` and `xref.jax_ops.framework`; their docstrings say what each gives."""

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
    def memory_of(self, array: Any) -> tuple[int, int]: ...
    def precision(self, dtype: str) -> contextlib.AbstractContextManager[Any]: ...
    def modes(self) -> dict[str, Callable[[Call], Call]]: ...
    def gradient_modes(self) -> dict[str, Callable[[Call], Call]]: ...
    def surroundings(self) -> dict[str, Callable[[Call], Call]]: ...
    def overwrite(self, array: Any, contents: np.ndarray[Any, Any], *, counted: bool) -> bool: ...
    def traced(self, call: Call) -> Call | None: ...
    def peak_extra_bytes(self, call: Call, ids: Any, table: Any, *, alone: bool = True) -> int: ...
    def traced_gradient(self, call: Call) -> Callable[[Any, Any, Any], Any] | None: ...
    def gradient(self, call: Call, ids: Any, table: Any, cotangent: Any) -> Any: ...
    def gradient_ways(self) -> dict[str, Callable[..., Any]]: ...
    def flushes_subnormals(self, device: str) -> bool: ...
    def saturates(self, device: str) -> bool: ...
    def use_one_thread(self) -> None: ...
    def dtype_of(self, name: str) -> Any: ...
    def accumulator(self, vocab_size: int, hidden: int, device: str, *, padding_idx: int | None = None) -> Any: ...
    def settings(self) -> dict[str, str]: ...


def check_installed(name: str, call: str) -> None:
    """Raise unless a framework of that name exists and is installed, without importing it.

    Raises:
        MissingFrameworkError: it is not installed; the message has the line that installs it.
        UsageError: there is no framework of that name.
    """
    if name not in FRAMEWORKS:
        raise errors.UsageError(errors.message("framework", name, f"one of {', '.join(FRAMEWORKS)}", call))
    if not installed(name):
        raise errors.MissingFrameworkError(name, call)


def load(name: str, call: str) -> Framework:
    """Return the framework's module, importing the framework.

    Raises:
        MissingFrameworkError: it is not installed; the message has the line that installs it.
        UsageError: there is no framework of that name, or it is installed and cannot be imported.
    """
    check_installed(name, call)
    try:
        return cast(Framework, importlib.import_module(f"xref.{name}_ops.framework"))
    except Exception as error:  # a framework without its libraries raises OSError, RuntimeError and others too
        raise errors.UsageError(errors.message(name, f"an import error ({error})", "it to import", call)) from error


def devices(framework: Framework, call: str) -> tuple[str, ...]:
    """Return the kinds of device that this machine has for a framework.

    Raises:
        UsageError: the framework cannot tell, such as JAX where `JAX_PLATFORMS` names what is not there.
    """
    try:
        return framework.devices()
    except Exception as error:  # each framework and version has its own
        got = f"an error ({error})"
        raise errors.UsageError(errors.message(f"{framework.NAME} devices", got, "a list of them", call)) from error
