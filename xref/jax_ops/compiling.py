"""Programs compiled by JAX and not run: for a device that is here, or for TPUs that are not.

The `libtpu` package holds the TPU's own compiler, which needs no TPU: a topology names the machine to compile for.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import SingleDeviceSharding

from xref.jax_ops import arrays

__all__ = ["TOPOLOGIES", "Compiled", "compile_program", "device_of", "has_tpu_compiler"]

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
"""One of each generation of TPU."""


class Compiled(NamedTuple):
    """What a compiler made of a program."""

    text: str
    temporaries: int
    """Bytes."""
    output: int
    """Bytes."""
    form: tuple[tuple[int, ...], str]
    """Shape and dtype of the output; of several, `()` and `tuple`."""


def has_tpu_compiler() -> bool:
    """Return whether the `libtpu` package is installed."""
    return importlib.util.find_spec("libtpu") is not None


def compile_program(program: Callable[..., Any], inputs: Sequence[tuple[tuple[int, ...], str]], where: str) -> Compiled:
    """Compile a program for inputs of these shapes and dtypes: its parameters, in this order.

    Args:
        program: a function of arrays, which `jax.jit` can trace.
        inputs: shape and dtype of each array.
        where: a kind of device that is here, or a topology of TPUs, such as `v5e:2x2`.

    Raises:
        ValueError: there is no such topology.
        Exception: whatever the program raises while it is traced, or the compiler of it.
    """
    sharding = SingleDeviceSharding(device_of(where))
    struct: Any = jax.ShapeDtypeStruct
    shapes = [struct(shape, dtype, sharding=sharding) for shape, dtype in inputs]
    jitted = jax.jit(program, keep_unused=True)
    out: Any = jax.eval_shape(jitted, *shapes)
    compiled = jitted.lower(*shapes).compile()
    memory = compiled.memory_analysis()
    if memory is None:
        raise ValueError(f"the compiler for {where} tells nothing of memory")
    form = (tuple(out.shape), out.dtype.name) if hasattr(out, "shape") else ((), type(out).__name__)
    return Compiled(compiled.as_text() or "", memory.temp_size_in_bytes, memory.output_size_in_bytes, form)


@functools.cache
def device_of(where: str) -> Any:
    """Return the device, or one that stands for those of a topology.

    Raises:
        ValueError: there is no such topology.
    """
    if arrays.supports(where):
        return arrays.device_of(where)
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=where).devices[0]
    except Exception as error:  # each version of the compiler has its own
        raise ValueError(str(error).strip().partition("\n")[0]) from error
