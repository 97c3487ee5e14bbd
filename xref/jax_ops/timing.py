"""What `xref bench` needs of JAX: its own operators to compare with, the golden's, and the time that calls take.

`xref.torch_ops.timing` has the same names; together they are the interface `xref.engine.timing.Timing`.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xref.jax_ops import embedding as golden
from xref.jax_ops.arrays import device_of
from xref.jax_ops.modes import gradient

__all__ = ["IDS", "Profile", "backward_of", "busy_seconds", "copying", "device_clock", "goldens", "natives", "run"]

Call = Callable[[], Any]
Span = tuple[float, float]
"""Begin and end, in nanoseconds."""

_LAP = "xref lap "
_LINES = {"/device:GPU:": "Stream", "/device:TPU:": "XLA Ops"}
"""Planes of a profile, and which of their lines show what ran: the others sum the same up once more."""
IDS = np.dtype(np.int32)
"""The dtype of ids that JAX's own operators take without a conversion."""
_PARTS = 4  # micro-batches that the accumulator is given


def natives() -> dict[str, dict[str, Callable[..., Any]]]:
    """Return JAX's own operators by direction and name: `(ids, table)`, and `(ids, cotangent, vocab_size)`."""
    return {
        "forward": {
            "jnp.take, jit": jax.jit(lambda ids, table: jnp.take(table, ids, axis=0)),
            "jnp.take(mode='clip'), jit": jax.jit(lambda ids, table: jnp.take(table, ids, axis=0, mode="clip")),
        },
        "backward": {"jnp.take's gradient, jit": jax.jit(_native_backward, static_argnums=2)},
    }


def _native_backward(ids: jax.Array, cotangent: jax.Array, vocab_size: int) -> jax.Array:
    # Under jit the table is never made: the gradient of a gather needs no element of it.
    table = jnp.zeros((vocab_size, cotangent.shape[1]), cotangent.dtype)
    return jax.vjp(lambda table: jnp.take(table, ids, axis=0), table)[1](cotangent)[0]


def goldens() -> dict[str, dict[str, Callable[..., Any]]]:
    """Return the golden's operators as `natives` does; the names begin with the verb, or with `GradAccumulator`."""
    return {
        "forward": {
            "forward": golden.forward,
            "forward, validate=False": functools.partial(golden.forward, validate=False),
            "forward_fp32": golden.forward_fp32,
        },
        "backward": {
            "grad_weight": golden.grad_weight,
            "grad_weight, jit": jax.jit(golden.grad_weight, static_argnums=2),
            "grad_rows": lambda ids, cotangent, vocab_size: golden.grad_rows(ids, cotangent, vocab_size=vocab_size),
            f"GradAccumulator, {_PARTS} parts": _accumulated,
        },
    }


def _accumulated(ids: jax.Array, cotangent: jax.Array, vocab_size: int) -> Any:
    accumulator = golden.GradAccumulator(vocab_size, cotangent.shape[1])
    step = -(-ids.shape[0] // _PARTS)
    for start in range(0, ids.shape[0], step):
        accumulator.add(ids[start : start + step], cotangent[start : start + step])
    return accumulator.result_rows(cotangent.dtype)


def backward_of(call: Callable[[Any, Any], Any], ids: Any, table: jax.Array, cotangent: jax.Array) -> Call:
    """Return the gradient of `call(ids, table)` under `jit`, which leaves out what it does not need of the forward."""
    return functools.partial(jax.jit(functools.partial(gradient, call)), ids, table, cotangent)


def copying(size: int, device: str) -> Call:
    """Return a copy of `size` bytes from one place of the device's memory to another."""
    with jax.default_device(device_of(device)):
        source, target = jnp.ones(size // 4, jnp.float32), jnp.zeros(size // 4, jnp.float32)
    over = jax.jit(lambda source, target: target.at[:].set(source), donate_argnums=1)

    def copy() -> jax.Array:
        nonlocal target
        target = over(source, target)
        return target

    return copy


def run(call: Call, repeats: int, device: str) -> None:
    """Make the calls back to back, their results given back at once, and return when the last is done.

    On a CPU each is waited for: host and device are the same, and calls on the way would share it.
    """
    for _ in range(repeats - 1):
        result = call()
        if device == "cpu":
            jax.block_until_ready(result)  # type: ignore[no-untyped-call]
        del result
    jax.block_until_ready(call())  # type: ignore[no-untyped-call]


def device_clock(device: str) -> Profile | None:
    """Return a clock of the device's own, where JAX can read its profiles; a CPU has none but the host's."""
    readable = hasattr(jax.profiler, "ProfileData") and hasattr(jax.profiler, "ProfileOptions")
    return Profile(device) if device != "cpu" and readable else None


class Profile:
    """JAX's profiler: the time in which the device ran anything for a call, without what it waited for the host.

    Each lap is marked in the profile. What ran between its marks is its own, and overlapping operations count once. At
    the end of the block the profile is read, which raises where it does not show the laps and what ran in them.
    """

    NAME = "profile"

    def __init__(self, device: str) -> None:
        self._device = device
        self._folder = contextlib.ExitStack()
        self._keys: list[tuple[str, int]] = []
        self._seconds: dict[str, list[float]] = {}

    def __enter__(self) -> Profile:
        with contextlib.ExitStack() as stack:  # gives the folder back if the profiler does not start
            self._traced = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            jax.profiler.start_trace(str(self._traced), profiler_options=_options())
            self._folder = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
            if error is None:
                self._read()
        finally:
            self._folder.close()

    def lap(self, key: str, call: Call, repeats: int) -> None:
        """Make the calls within marks."""
        self._keys.append((key, repeats))
        with jax.profiler.TraceAnnotation(f"{_LAP}{len(self._keys) - 1}"):
            run(call, repeats, self._device)

    def seconds(self) -> dict[str, list[float]]:
        """Return what one call took, by key, lap after lap; nothing before the profile is read."""
        return self._seconds

    def _read(self) -> None:
        [file] = self._traced.rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
        laps = dict(_laps(planes))
        if len(laps) < len(self._keys):
            raise ValueError(f"the profile shows {len(laps)} of {len(self._keys)} laps")
        busy = busy_seconds([laps[lap] for lap in range(len(self._keys))], list(_operations(planes)))
        for (key, repeats), seconds in zip(self._keys, busy, strict=True):
            self._seconds.setdefault(key, []).append(seconds / repeats)


def _options() -> Any:
    """Return what to trace of the host: its marks, and not each function of Python's."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    return options


def _laps(planes: list[Any]) -> Iterator[tuple[int, Span]]:
    for plane in planes:
        if plane.name.startswith("/host:"):
            for line in plane.lines:
                for event in line.events:
                    if event.name.startswith(_LAP):
                        yield int(event.name.removeprefix(_LAP)), (event.start_ns, event.start_ns + event.duration_ns)


def _operations(planes: list[Any]) -> Iterator[Span]:
    for plane in planes:
        for line in plane.lines:
            if any(plane.name.startswith(where) and line.name.startswith(what) for where, what in _LINES.items()):
                for event in line.events:
                    yield event.start_ns, event.start_ns + event.duration_ns


def busy_seconds(laps: list[Span], operations: list[Span]) -> list[float]:
    """Return for how many seconds any operation ran in each lap; laps are in order and do not overlap.

    An operation belongs to the lap in which its middle lies, as the two clocks are microseconds apart.

    Raises:
        ValueError: nothing ran; or a hundredth of it or more lies in no lap, so that the clocks do not fit together.
    """
    begins = [begin for begin, _ in laps]
    busy, reached, lost = [0.0] * len(laps), float("-inf"), 0.0
    for begin, end in sorted(operations):
        lap = bisect.bisect_right(begins, (begin + end) / 2) - 1
        more = max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
        if lap < 0 or (begin + end) / 2 > laps[lap][1]:
            lost += more
        else:
            busy[lap] += more
    if lost >= 0.01 * (sum(busy) + lost):
        raise ValueError(
            f"the profile shows {sum(busy):g} ns of the device's time within the laps and {lost:g} without"
        )
    return [each / 1e9 for each in busy]
