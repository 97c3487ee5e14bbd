"""The memory that a call of JAX takes, and which values the device's arithmetic loses: measured, not assumed.

`xref.torch_ops.memory` has the same names; together they are the interface `xref.engine.frameworks.Memory`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from xref.jax_ops.arrays import bits_of, put

__all__ = ["flushes_subnormals", "peak_extra_bytes", "saturates"]

Call = Callable[[Any, Any], Any]


def peak_extra_bytes(call: Call, ids: Any, table: Any, *, alone: bool = True) -> int:
    """Return the most memory that a call holds at once beyond its inputs, its output included, in bytes.

    It is what XLA planned for the compiled program: temporaries and output. Whether other threads run does not matter.
    """
    analysis: Any = jax.jit(call).lower(ids, table).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)


@functools.cache
def flushes_subnormals(device: str) -> bool:
    """Return whether JAX takes subnormal float32 sums for zero on this device: tried, not assumed."""
    tiny = put(np.full((2, 1), 71362, np.uint32), "float32", device)  # 1e-40
    total = jax.jit(lambda x: jax.numpy.zeros((1, 1), x.dtype).at[np.zeros(2, np.int32)].add(x))(tiny)
    return int(bits_of(total)[0, 0]) == 0


def saturates(device: str) -> bool:
    """Return whether JAX's cast to float8_e4m3fn gives 448 for what is too large: tried, not assumed."""
    large = put(np.full(1, 0x461C4000, np.uint32), "float32", device)  # 1e4
    return int(bits_of(jax.jit(lambda x: x.astype("float8_e4m3fn"))(large))[0]) & 0x7F != 0x7F
