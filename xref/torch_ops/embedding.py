"""The torch golden of the token embedding: `hidden = weight[token_ids]`, and nothing but a copy of rows.

Why it exists: a kernel is right if it agrees with this module in every bit. So the module is plain: a range check,
`torch.nn.functional.embedding` on int64 ids, and for `forward_fp32` a widening of the gathered rows by integer
operations. The gradient of both is `grad_weight`: the exact sum of each row's cotangents, rounded once. All clauses of
the contract hold on every device that torch has. A GPU gathers while the host waits for the range check: the ids are
clamped for that, and nothing is returned before the answer.

    import xref.torch_ops.embedding as golden
    hidden = golden.forward(token_ids, weight)

It works eagerly, under `torch.func.vmap`, `torch.func.grad` and `torch.compile`. The ids are checked in all of them
(`torch.compile` breaks its graph there, so `fullgraph=True` needs `validate=False` and no gradient).

Not promised: forward-mode differentiation, second derivatives, sparse or quantised tables, speed beyond the framework's
own gather.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from xref import errors
from xref.bits import FloatFormat
from xref.torch_ops import _arguments
from xref.torch_ops._host import fetched, side_stream
from xref.torch_ops._widen import widen_into
from xref.torch_ops.exact_sums.accumulator import GradAccumulator
from xref.torch_ops.exact_sums.gradient import grad_rows, grad_weight

__all__ = ["GradAccumulator", "NativeEmbeddingOp", "forward", "forward_fp32", "grad_rows", "grad_weight"]


def forward(token_ids: torch.Tensor, weight: torch.Tensor, *, validate: bool = True) -> torch.Tensor:
    """Return `weight[token_ids, :]` in the table's dtype: a copy of rows, so no element is rounded (EMB-1).

    Args:
        token_ids: any shape `S`, 0-dimensional and empty included; any integer dtype; on the table's device.
        weight: `[V, H]`, any strides; float64, float32, bfloat16, float16, float8_e4m3fn or float8_e5m2.
        validate: check that every id is in `[0, V)`, which waits for the device once. Without it a bad id does what
            `F.embedding` does: an error of torch's on a CPU, a device-side assert on a GPU.

    Returns:
        `S + (H,)`, the table's dtype and device, in memory of its own.

    Raises:
        IndexError: an id is out of range; the message names how many, the first one's position and value, and `V`.
        TypeError: an argument is not a dense tensor, the ids are not integers, or the table's dtype is not listed.
        ValueError: the table is not two-dimensional, or the ids are on another device.
    """
    _check(token_ids, weight, "forward", widened=False)
    return _embedding(token_ids, weight, None, "forward" if validate else None)


def forward_fp32(token_ids: torch.Tensor, weight: torch.Tensor, *, validate: bool = True) -> torch.Tensor:
    """Return `weight[token_ids, :]` exactly widened to float32: no element is rounded (EMB-2).

    Values keep their value (subnormals become normal), zeros and infinities their sign; a NaN keeps its sign and its
    payload, left-aligned, and is not quieted. The rows are widened after the gather, never the table before it.

    Args:
        token_ids: as in `forward`.
        weight: as in `forward`, except float64.
        validate: as in `forward`.

    Returns:
        `S + (H,)`, float32, on the table's device, in memory of its own.

    Raises:
        IndexError, TypeError, ValueError: as `forward`; and `TypeError` for a float64 table, which would be narrowed.
    """
    fmt = _check(token_ids, weight, "forward_fp32", widened=True)
    narrow = None if fmt.name == "float32" else fmt
    return _embedding(token_ids, weight, narrow, "forward_fp32" if validate else None)


class NativeEmbeddingOp(torch.nn.Module):
    """The golden as a module without state: `op(token_ids, weight)` is `forward`; and `op.forward_fp32`."""

    def forward(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return what `xref.torch_ops.embedding.forward` returns."""
        return forward(token_ids, weight)

    def forward_fp32(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return what `xref.torch_ops.embedding.forward_fp32` returns."""
        return forward_fp32(token_ids, weight)


def _check(token_ids: torch.Tensor, weight: torch.Tensor, call: str, *, widened: bool) -> FloatFormat:
    _arguments.check_token_ids(token_ids, call)
    fmt = _arguments.check_weight(weight, call, widened=widened)
    _arguments.check_same_device(token_ids, weight, call)
    return fmt


def _gather(ids: torch.Tensor, weight: torch.Tensor, narrow: FloatFormat | None) -> torch.Tensor:
    return F.embedding(ids, weight) if narrow is None else _gather_widened(ids, weight, narrow)


def _gather_checked(
    token_ids: torch.Tensor, weight: torch.Tensor, narrow: FloatFormat | None, call: str
) -> torch.Tensor:
    """Gather on a GPU while the host looks at the ids; those out of range read the nearest row.

    Looking first would leave the device idle. Nothing is returned before the host has looked.
    """
    ids = token_ids.to(torch.int64)
    nearest = ids.clamp(0, weight.shape[0] - 1)
    with side_stream(weight.device)():
        on_host = fetched(ids)
    out = _gather(nearest, weight, narrow)
    if not _arguments.in_range(on_host(), weight.shape[0]):
        _arguments.check_range(token_ids, weight.shape[0], call)
        raise errors.UsageError(errors.message("token_ids", "ids that changed during the call", "the same ids", call))
    return out


def _gather_widened(ids: torch.Tensor, weight: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Gather and widen block by block, so that the narrow rows and the temporaries stay small beside the result."""
    hidden = weight.shape[1]
    flat = ids.reshape(-1)
    out = torch.empty((flat.numel(), hidden), dtype=torch.int32, device=weight.device)
    # So many blocks that all temporaries are under a tenth of a large result, each of 2**16 elements at least. bfloat16
    # has but its rows besides, and a GPU would wait for the launches of more blocks; a CPU's caches want them small.
    blocks = 8 if fmt.exponent_bits == 8 and weight.device.type != "cpu" else 64
    step = max(flat.numel() // blocks, 2**16 // max(hidden, 1), 1)
    for block, rows in zip(torch.split(flat, step), torch.split(out, step), strict=True):
        widen_into(rows, F.embedding(block, weight), fmt)
    return out.view(torch.float32).reshape(*ids.shape, hidden)


def _embedding(token_ids: torch.Tensor, weight: torch.Tensor, narrow: FloatFormat | None, call: str | None) -> Any:
    return _Embedding.apply(token_ids, weight, narrow, call)  # type: ignore[no-untyped-call]


class _Embedding(torch.autograd.Function):
    """The gather as one differentiable operator, so that its gradient and its `vmap` are ours to define.

    `narrow` is the table's format where the rows are to be widened, else None; `call` names the public function in
    the range check's message, and None leaves the check out.
    """

    @staticmethod
    def forward(token_ids: torch.Tensor, weight: torch.Tensor, narrow: FloatFormat | None, call: str | None) -> Any:
        if call is not None and weight.is_cuda and weight.shape[0] and not torch.compiler.is_compiling():
            return _gather_checked(token_ids, weight, narrow, call)
        if call is not None:
            _arguments.check_range(token_ids, weight.shape[0], call)
        return _gather(token_ids.to(torch.int64), weight, narrow)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        token_ids, weight, _, _ = inputs
        ctx.save_for_backward(token_ids)
        ctx.vocab_size, ctx.dtype = weight.shape[0], weight.dtype

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[None, torch.Tensor, None, None]:
        (token_ids,) = ctx.saved_tensors
        # The cotangent is summed as it comes: cast to the table's dtype first, it would be rounded once too often.
        gradient = grad_weight(token_ids, grad_outputs[0], ctx.vocab_size, dtype=ctx.dtype, validate=False)
        return None, gradient, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[torch.Tensor, int]:
        token_ids, weight, narrow, call = args
        ids_dim, weight_dim = in_dims[:2]
        if ids_dim is not None:
            token_ids = token_ids.movedim(ids_dim, 0)
        if weight_dim is None:
            return _embedding(token_ids, weight, narrow, call), 0
        # One table per batch entry: gather from each. Stacking them into one table would copy them all.
        tables = weight.movedim(weight_dim, 0)
        ids = token_ids if ids_dim is not None else token_ids.expand(info.batch_size, *token_ids.shape)
        entries = [_embedding(i, w, narrow, call) for i, w in zip(ids, tables, strict=True)]
        if not entries:  # which torch.stack does not take
            dtype = weight.dtype if narrow is None else torch.float32
            return weight.new_empty((0, *ids.shape[1:], tables.shape[-1]), dtype=dtype), 0
        return torch.stack(entries), 0
