"""Tensors on their way to the host, which need not wait for what is launched after them.

They arrive in pinned memory, which torch keeps for later ones: into ordinary memory a GPU copies forty times slower.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["fetched"]


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
