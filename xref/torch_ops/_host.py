"""Tensors copied to the host, and work on a side stream: neither waits for what is launched after it.

Copies arrive in pinned memory, into which a GPU copies far faster (256 MiB on an H200: 5 ms, and 200 into other
memory); torch keeps it for later ones.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["fetched", "join_side_stream", "side_stream"]


def fetched(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begin to copy a tensor to the host; the call returned gives it there.

    On a GPU that call waits until the device has come to this point, and no further.
    """
    if not values.is_cuda:
        on_host = values.cpu()
        return lambda: on_host
    copy, there = values.to("cpu", non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    there.record(torch.cuda.current_stream(values.device))

    def read() -> torch.Tensor:
        there.synchronize()
        return copy

    return read


def side_stream(device: torch.device) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Mark this point of a GPU's work; the call returned enters a side stream that waits for this point alone.

    What is launched there runs beside what is launched here in between, and with priority, for it is short and the host
    waits for it: until then, nothing may free what it reads. What it makes is for the host, or for `join_side_stream`.
    A CPU does all in turn, and so does compiled code.
    """
    if device.type != "cuda" or torch.compiler.is_compiling():
        return contextlib.nullcontext
    here = torch.cuda.Event()  # type: ignore[no-untyped-call]
    here.record(torch.cuda.current_stream(device))

    def context() -> contextlib.AbstractContextManager[Any]:
        stream = _side_stream(device)
        stream.wait_event(here)
        return torch.cuda.stream(stream)

    return context


def join_side_stream(device: torch.device, *tensors: torch.Tensor) -> None:
    """Let what is launched here from now on use tensors that were made on the side stream.

    It waits on the device, for not even an operation that makes the host wait, such as `nonzero`, has ended by then.
    """
    if device.type != "cuda" or torch.compiler.is_compiling():
        return
    here = torch.cuda.current_stream(device)
    here.wait_stream(_side_stream(device))
    for tensor in tensors:
        tensor.record_stream(here)


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
