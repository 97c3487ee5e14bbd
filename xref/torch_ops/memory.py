"""The memory that a call of torch takes, and which values the device's arithmetic loses: measured, not assumed.

`xref.jax_ops.memory` has the same names; together they are the interface `xref.engine.frameworks.Memory`.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from xref.torch_ops._widen import integer_view

__all__ = ["flushes_subnormals", "peak_extra_bytes", "saturates"]

Call = Callable[[Any, Any], Any]

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler below logs each start and stop to stderr otherwise


def peak_extra_bytes(call: Call, ids: torch.Tensor, table: torch.Tensor, *, alone: bool = True) -> int:
    """Return the most memory that a call held at once beyond its inputs, its output included, in bytes.

    On a CPU every allocation of torch's is counted by its profiler, and what Python and NumPy allocate beside it by
    tracemalloc, which NumPy tells of its arrays; both count exactly, where the resident set of a process depends on
    what its allocator kept of earlier calls. The larger of the two is a lower bound of the truth, so that nobody is
    blamed for what is not there. On a GPU it is the caching allocator's peak.

    `alone` says that no other thread runs meanwhile. Otherwise torch's allocations alone are counted: tracemalloc would
    count those of all threads, and to start and stop it beside them has crashed Python 3.11.
    """
    call(ids, table)  # what is allocated once, such as a library's handle, is not the call's
    if table.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(ids, table)
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    traced: list[int] = []
    activities = [torch.profiler.ProfilerActivity.CPU]
    counted = _traced_memory(traced) if alone else contextlib.nullcontext()
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile, counted:
        call(ids, table)
    return max([*traced, *_running_totals(profile)])


@contextlib.contextmanager
def _traced_memory(peaks: list[int]) -> Iterator[None]:
    """Add to `peaks` the most memory that Python and NumPy held at once within, beyond what they held before."""
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        yield
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        if not running:
            tracemalloc.stop()


def _running_totals(profile: torch.profiler.profile) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    allocations = [event for event in events if event["name"] == "[memory]"]
    total = 0
    for event in sorted(allocations, key=lambda event: (event["ts"], event["args"]["Ev Idx"])):
        total += event["args"]["Bytes"]
        yield total


def flushes_subnormals(device: str) -> bool:
    """Return whether torch takes subnormal float32 sums for zero on this device: tried, not assumed."""
    tiny = torch.full((2, 1), 1e-40, device=device)
    total = torch.zeros(1, 1, device=device).index_add_(0, torch.zeros(2, dtype=torch.int64, device=device), tiny)
    return bool((integer_view(total) == 0).item())


def saturates(device: str) -> bool:
    """Return whether torch's cast to float8_e4m3fn gives 448 for what is too large: tried, not assumed."""
    return bool(torch.full((1,), 1e4, device=device).to(torch.float8_e4m3fn).float().isfinite().item())
