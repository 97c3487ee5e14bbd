"""What the judge needs of torch: devices, arrays in and out, ways of calling, and the memory that a call takes.

`xref.jax_ops.framework` has the same names; together they are the interface `xref.judge.frameworks.Framework`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler below logs each start and stop to stderr otherwise

import numpy as np
import torch

from xref import errors
from xref.bits import FORMATS
from xref.torch_ops import embedding as golden
from xref.torch_ops._arguments import dtype_name
from xref.torch_ops._host import fetched
from xref.torch_ops._widen import integer_view

__all__ = [
    "CONCURRENT",
    "NAME",
    "accumulator",
    "bits_of",
    "describe",
    "devices",
    "dtype_of",
    "flushes_subnormals",
    "form_of",
    "golden",
    "gradient",
    "gradient_modes",
    "gradient_ways",
    "memory_of",
    "modes",
    "numpy_of",
    "overwrite",
    "peak_extra_bytes",
    "precision",
    "put",
    "saturates",
    "settings",
    "supports",
    "surroundings",
    "traced",
    "traced_gradient",
    "use_one_thread",
    "version",
]

NAME = "torch"
CONCURRENT = False  # whether two threads may call operators at once: its compiler and its memory profiler may not
Call = Callable[[Any, Any], Any]


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


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first address of the tensor's storage and the one past its last."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def precision(dtype: str) -> contextlib.AbstractContextManager[None]:
    """Return the context in which tables of `dtype` exist: torch needs none."""
    return contextlib.nullcontext()


def modes() -> dict[str, Callable[[Call], Call]]:
    """Return the ways of calling an operator, by name: each takes `(ids, table) -> out` and returns the like."""
    return {"vmap": _vmapped, "grad-traced": _grad_traced, "compile": _compiled}


def gradient_modes() -> dict[str, Callable[[Call], Call]]:
    """Return the ways of calling an operator that differ in whether a gradient is recorded."""
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


def surroundings() -> dict[str, Callable[[Call], Call]]:
    """Return the threads and settings that an operator may be called in: none changes what it must give."""
    return {
        "another thread": _in_another_thread,
        "one thread of its own": _within(lambda: _threads(1)),
        "five threads of its own": _within(lambda: _threads(5)),
        "deterministic algorithms": _within(_deterministic),
        "default dtype float64": _or_refused(_within(lambda: _default_dtype(torch.float64))),
        "default dtype bfloat16": _or_refused(_within(lambda: _default_dtype(torch.bfloat16))),
    }


def _within(context: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[[Call], Call]:
    def mode(call: Call) -> Call:
        def run(ids: Any, table: Any) -> Any:
            with context():
                return call(ids, table)

        return run

    return mode


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


def _of_inference_tensors(call: Call) -> Call:
    def run(ids: Any, table: Any) -> Any:
        with torch.inference_mode():  # as servers load their weights: such tensors have no version counter
            return call(ids.clone(), integer_view(table).clone().view(table.dtype))

    return run


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


def traced(call: Call) -> Call | None:
    """Return `call` with its ids traced, so that it cannot raise on them; torch never does so: None."""
    return None


def traced_gradient(call: Call) -> Callable[[Any, Any, Any], Any] | None:
    """Return the gradient of `call` with everything traced; torch never does so: None."""
    return None


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


def gradient(call: Call, ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    """Return the gradient that autograd takes of `call(ids, table)` with respect to the table.

    Raises:
        NoGradientError: the output requires none although the table does.
    """
    leaf = table.detach().requires_grad_()
    out = call(ids, leaf)
    if not out.requires_grad:
        got, expected = "an output that requires no gradient", "one that autograd connects with the table"
        raise errors.NoGradientError(errors.message("gradient", got, expected, "backward"))
    out.backward(cotangent)
    if leaf.grad is None:
        raise errors.bad_type("gradient", "none", "a tensor", "backward")
    return leaf.grad


def gradient_ways() -> dict[str, Callable[..., torch.Tensor]]:
    """Return other ways than `gradient` to ask for the same, by name: `(call, ids, table, cotangent) -> gradient`."""
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


def _grad_of_changed_ids(call: Call, ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a call whose ids become others before the backward, which autograd may refuse."""
    leaf, changed = table.detach().requires_grad_(), ids.clone()
    out = call(changed, leaf)
    changed.copy_(ids.flip(0))
    try:
        return torch.autograd.grad(out, leaf, cotangent)[0]
    except RuntimeError as error:  # a tensor saved for the backward has been changed
        raise errors.RefusedError(str(error)) from error


def _grad_again(call: Call, ids: Any, table: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    leaf = table.detach().requires_grad_()
    out = call(ids, leaf)
    torch.autograd.grad(out, leaf, cotangent, retain_graph=True)
    return torch.autograd.grad(out, leaf, cotangent)[0]


def flushes_subnormals(device: str) -> bool:
    """Return whether torch takes subnormal float32 sums for zero on this device: tried, not assumed."""
    tiny = torch.full((2, 1), 1e-40, device=device)
    total = torch.zeros(1, 1, device=device).index_add_(0, torch.zeros(2, dtype=torch.int64, device=device), tiny)
    return bool((integer_view(total) == 0).item())


def saturates(device: str) -> bool:
    """Return whether torch's cast to float8_e4m3fn gives 448 for what is too large: tried, not assumed."""
    return bool(torch.full((1,), 1e4, device=device).to(torch.float8_e4m3fn).float().isfinite().item())


def use_one_thread() -> None:
    """Keep to the calling thread from here on: in a forked child the other ones are gone."""
    torch.set_num_threads(1)


def dtype_of(name: str) -> torch.dtype:
    """Return the framework's dtype of that name."""
    return getattr(torch, name)


def accumulator(vocab_size: int, hidden: int, device: str, *, padding_idx: int | None = None) -> Any:
    """Return a fresh accumulator of the golden's on the device."""
    return golden.GradAccumulator(vocab_size, hidden, padding_idx=padding_idx, device=device)


def settings() -> dict[str, str]:
    """Return the settings that change what kernels compute or when they differ, by name."""
    return {
        "threads": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "TF32 matrix products": str(torch.backends.cuda.matmul.allow_tf32),
        "CUDA build": str(torch.version.cuda),
        "ROCm build": str(torch.version.hip),
    }
