"""What `xref bench` needs of torch: its own operators to compare with, the golden's, and the time that calls take.

`xref.jax_ops.timing` has the same names; together they are the interface `xref.engine.timing.Timing`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from xref.torch_ops import embedding as golden

__all__ = ["IDS", "Events", "backward_of", "copying", "device_clock", "goldens", "natives", "run"]

Call = Callable[[], Any]
IDS = np.dtype(np.int64)
"""The dtype of ids that torch's own operators take without a conversion."""
_PARTS = 4  # micro-batches that the accumulator is given


def natives() -> dict[str, dict[str, Callable[..., torch.Tensor]]]:
    """Return torch's own operators by direction and name: `(ids, table)`, and `(ids, cotangent, vocab_size)`."""
    return {"forward": {"F.embedding": F.embedding}, "backward": {"F.embedding's backward": _native_backward}}


def _native_backward(ids: torch.Tensor, cotangent: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(cotangent, ids, vocab_size, -1, False)  # noqa: FBT003


def goldens() -> dict[str, dict[str, Callable[..., Any]]]:
    """Return the golden's operators as `natives` does; the names begin with the verb, or with `GradAccumulator`."""
    return {
        "forward": {
            "forward": golden.forward,
            "forward, validate=False": lambda ids, table: golden.forward(ids, table, validate=False),
            "forward_fp32": golden.forward_fp32,
        },
        "backward": {
            "grad_weight": golden.grad_weight,
            "grad_rows": lambda ids, cotangent, vocab_size: golden.grad_rows(ids, cotangent),
            f"GradAccumulator, {_PARTS} parts": _accumulated,
        },
    }


def _accumulated(ids: torch.Tensor, cotangent: torch.Tensor, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    accumulator = golden.GradAccumulator(vocab_size, cotangent.shape[1], device=cotangent.device)
    for part, rows in zip(ids.chunk(_PARTS), cotangent.chunk(_PARTS), strict=True):
        accumulator.add(part, rows)
    return accumulator.result_rows(cotangent.dtype)


def backward_of(call: Callable[[Any, Any], Any], ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> Call:
    """Return the backward alone of `call(ids, table)`: its forward is made here, once."""
    leaf = table.detach().requires_grad_()
    out = call(ids, leaf)
    return lambda: torch.autograd.grad(out, leaf, cotangent, retain_graph=True)[0]


def copying(size: int, device: str) -> Call:
    """Return a copy of `size` bytes from one place of the device's memory to another."""
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def run(call: Call, repeats: int, device: str) -> None:
    """Make the calls back to back, their results given back at once, and return when the last is done."""
    with torch.no_grad():
        for _ in range(repeats):
            call()
        if device == "cuda":
            torch.cuda.synchronize()


def device_clock(device: str) -> Events | None:
    """Return a clock of the device's own; a CPU has none but the host's."""
    return Events() if device == "cuda" else None


class Events:
    """CUDA's events around calls made back to back: the device's time, what it waited for the host in between too."""

    NAME = "events"

    def __init__(self) -> None:
        self._laps: dict[str, list[float]] = {}

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def lap(self, key: str, call: Call, repeats: int) -> None:
        """Make the calls and note what one took."""
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.no_grad():
            begun.record()
            for _ in range(repeats):
                call()
            done.record()
        torch.cuda.synchronize()
        self._laps.setdefault(key, []).append(begun.elapsed_time(done) / 1e3 / repeats)

    def seconds(self) -> dict[str, list[float]]:
        """Return what one call took, by key, lap after lap."""
        return self._laps
