"""The facts of JAX and its arrays: devices, arrays from NumPy and back, their bits, forms and addresses.

`xref.torch_ops.arrays` has the same names; together they are the interface `xref.engine.frameworks.Arrays`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

# Two frameworks share the card here, and JAX would take three quarters of it at its first use.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.experimental
import numpy as np

from xref import bits
from xref.jax_ops import embedding as golden

__all__ = [
    "CONCURRENT",
    "NAME",
    "accumulator",
    "address_range",
    "bits_of",
    "describe",
    "device_of",
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

NAME = "jax"
CONCURRENT = True  # whether two threads may call operators at once: XLA compiles without holding the interpreter

_LARGE = 1 << 22  # bytes; smaller ones take longer to be handed over than to be copied
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
_KINDS = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "rocm": "cuda", "tpu": "tpu"}


def version() -> str:
    """Return the framework's version."""
    return str(jax.__version__)


def devices() -> tuple[str, ...]:
    """Return the kinds of device that this machine has for JAX; a GPU of any maker is `cuda`, as in torch."""
    accelerator = _KINDS.get(jax.default_backend(), jax.default_backend())
    return ("cpu",) if accelerator == "cpu" else ("cpu", accelerator)


def supports(device: str) -> bool:
    """Return whether JAX has this kind of device at all, here or elsewhere."""
    return device in _PLATFORMS


def device_of(kind: str) -> Any:
    """Return JAX's own first device of a kind."""
    return jax.devices(_PLATFORMS[kind])[0]


def describe(device: str) -> str:
    """Return the device's product name."""
    return "CPU" if device == "cpu" else str(device_of(device).device_kind)


def put(array: np.ndarray[Any, Any], dtype: str | None, device: str) -> Any:
    """Return a NumPy array as a JAX array on the device; on a CPU the same memory if dense and aligned to 64 bytes.

    `dtype` says which table dtype the unsigned integers of `array` mean; None leaves a plain array, such as ids, as
    it is. Ids that JAX would narrow (64-bit ones while x64 is off) stay a NumPy array, so that the operator sees them
    whole.
    """
    if dtype is not None:
        return jax.device_put(bits.from_bits(array, dtype), device_of(device))
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return array
    return jax.device_put(array, device_of(device))


def numpy_of(array: Any) -> np.ndarray[Any, Any]:
    """Return an array as a NumPy array; on a CPU it is the same memory.

    A large one on a GPU goes by pinned memory of the host, into which the device copies far faster (256 MiB on an H200:
    6 ms, and 190 into other memory). That is freed at once, and JAX keeps it for the next: to pin it took 130 ms.
    """
    if not isinstance(array, jax.Array) or array.nbytes < _LARGE:
        return np.asarray(array)
    device, *others = array.devices()
    if others or device.platform != "gpu":
        return np.asarray(array)
    pinned = jax.device_put(array, jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host"))
    copy = np.array(pinned)
    pinned.delete()
    return copy


def bits_of(array: Any) -> np.ndarray[Any, Any]:
    """Return an array of a table dtype as the unsigned integers of its elements' bits; on a CPU the same memory."""
    return bits.as_bits(numpy_of(array))


def form_of(array: Any) -> tuple[tuple[int, ...], str, str]:
    """Return shape, dtype name and kind of device, or the type's name where an array is expected and none came."""
    if not isinstance(array, jax.Array):
        return (), type(array).__name__, "none"
    platform = next(iter(array.devices())).platform
    return tuple(array.shape), array.dtype.name, _KINDS.get(platform, platform)


def address_range(array: Any) -> tuple[int, int]:
    """Return the first address of the array's memory and the one past its last."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data, array.ctypes.data + array.nbytes
    return array.unsafe_buffer_pointer(), array.unsafe_buffer_pointer() + array.nbytes


@contextlib.contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Enter the context in which tables of `dtype` exist: float64 needs x64 on, all others run with it off.

    NaNs and infinities are data here, so JAX's own alarms at them are off whatever the environment says.
    """
    # `jax.enable_x64` is the newer name; before JAX 0.8 it was in `jax.experimental`.
    enable_x64: Any = getattr(jax if hasattr(jax, "enable_x64") else jax.experimental, "enable_x64")  # noqa: B009
    with enable_x64(dtype == "float64"), jax.debug_nans(False), jax.debug_infs(False):  # noqa: FBT003
        yield


def overwrite(array: Any, contents: np.ndarray[Any, Any], *, counted: bool) -> bool:
    """Write other contents into a NumPy array and return True; what a JAX array holds cannot be changed: False.

    `contents` are ids, or the bits of a table; nothing counts the changes of a NumPy array.
    """
    if not isinstance(array, np.ndarray):
        return False
    (array if array.dtype.kind in "iu" else bits.as_bits(array))[...] = contents
    return True


def use_one_thread() -> None:
    """Do nothing: JAX is never used in a forked child."""


def dtype_of(name: str) -> Any:
    """Return the framework's dtype of that name."""
    return jax.numpy.dtype(name)


def accumulator(vocab_size: int, hidden: int, device: str, *, padding_idx: int | None = None) -> Any:
    """Return a fresh accumulator of the golden's; its sums are where its cotangents are."""
    return golden.GradAccumulator(vocab_size, hidden, padding_idx=padding_idx)


def environment() -> dict[str, str]:
    """Return the settings that change what kernels compute or when they differ, by name."""
    config: Any = jax.config
    return {
        "jax_enable_x64": str(config.jax_enable_x64),
        "jax_debug_nans (off while verify runs)": str(config.jax_debug_nans),
        "default matmul precision": str(config.jax_default_matmul_precision),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "not set"),
        "XLA_PYTHON_CLIENT_PREALLOCATE (false by xref if not set)": os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"],
    }
