"""The facts of torch and its arrays: devices, tensors from NumPy and back, their bits, forms and addresses.

`xref.jax_ops.arrays` has the same names; together they are the interface `xref.engine.frameworks.Arrays`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch

from xref.bits import FORMATS
from xref.torch_ops import embedding as golden
from xref.torch_ops._arguments import dtype_name
from xref.torch_ops._host import fetched
from xref.torch_ops._widen import integer_view

__all__ = [
    "CONCURRENT",
    "NAME",
    "accumulator",
    "address_range",
    "bits_of",
    "describe",
    "devices",
    "dtype_of",
    "environment",
    "form_of",
    "golden",
    "numpy_of",
    "overwrite",
    "precision",
    "put",
    "supports",
    "use_one_thread",
    "version",
]

NAME = "torch"
CONCURRENT = False  # whether two threads may call operators at once: its compiler and its memory profiler may not


def version() -> str:
    """Return the framework's version, build tag included."""
    return str(torch.__version__)


def devices() -> tuple[str, ...]:
    """Return the kinds of device that this machine has for torch; ROCm answers to `cuda`, as in torch itself."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def supports(device: str) -> bool:
    """Return whether torch has this kind of device at all, here or elsewhere."""
    return device in ("cpu", "cuda")


def describe(device: str) -> str:
    """Return the device's product name."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def put(array: np.ndarray[Any, Any], dtype: str | None, device: str) -> torch.Tensor:
    """Return a NumPy array as a tensor on the device: same strides, and on a CPU the same memory.

    `dtype` says which table dtype the unsigned integers of `array` mean; None leaves a plain array, such as ids, as
    it is.
    """
    if dtype is not None and array.dtype.itemsize > 1:
        array = array.view(f"i{array.dtype.itemsize}")
    # torch knows no read-only memory: it would take a read-only array over as one that it may write.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if dtype is not None:
        tensor = tensor.view(getattr(torch, dtype))
    return tensor.to(device)


def numpy_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor of integers as a NumPy array; on a CPU it is the same memory."""
    return fetched(tensor.detach())().numpy()


def bits_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor of a table dtype as the unsigned integers of its elements' bits; on a CPU the same memory."""
    return numpy_of(integer_view(_plain(tensor))).view(FORMATS[dtype_name(tensor.dtype)].uint)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's own elements: what a subclass says of itself does not count, and negation is carried out."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(torch.Tensor.detach(tensor), torch.Tensor).resolve_neg()


def form_of(tensor: Any) -> tuple[tuple[int, ...], str, str]:
    """Return shape, dtype name and kind of device, or the type's name where a tensor is expected and none came."""
    if not isinstance(tensor, torch.Tensor):
        return (), type(tensor).__name__, "none"
    return tuple(tensor.shape), dtype_name(tensor.dtype), tensor.device.type


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of the tensor's storage and the one past its last."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def precision(dtype: str) -> contextlib.AbstractContextManager[None]:
    """Return the context in which tables of `dtype` exist: torch needs none."""
    return contextlib.nullcontext()


def overwrite(tensor: torch.Tensor, array: np.ndarray[Any, Any], *, counted: bool) -> bool:
    """Write other contents into a tensor's memory: bits into a table, integers into ids. Return whether that was done.

    `counted`: in a way that autograd's version counter shows; the other way, past torch, exists on a CPU alone.
    """
    view = integer_view(tensor) if tensor.is_floating_point() else tensor
    if counted:
        view.copy_(torch.from_numpy(array.view(view.cpu().numpy().dtype)))
    elif tensor.device.type == "cpu":
        view.numpy()[...] = array.view(view.numpy().dtype)
    else:
        return False
    return True


def use_one_thread() -> None:
    """Keep to the calling thread from here on: in a forked child the other ones are gone."""
    torch.set_num_threads(1)


def dtype_of(name: str) -> torch.dtype:
    """Return the framework's dtype of that name."""
    return getattr(torch, name)


def accumulator(vocab_size: int, hidden: int, device: str, *, padding_idx: int | None = None) -> Any:
    """Return a fresh accumulator of the golden's on the device."""
    return golden.GradAccumulator(vocab_size, hidden, padding_idx=padding_idx, device=device)


def environment() -> dict[str, str]:
    """Return the settings that change what kernels compute or when they differ, by name."""
    return {
        "threads": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "TF32 matrix products": str(torch.backends.cuda.matmul.allow_tf32),
        "CUDA build": str(torch.version.cuda),
        "ROCm build": str(torch.version.hip),
    }
