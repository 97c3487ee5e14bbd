"""The modes that torch calls an operator in: transforms, gradient modes, threads and settings, and its gradients.

`xref.jax_ops.modes` has the same names; together they are the interface `xref.engine.frameworks.Modes`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xref import errors
from xref.torch_ops._widen import integer_view

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
    return {"vmap": _vmapped, "grad-traced": _grad_traced, "compile": _compiled}


def _vmapped(call: Call) -> Call:
    return torch.func.vmap(call, in_dims=(0, None))


def _grad_traced(call: Call) -> Call:
    def run(ids: Any, table: Any) -> Any:
        return torch.func.vjp(lambda leaf: call(ids, leaf), table)[0]

    return run


def _compiled(call: Call) -> Call:
    def run(ids: Any, table: Any) -> Any:
        # Traced anew for every table, or Dynamo gives up on one that has seen many dtypes. The trace is
        # run as it is: generating code from it would need a C++ compiler here.
        torch.compiler.reset()
        return torch.compile(call, backend="eager")(ids, table)

    return run


def grad_modes() -> dict[str, Callable[[Call], Call]]:
    """Return the modes, by name as in `transforms`, that differ in whether a gradient is recorded."""
    return {
        "no_grad": _within(torch.no_grad),
        "inference_mode": _within(torch.inference_mode),
        "inference tensors": _of_inference_tensors,
        "requires_grad": lambda call: lambda ids, table: call(ids, table.detach().requires_grad_()),
        "a parameter": lambda call: lambda ids, table: call(ids, torch.nn.Parameter(table.detach())),
        "a frozen parameter": lambda call: (
            lambda ids, table: call(ids, torch.nn.Parameter(table.detach(), requires_grad=False))
        ),
    }


def _within(context: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[[Call], Call]:
    def mode(call: Call) -> Call:
        def run(ids: Any, table: Any) -> Any:
            with context():
                return call(ids, table)

        return run

    return mode


def _of_inference_tensors(call: Call) -> Call:
    def run(ids: Any, table: Any) -> Any:
        with torch.inference_mode():  # as servers load their weights: such tensors have no version counter
            return call(ids.clone(), integer_view(table).clone().view(table.dtype))

    return run


def settings() -> dict[str, Callable[[Call], Call]]:
    """Return the threads and settings, by name as in `transforms`, in which an operator must give the same bits."""
    return {
        "another thread": _in_another_thread,
        "one thread of its own": _within(lambda: _threads(1)),
        "five threads of its own": _within(lambda: _threads(5)),
        "deterministic algorithms": _within(_deterministic),
        "default dtype float64": _or_refused(_within(lambda: _default_dtype(torch.float64))),
        "default dtype bfloat16": _or_refused(_within(lambda: _default_dtype(torch.bfloat16))),
    }


def _or_refused(mode: Callable[[Call], Call]) -> Callable[[Call], Call]:
    """Return a mode that an operator may refuse: its error becomes a `RefusedError`, for no bits are wrong then."""

    def refusable(call: Call) -> Call:
        def run(ids: Any, table: Any) -> Any:
            try:
                return mode(call)(ids, table)
            except Exception as error:
                raise errors.RefusedError(str(error)) from error

        return run

    return refusable


def _in_another_thread(call: Call) -> Call:
    def run(ids: Any, table: Any) -> Any:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(call, ids, table).result()

    return run


@contextlib.contextmanager
def _setting(read: Callable[[], Any], write: Callable[[Any], None], value: Any) -> Iterator[None]:
    """Give one of torch's settings another value within."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def _threads(count: int) -> contextlib.AbstractContextManager[None]:
    return _setting(torch.get_num_threads, torch.set_num_threads, count)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Turn deterministic algorithms on; an operator that has none is only warned of, and may still be right."""
    read, write = torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    with _setting(read, write, "warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _default_dtype(dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    return _setting(torch.get_default_dtype, torch.set_default_dtype, dtype)


def traced(call: Call) -> Call | None:
    """Return `call` with its ids traced, so that it cannot raise on them; torch never does so: None."""
    return None


def traced_gradient(call: Call) -> Callable[[Any, Any, Any], Any] | None:
    """Return the gradient of `call` with everything traced; torch never does so: None."""
    return None


def gradient(call: Call, ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient that autograd takes of `call(ids, table)` with respect to the table; None if that gets none.

    Raises:
        NoGradientError: the output requires none although the table does.
    """
    leaf = table.detach().requires_grad_()
    out = call(ids, leaf)
    if not out.requires_grad:
        got, expected = "an output that requires no gradient", "one that autograd connects with the table"
        raise errors.NoGradientError(errors.message("gradient", got, expected, "backward"))
    out.backward(cotangent)
    return leaf.grad


def gradient_calls() -> dict[str, Callable[..., torch.Tensor]]:
    """Return other calls for the same as `gradient`, by name: `(call, ids, table, cotangent) -> gradient`."""
    return {
        "torch.autograd.grad": _grad,
        "a second time through one graph": _grad_again,
        "a table in transposed memory": lambda call, ids, table, cotangent: _grad(
            call, ids, integer_view(table.T.contiguous()).T.view(table.dtype), cotangent
        ),
        "ids that change after the forward": _grad_of_changed_ids,
    }


def _grad(call: Call, ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    leaf = table.detach().requires_grad_()
    return torch.autograd.grad(call(ids, leaf), leaf, cotangent)[0]


def _grad_again(call: Call, ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    leaf = table.detach().requires_grad_()
    out = call(ids, leaf)
    torch.autograd.grad(out, leaf, cotangent, retain_graph=True)
    return torch.autograd.grad(out, leaf, cotangent)[0]


def _grad_of_changed_ids(call: Call, ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a call whose ids become others before the backward, which autograd may refuse."""
    leaf, changed = table.detach().requires_grad_(), ids.clone()
    out = call(changed, leaf)
    changed.copy_(ids.flip(0))
    try:
        return torch.autograd.grad(out, leaf, cotangent)[0]
    except RuntimeError as error:  # a tensor saved for the backward has been changed
        raise errors.RefusedError(str(error)) from error
