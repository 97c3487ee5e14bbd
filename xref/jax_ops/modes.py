"""The modes that JAX calls an operator in: transforms, of which every gradient is one, and its gradients.

`xref.torch_ops.modes` has the same names; together they are the interface `xref.engine.frameworks.Modes`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

__all__ = [
    "grad_modes",
    "gradient",
    "gradient_calls",
    "settings",
    "traced",
    "traced_gradient",
    "transforms",
]

Call = Callable[[Any, Any], Any]


def transforms() -> dict[str, Callable[[Call], Call]]:
    """Return the transforms of an operator, by name: each takes a call `(ids, table) -> out` and returns another."""
    return {"jit": _jitted, "vmap": _vmapped, "grad-traced": _grad_traced}


@functools.cache
def _jitted(call: Call) -> Call:
    return jax.jit(call)


@functools.cache
def _vmapped(call: Call) -> Call:
    return jax.vmap(call, in_axes=(0, None))


def _grad_traced(call: Call) -> Call:
    def run(ids: Any, table: Any) -> Any:
        return jax.vjp(lambda leaf: call(ids, leaf), table)[0]

    return run


def grad_modes() -> dict[str, Callable[[Call], Call]]:
    """Return the modes that a gradient, or a training step, calls an operator in: in JAX its transforms."""
    return transforms()


def settings() -> dict[str, Callable[[Call], Call]]:
    """Return the settings and threads that an operator may be called in: none that JAX does not compile in."""
    return {}


def traced(call: Call) -> Call | None:
    """Return `call` with its ids traced, so that it cannot raise on them.

    It is for the caller to keep: `call` may hold a case's arrays, which a cache here would hold for ever.
    """
    return jax.jit(call)


def gradient(call: Call, ids: Any, table: Any, cotangent: Any) -> Any:
    """Return the gradient that `jax.vjp` takes of `call(ids, table)` with respect to the table."""
    return jax.vjp(lambda leaf: call(ids, leaf), table)[1](cotangent)[0]


def gradient_calls() -> dict[str, Callable[..., Any]]:
    """Return other calls for the same as `gradient`: none."""
    return {}


def traced_gradient(call: Call) -> Callable[[Any, Any, Any], Any] | None:
    """Return the gradient of `call` with ids, table and cotangent traced; it is for the caller to keep."""
    return jax.jit(functools.partial(gradient, call))
