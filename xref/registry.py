"""Which kernel serves an operator, for a framework and a kind of device; those of other packages join by entry point.

For each operator, framework and kind of device there is a list of backends, highest `priority` first and by name among
equals. The first that loads serves. The golden, `native`, is in every list with priority 0: last, unless a backend asks
for a place behind it.

    [project.entry-points."xref.kernels"]
    my_kernel = "my_pkg.xref_backend:BACKEND"

`BACKEND` is an `OpBackend`, a list of them, or a function that returns either; the module that holds it is imported by
everybody who asks for a kernel, so what is heavy belongs into `load`. `XREF_BACKEND_EMBEDDING=my_kernel` makes that one
serve, or fail.

A backend that cannot load is never passed over in silence: it is named in a `RuntimeWarning` and in the `Resolution`.
Nothing here says that a kernel is right: that is the judge's to say.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from xref import errors, operators
from xref.engine.frameworks import FRAMEWORKS, installed

__all__ = [
    "DEVICES",
    "FRAMEWORKS",
    "GROUP",
    "REGISTRY",
    "KernelRegistry",
    "Listing",
    "OpBackend",
    "Resolution",
    "Skipped",
    "get_op",
    "installed",
]

DEVICES = ("cuda", "rocm", "tpu", "cpu")
"""Kinds of device. `rocm` is the device that torch calls `cuda` in a build for ROCm: its kernels are others."""
GROUP = "xref.kernels"
"""The entry-point group through which packages offer their backends."""


class OpBackend(msgspec.Struct, frozen=True):
    """A kernel for one operator in one framework, on the kinds of device that it serves.

    Raises:
        UsageError: a field is not what it should be.
    """

    name: str
    op: str
    """The operator, such as `embedding`."""
    framework: str
    """One of `FRAMEWORKS`."""
    devices: tuple[str, ...]
    """Of `DEVICES`."""
    load: Callable[[], object]
    """Returns the kernel, each time one is wanted: an object with `forward` and, if it widens, `forward_fp32`."""
    priority: int = 100
    """Higher serves first; the golden has 0."""

    def __post_init__(self) -> None:
        given: Any = self  # whatever its author wrote
        kinds = given.devices if isinstance(given.devices, tuple) else ()
        for field, fine, expected in (
            ("name", isinstance(given.name, str) and given.name, "a name"),
            ("op", isinstance(given.op, str) and given.op.isidentifier(), "an operator's name"),
            ("framework", given.framework in FRAMEWORKS, f"one of {', '.join(FRAMEWORKS)}"),
            ("devices", kinds and all(kind in DEVICES for kind in kinds), f"a tuple out of {', '.join(DEVICES)}"),
            ("load", callable(given.load), "a function without arguments"),
            ("priority", isinstance(given.priority, int) and not isinstance(given.priority, bool), "an integer"),
        ):
            if not fine:
                raise errors.UsageError(field, repr(getattr(given, field)), expected, "OpBackend")


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `KernelRegistry.backends`: a backend without its loader, or an entry point that offers none."""

    name: str
    origin: str
    """The package it comes from, such as `xref`."""
    op: str = ""
    framework: str = ""
    devices: tuple[str, ...] = ()
    priority: int = 0
    problem: str = ""
    """Why an entry point offers nothing; its other fields are then empty."""


class Skipped(msgspec.Struct, frozen=True):
    """A backend that stood before the one that serves, and why it does not serve."""

    name: str
    origin: str
    reason: str


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Which backend serves an operator, and why."""

    op: str
    framework: str
    device: str
    name: str
    origin: str
    kernel: object
    """What serves, loaded."""
    forced_by: str = ""
    """The environment variable that names it, if one does."""
    skipped: tuple[Skipped, ...] = ()

    @property
    def why(self) -> str:
        """The choice in one line: `native of xref: first that serves torch on cuda; not fast of fast-pkg (...)`."""
        asked = f"serves {self.framework} on {self.device}"
        reason = f"named by {self.forced_by}" if self.forced_by else f"first in priority that {asked}"
        rest = "".join(f"; not {skip.name} of {skip.origin} ({skip.reason})" for skip in self.skipped)
        return f"{self.name} of {self.origin}: {reason}{rest}"


class KernelRegistry:
    """The backends of all operators: the goldens, those registered here and those that installed packages offer.

    Args:
        group: the entry-point group that is read, at first use; None leaves installed packages out.
    """

    def __init__(self, *, group: str | None = GROUP) -> None:
        self._group = group
        self._lock = threading.RLock()
        self._backends: dict[tuple[str, str, str], tuple[OpBackend, str]] = {}
        self._broken: list[Skipped] = []
        self._read = group is None
        for op in operators.names():
            for framework in FRAMEWORKS:
                load = functools.partial(_native, op, framework)
                self.register(OpBackend("native", op, framework, DEVICES, load, 0), origin="xref")

    def register(self, backend: OpBackend, *, priority: int | None = None, origin: str = "this process") -> None:
        """Add a backend; the same one again changes nothing.

        Args:
            backend: the name is free to serve several operators and frameworks, each once.
            priority: its place among the others, if not the backend's own.
            origin: where it comes from, as listings and resolutions tell it.

        Raises:
            UsageError: not an `OpBackend`, or another one of that name is there for this operator and framework.
        """
        if not isinstance(backend, OpBackend):
            raise errors.UsageError("backend", type(backend).__name__, "an OpBackend", "register")
        if priority is not None:
            backend = msgspec.structs.replace(backend, priority=priority)
        key = (backend.op, backend.framework, backend.name)
        with self._lock:
            there, of = self._backends.setdefault(key, (backend, origin))
        if there != backend:
            got = f"a second {backend.name!r} for {backend.op} in {backend.framework}"
            raise errors.UsageError("backend", got, f"another name than that of {of}", "register")

    def backends(self) -> tuple[Listing, ...]:
        """Return all backends by operator, framework and priority, then the entry points that offer none."""
        with self._lock:
            self._read_entry_points()
            listed, broken = sorted(self._backends.values(), key=_place), list(self._broken)
        listed.sort(key=lambda each: (each[0].op, FRAMEWORKS.index(each[0].framework)))  # else as they were
        found = [
            Listing(name=b.name, origin=of, op=b.op, framework=b.framework, devices=b.devices, priority=b.priority)
            for b, of in listed
        ]
        return *found, *(Listing(name=skip.name, origin=skip.origin, problem=skip.reason) for skip in broken)

    def get_op(self, op: str, *, framework: str, device: str) -> object:
        """Return the kernel that serves: an object with `forward` and, if it widens, `forward_fp32`.

        Warns and raises as `resolve`.
        """
        return self._resolve(op, framework, device, "get_op").kernel

    def resolve(self, op: str, *, framework: str, device: str) -> Resolution:
        """Return which backend serves, loaded, and why the ones before it do not.

        Warns:
            RuntimeWarning: a backend before it cannot be loaded.

        Raises:
            MissingFrameworkError: the framework is not installed.
            UsageError: an unknown operator, framework or kind of device; nothing serves; or the backend that the
                environment variable names does not exist, does not serve what is asked for or cannot be loaded.
        """
        return self._resolve(op, framework, device, "resolve")

    def _resolve(self, op: str, framework: str, device: str, call: str) -> Resolution:
        with self._lock:
            self._read_entry_points()
            listed = sorted((each for each in self._backends.values() if each[0].op == op), key=_place)
            ops, skipped = sorted({key[0] for key in self._backends}), list(self._broken)
        for what, value, known in (("op", op, ops), ("framework", framework, FRAMEWORKS), ("device", device, DEVICES)):
            if value not in known:
                raise errors.UsageError(what, repr(value), f"one of {', '.join(known)}", call)
        if not installed(framework):
            raise errors.MissingFrameworkError(framework, call)

        variable = f"XREF_BACKEND_{op.upper()}"
        forced = os.environ.get(variable, "")
        if forced:
            listed, skipped = [_named(forced, listed, skipped, framework, device, variable, call)], []
        for skip in skipped:
            _warn(skip, call)
        for backend, origin in listed:
            if backend.framework != framework:
                continue  # it stands in another list
            if device not in backend.devices:
                skipped.append(Skipped(backend.name, origin, f"serves {', '.join(backend.devices)}"))
                continue
            try:
                kernel = _load(backend)
            except _LoadError as error:
                if forced:
                    got = f"{forced!r} of {origin}, which cannot be loaded ({error})"
                    raise errors.UsageError(variable, got, "a backend that can be", call) from error
                skipped.append(Skipped(backend.name, origin, str(error)))
                _warn(skipped[-1], call)
                continue
            return Resolution(
                op=op,
                framework=framework,
                device=device,
                name=backend.name,
                origin=origin,
                kernel=kernel,
                forced_by=variable if forced else "",
                skipped=tuple(skipped),
            )
        got = "; ".join(f"{skip.name} of {skip.origin} ({skip.reason})" for skip in skipped) or "no backend"
        raise errors.UsageError(op, got, f"a backend that serves {framework} on {device}", call)

    def _read_entry_points(self) -> None:
        """Register what installed packages offer, once; the caller holds the lock."""
        if self._read or self._group is None:
            return
        self._read = True  # before any is loaded: a package may ask for a kernel while it is imported
        try:
            points = sorted(importlib.metadata.entry_points(group=self._group), key=lambda each: (_origin(each), each))
            offers = [(point, _offer(point)) for point in points]
        except BaseException:  # interrupted: the next one who asks reads them all
            self._read = False
            raise
        for point, offer in offers:
            for each in offer:
                try:
                    if isinstance(each, _LoadError):
                        raise each
                    self.register(each, origin=_origin(point))
                except (_LoadError, errors.UsageError) as error:
                    self._broken.append(Skipped(point.name, _origin(point), str(error)))


class _LoadError(Exception):
    """No kernel came of a backend, or no backend of an entry point: the reason, in one line."""


def _warn(skip: Skipped, call: str) -> None:
    where = f"backend {skip.name} of {skip.origin}"
    text = errors.message(where, skip.reason, "it to load; the next one is tried", call)
    warnings.warn(text, RuntimeWarning, stacklevel=4)  # the line that called get_op or resolve


def _place(entry: tuple[OpBackend, str]) -> tuple[int, str]:
    return -entry[0].priority, entry[0].name


def _native(op: str, framework: str) -> object:
    operator = operators.find(op)
    return getattr(importlib.import_module(operator.goldens[framework]), operator.native)()


def _load(backend: OpBackend) -> object:
    try:
        kernel = backend.load()
        forward = getattr(kernel, "forward", None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too
        raise _LoadError(errors.described(error)) from error
    if isinstance(kernel, type):
        raise _LoadError(f"its loader returned the class {kernel.__name__}, not an object of it")
    if not callable(forward):
        raise _LoadError(f"its loader returned an object of type {type(kernel).__name__}, without forward")
    return kernel


def _origin(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value.partition(".")[0]


def _offer(point: importlib.metadata.EntryPoint) -> list[Any]:
    """Return what an entry point offers, or in its place the reason why it cannot."""
    try:
        found = point.load()
        if callable(found):
            found = found()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too
        return [_LoadError(errors.described(error))]
    return list(found) if isinstance(found, list | tuple) else [found]


def _named(
    name: str,
    listed: list[tuple[OpBackend, str]],
    broken: list[Skipped],
    framework: str,
    device: str,
    variable: str,
    call: str,
) -> tuple[OpBackend, str]:
    """Return the backend of that name that serves a framework on a kind of device, or raise."""
    serving = [each for each in listed if each[0].framework == framework and device in each[0].devices]
    for each in serving:
        if each[0].name == name:
            return each
    served = [f"{b.framework} on {', '.join(b.devices)}" for b, _ in listed if b.name == name]
    failed = [skip.reason for skip in broken if skip.name == name]
    got = repr(name)
    if served:
        got += f", which serves {' and '.join(served)}"
    elif failed:
        got += f", which cannot be loaded ({failed[0]})"
    names = ", ".join(each[0].name for each in serving)
    raise errors.UsageError(variable, got, f"one that serves {framework} on {device}: {names}", call)


REGISTRY = KernelRegistry()
"""The registry of this process."""


def get_op(op: str, *, framework: str, device: str) -> object:
    """Return the kernel that serves an operator in this process: `REGISTRY.get_op`."""
    return REGISTRY._resolve(op, framework, device, "get_op").kernel
