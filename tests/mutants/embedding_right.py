"""Embedding kernels that are right and unusual: the judge must pass each of them, and the mutants are built on them.

A kernel is a function `(token_ids, weight) -> out`, or a class whose objects have `forward` and perhaps `forward_fp32`
and `backward(token_ids, cotangent, vocab_size)`. Each sums its gradient in float32 (float64 for float64) or better and
rounds it once; the order of the sum is its own affair.

Not promised: bfloat16 under a trace of JAX's on x86 CPUs with AVX512-BF16 where V is 1 or the ids are uint8 or uint16.
XLA copies in float32 there, which flushes subnormals and quiets NaNs, whatever a kernel says.
"""

from __future__ import annotations

import functools

import numpy as np
from mutants.registry import rights

from xref import exact
from xref.bits import FORMATS

# A machine without one of the frameworks collects these kernels too, and runs none of them.
try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None
try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError:
    jax = jnp = lax = None

__all__ = ["RIGHT_JAX", "RIGHT_TORCH"]

RIGHT_TORCH, torch_right = rights("torch")
RIGHT_JAX, jax_right = rights("jax")

_Function = torch.autograd.Function if torch else object
_Module = torch.nn.Module if torch else object
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@functools.cache
def widening(dtype: str) -> np.ndarray:
    """The float32 bits of every pattern of a dtype of at most 16 bits."""
    fmt = FORMATS[dtype]
    return exact.widen(np.arange(1 << fmt.width, dtype=fmt.uint), fmt)


# Torch: what the kernels share


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def ints(elements):
    """A tensor's bits as integers, in the same memory."""
    return elements.detach().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[elements.itemsize])


def checked(token_ids, vocab_size):
    """The ids as int64, in a shape of their own."""
    if token_ids.dtype.is_floating_point or token_ids.dtype.is_complex or token_ids.dtype == torch.bool:
        raise TypeError(f"token_ids: got {token_ids.dtype}")
    ids = token_ids.long()
    if ((ids < 0) | (ids >= vocab_size)).any():
        raise IndexError(f"token_ids: got an id outside [0, {vocab_size})")
    return ids


def wide(elements):
    """The dtype that a gradient is summed in."""
    return torch.float64 if elements.dtype == torch.float64 else torch.float32


def rounded(sums, dtype):
    """The sums rounded once; every NaN is the canonical one, and so is what float8_e4m3fn cannot hold."""
    found = sums.to(dtype)
    nan = sums.isnan() | (sums.abs() > 464) if dtype == torch.float8_e4m3fn else sums.isnan()
    ints(found).masked_fill_(nan, FORMATS[name_of(dtype)].nan)
    return found


def placed(sums, rows, vocab_size, dtype):
    """A gradient of zeros with the sums, rounded once, in some of its rows."""
    grad = torch.zeros((vocab_size, sums.shape[1]), dtype=dtype, device=sums.device)
    ints(grad)[rows] = ints(rounded(sums, dtype))
    return grad


def summed(ids, cotangent, vocab_size, dtype):
    """The gradient: float32 sums in token order."""
    rows, inverse = torch.unique(ids.reshape(-1).long(), return_inverse=True)
    values = cotangent.reshape(ids.numel(), cotangent.shape[-1]).to(wide(cotangent))
    sums = torch.zeros((rows.numel(), values.shape[1]), dtype=values.dtype, device=values.device)
    return placed(sums.index_add_(0, inverse, values), rows, vocab_size, dtype)


class Joined(_Function):
    """A gather and a gradient as one operator of autograd's."""

    @staticmethod
    def forward(token_ids, weight, gather, gradient):
        return gather(token_ids, weight)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.vocab_size, ctx.dtype, ctx.gradient = inputs[1].shape[0], inputs[1].dtype, inputs[3]

    @staticmethod
    def backward(ctx, cotangent):
        return None, ctx.gradient(*ctx.saved_tensors, cotangent, ctx.vocab_size, ctx.dtype), None, None


def differentiable(gather, token_ids, weight, gradient=summed):
    return Joined.apply(token_ids, weight, gather, gradient)


def rows_of(token_ids, weight):
    return F.embedding(checked(token_ids, weight.shape[0]), weight)


def widened_rows(token_ids, weight):
    if weight.dtype == torch.float64:
        raise TypeError("weight: got float64")
    rows = rows_of(token_ids, weight)
    if weight.dtype == torch.float32:
        return rows
    table = torch.from_numpy(widening(name_of(weight.dtype)).view(np.int32)).to(weight.device)
    return table[ints(rows).long() & (table.numel() - 1)].view(torch.float32)


def torch_gather(token_ids, weight):
    return differentiable(rows_of, token_ids, weight)


class TorchKernel:
    """The plain kernel as an object with all three verbs."""

    def forward(self, token_ids, weight):
        return differentiable(rows_of, token_ids, weight)

    def forward_fp32(self, token_ids, weight):
        return differentiable(widened_rows, token_ids, weight)

    def backward(self, token_ids, cotangent, vocab_size):
        return summed(checked(token_ids, vocab_size), cotangent, vocab_size, cotangent.dtype)


# Torch: functions, whose gradient is autograd's


@torch_right()
def torch_plain(token_ids, weight):
    return torch_gather(token_ids, weight)


@torch_right(no_gradient=_FLOAT8)
def torch_index_select(token_ids, weight):
    # Autograd's own gradient: sums of 16-bit tables are taken in float32.
    flat = checked(token_ids, weight.shape[0]).reshape(-1)
    return weight.index_select(0, flat).reshape(*token_ids.shape, weight.shape[1])


@torch_right()
def torch_integers_selected(token_ids, weight):
    def gather(token_ids, weight):
        flat = checked(token_ids, weight.shape[0]).reshape(-1)
        rows = ints(weight).index_select(0, flat).view(weight.dtype)
        return rows.reshape(*token_ids.shape, weight.shape[1])

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_columns_first_in_memory(token_ids, weight):
    def gather(token_ids, weight):
        rows = rows_of(token_ids.reshape(-1), weight)
        lying = torch.empty((weight.shape[1], rows.shape[0]), dtype=rows.dtype, device=rows.device)
        return lying.copy_(rows.t()).t().unflatten(0, token_ids.shape) if token_ids.dim() else rows[0]

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_two_shards(token_ids, weight):
    def gather(token_ids, weight):
        ids, half = checked(token_ids, weight.shape[0]), weight.shape[0] // 2
        out = torch.zeros((*ids.shape, weight.shape[1]), dtype=ints(weight).dtype, device=weight.device)
        for start, shard in ((0, weight[:half]), (half, weight[half:])):
            local = ids - start  # a copy: looks like a rewriting of the ids, and is none
            foreign = (local < 0) | (local >= shard.shape[0])
            local.masked_fill_(foreign, 0)
            if shard.shape[0]:
                out |= ints(F.embedding(local, shard)).masked_fill(foreign.unsqueeze(-1), 0)
        return out.view(weight.dtype)

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_chunks_of_seven(token_ids, weight):
    def gather(token_ids, weight):
        chunks = [rows_of(chunk, weight) for chunk in token_ids.reshape(-1).split(7)]
        return torch.cat([ints(rows) for rows in chunks]).view(weight.dtype).reshape(*token_ids.shape, -1)

    return differentiable(gather, token_ids, weight) if token_ids.numel() else torch_gather(token_ids, weight)


@torch_right()
def torch_each_row_once(token_ids, weight):
    def gather(token_ids, weight):
        rows, inverse = torch.unique(checked(token_ids, weight.shape[0]), return_inverse=True)
        return ints(F.embedding(rows, weight))[inverse].view(weight.dtype)

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_in_order_of_ids(token_ids, weight):
    def gather(token_ids, weight):
        order = checked(token_ids, weight.shape[0]).reshape(-1).sort(stable=True)
        out = torch.empty((token_ids.numel(), weight.shape[1]), dtype=weight.dtype, device=weight.device)
        ints(out)[order.indices] = ints(F.embedding(order.values, weight))
        return out.reshape(*token_ids.shape, weight.shape[1])

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_rows_stacked(token_ids, weight):
    def gather(token_ids, weight):
        flat = checked(token_ids, weight.shape[0]).reshape(-1).tolist()
        rows = torch.stack([ints(weight)[row] for row in flat]) if flat else ints(weight[:0].clone())
        return rows.view(weight.dtype).reshape(*token_ids.shape, weight.shape[1])

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_rows_copied_one_by_one(token_ids, weight):
    def gather(token_ids, weight):
        out = weight.new_empty((*token_ids.shape, weight.shape[1]))
        rows = checked(token_ids, weight.shape[0]).reshape(-1).tolist()
        for target, row in zip(out.view(-1, max(weight.shape[1], 1)), rows, strict=True):
            target.copy_(weight[row])
        return out

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_flat_offsets(token_ids, weight):
    def gather(token_ids, weight):
        hidden = weight.shape[1]
        columns = torch.arange(hidden, device=weight.device)
        offsets = checked(token_ids, weight.shape[0]).unsqueeze(-1) * hidden + columns
        return ints(weight).take(offsets).view(weight.dtype)

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_gathered_along_rows(token_ids, weight):
    def gather(token_ids, weight):
        index = checked(token_ids, weight.shape[0]).reshape(-1, 1).expand(-1, weight.shape[1])
        return ints(weight).gather(0, index).view(weight.dtype).reshape(*token_ids.shape, weight.shape[1])

    return differentiable(gather, token_ids, weight)


@torch_right()
def torch_written_into_a_fresh_buffer(token_ids, weight):
    def gather(token_ids, weight):
        flat = checked(token_ids, weight.shape[0]).reshape(-1)
        out = torch.empty((flat.numel(), weight.shape[1]), dtype=weight.dtype, device=weight.device)
        torch.index_select(ints(weight), 0, flat, out=ints(out))
        return out.reshape(*token_ids.shape, weight.shape[1])

    return differentiable(gather, token_ids, weight)


# Torch: objects with a gradient of their own


@torch_right()
class TorchThreeVerbs(TorchKernel):
    pass


@torch_right()
class TorchModule(_Module):
    def forward(self, token_ids, weight):
        return torch_gather(token_ids, weight)

    def forward_fp32(self, token_ids, weight):
        return differentiable(widened_rows, token_ids, weight)


@torch_right()
class TorchSortedSegments(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        order = checked(token_ids, vocab_size).reshape(-1).sort(stable=True)
        rows, lengths = order.values.unique_consecutive(return_counts=True)
        values = cotangent.to(wide(cotangent)).reshape(token_ids.numel(), cotangent.shape[-1])[order.indices]
        sums = torch.segment_reduce(values, "sum", lengths=lengths, axis=0) if rows.numel() else values
        return placed(sums, rows, vocab_size, cotangent.dtype)


@torch_right()
class TorchFloat64Sums(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        rows, inverse = torch.unique(checked(token_ids, vocab_size).reshape(-1), return_inverse=True)
        values = cotangent.to(torch.float64).reshape(token_ids.numel(), cotangent.shape[-1])
        sums = torch.zeros((rows.numel(), values.shape[1]), dtype=torch.float64, device=values.device)
        sums.index_add_(0, inverse, values)
        if cotangent.dtype in (torch.float64, torch.float32):
            return placed(sums, rows, vocab_size, cotangent.dtype)
        # To 16 bits torch goes by float32: towards zero first, and an odd last bit for what is lost, rounds once.
        single = sums.float()
        single = torch.where(single.double().abs() > sums.abs(), torch.nextafter(single, single * 0), single)
        odd = (single.double() != sums) & single.isfinite()
        single = (single.view(torch.int32) | odd.int()).view(torch.float32)
        return placed(single, rows, vocab_size, cotangent.dtype)


@torch_right()
class TorchExactGradient(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        from xref.torch_ops import embedding as golden

        return golden.grad_weight(token_ids, cotangent, vocab_size)


@torch_right()
class TorchOneFloat32Path(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        if cotangent.dtype in (torch.float64, torch.float32):
            return super().backward(token_ids, cotangent, vocab_size)
        return rounded(self.backward(token_ids, cotangent.float(), vocab_size), cotangent.dtype)


@torch_right()
class TorchTokenAfterToken(TorchKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        sums = {}
        values = cotangent.to(wide(cotangent)).reshape(token_ids.numel(), cotangent.shape[-1])
        for row, value in zip(checked(token_ids, vocab_size).reshape(-1).tolist(), values, strict=True):
            sums[row] = sums[row] + value if row in sums else value
        return placed(torch.stack([*sums.values()]) if sums else values, [*sums], vocab_size, cotangent.dtype)


@torch_right()
class TorchThroughNumPy:
    def forward(self, token_ids, weight):
        ids = checked(token_ids, weight.shape[0]).cpu().numpy()
        rows = ints(weight).cpu().numpy()[ids]  # np.take would make a transposed table dense
        return torch.from_numpy(np.asarray(rows)).view(weight.dtype).to(weight.device)

    def backward(self, token_ids, cotangent, vocab_size):
        rows, inverse = np.unique(checked(token_ids, vocab_size).cpu().numpy(), return_inverse=True)
        values = cotangent.to(wide(cotangent)).cpu().numpy().reshape(inverse.size, cotangent.shape[-1])
        sums = np.zeros((rows.size, values.shape[1]), values.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(sums, inverse.reshape(-1), values)
        sums, rows = (torch.from_numpy(array).to(cotangent.device) for array in (sums, rows))
        return placed(sums, rows, vocab_size, cotangent.dtype)


# JAX: what the kernels share


def jax_checked(token_ids, vocab_size):
    """The ids in the dtype that JAX indexes with; traced ones cannot be checked."""
    if not jnp.issubdtype(token_ids.dtype, jnp.integer):
        raise TypeError(f"token_ids: got {token_ids.dtype}")
    if isinstance(token_ids, jax.core.Tracer):
        return token_ids.astype(jnp.int64 if token_ids.dtype.itemsize == 8 else jnp.int32)
    ids = np.asarray(token_ids)
    if ((ids < 0) | (ids >= vocab_size)).any():
        raise IndexError(f"token_ids: got an id outside [0, {vocab_size})")
    return jnp.asarray(ids.astype(np.int32))


def uint_of(dtype):
    return jnp.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")


def jax_ints(elements):
    return lax.bitcast_convert_type(elements, uint_of(elements.dtype))


def jax_wide(dtype):
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def jax_taken(ids, weight):
    """Rows by their bits."""
    return lax.bitcast_convert_type(jnp.take(jax_ints(weight), ids, axis=0, mode="clip"), weight.dtype)


def jax_rounded(sums, dtype):
    """The sums rounded once; every NaN is the canonical one, and so is what float8_e4m3fn cannot hold."""
    nan = jnp.isnan(sums) | (jnp.abs(sums) > 464) if dtype == jnp.float8_e4m3fn else jnp.isnan(sums)
    return jnp.where(nan, jnp.nan, sums).astype(dtype)


def jax_values(ids, cotangent):
    """The cotangents, token by token, in the dtype that they are summed in."""
    return cotangent.reshape(ids.size, cotangent.shape[-1]).astype(jax_wide(cotangent.dtype))


def jax_summed(ids, cotangent, vocab_size, dtype):
    """The gradient: float32 sums, rounded once."""
    return jax_rounded(jax.ops.segment_sum(jax_values(ids, cotangent), ids.reshape(-1), vocab_size), dtype)


def is_traced(*arrays):
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def poisoned(ids, rows, vocab_size):
    """The rows, but NaN where an id that was traced, and could not be refused, names none."""
    # A mask by arithmetic: a choice by a truth value XLA may make in floats, which changes the bits of good rows.
    elements = jax_ints(rows)
    mask = ((ids | (max(vocab_size, 1) - 1 - ids)) >> (8 * ids.dtype.itemsize - 1))[..., None].astype(elements.dtype)
    nan = elements.dtype.type(FORMATS[rows.dtype.name].nan)
    return lax.bitcast_convert_type((elements & ~mask) | (mask & nan), rows.dtype)


def jax_differentiable(gather, token_ids, weight, gradient=jax_summed):
    """A gather of checked ids with a gradient, jitted."""
    ids = jax_checked(token_ids, weight.shape[0])
    if is_traced(token_ids, weight):
        return _jitted(gather, gradient, is_traced(token_ids))(ids, weight)
    # Integers come out, and are called floats in a program of their own: within one XLA may copy in floats.
    elements = _jitted_bits(gather)(ids, weight)
    same = elements.dtype.itemsize == weight.dtype.itemsize
    return lax.bitcast_convert_type(elements, weight.dtype if same else jnp.float32)


@functools.cache
def _jitted_bits(gather):
    return jax.jit(lambda ids, weight: jax_ints(gather(ids, weight)))


@functools.cache
def _jitted(gather, gradient, traced):
    @jax.custom_vjp
    def kernel(ids, weight):
        rows = gather(ids, weight)
        return poisoned(ids, rows, weight.shape[0]) if traced else rows

    def forward(ids, weight):
        return kernel(ids, weight), (ids, jnp.empty((weight.shape[0], 0), weight.dtype))

    def backward(kept, cotangent):
        ids, like = kept
        return None, gradient(ids, cotangent, like.shape[0], like.dtype)

    kernel.defvjp(forward, backward)
    return jax.jit(kernel)


def jax_widened(ids, weight):
    rows = jax_ints(jax_taken(ids, weight))
    if weight.dtype != jnp.float32:
        rows = jnp.take(widening(weight.dtype.name), rows.astype(jnp.int32), axis=0, mode="clip")
    return lax.bitcast_convert_type(rows, jnp.float32)


def jax_gather(token_ids, weight):
    return jax_differentiable(jax_taken, token_ids, weight)


class JaxKernel:
    """The plain kernel as an object with all three verbs."""

    def forward(self, token_ids, weight):
        return jax_gather(token_ids, weight)

    def forward_fp32(self, token_ids, weight):
        if weight.dtype == jnp.float64:
            raise TypeError("weight: got float64")
        return jax_differentiable(jax_widened, token_ids, weight)

    def backward(self, token_ids, cotangent, vocab_size):
        ids = jax_checked(token_ids, vocab_size)
        return _jitted_sum(jax_summed)(ids, cotangent, vocab_size, cotangent.dtype)


@functools.cache
def _jitted_sum(gradient):
    return jax.jit(gradient, static_argnums=(2, 3))


# JAX: functions, whose gradient is that of `jax.vjp`


@jax_right()
def jax_plain(token_ids, weight):
    return jax_gather(token_ids, weight)


def _sliced(ids, weight):
    if not ids.size:
        return jax_taken(ids, weight)
    elements = jax_ints(weight)
    rows = jax.vmap(lambda row: lax.dynamic_index_in_dim(elements, row, keepdims=False))(ids.reshape(-1))
    return lax.bitcast_convert_type(rows, weight.dtype).reshape(*ids.shape, weight.shape[1])


@jax_right()
def jax_slices(token_ids, weight):
    return jax_differentiable(_sliced, token_ids, weight)


def _in_the_loop(ids, weight):
    """The same, such that XLA cannot move what is made of the table out of a loop: there it would be a copy of it."""
    return lax.optimization_barrier((ids, weight))


def _looped(ids, weight):
    if not ids.size:
        return jax_taken(ids, weight)

    def row_of(row):
        row, table = _in_the_loop(row, weight)
        return lax.dynamic_index_in_dim(jax_ints(table), row, keepdims=False)

    rows = lax.map(row_of, ids.reshape(-1))
    return lax.bitcast_convert_type(rows, weight.dtype).reshape(*ids.shape, weight.shape[1])


@jax_right()
def jax_one_row_after_another(token_ids, weight):
    return jax_differentiable(_looped, token_ids, weight)


def _sharded(ids, weight):
    elements, half = jax_ints(weight), weight.shape[0] // 2
    out = jnp.zeros((*ids.shape, weight.shape[1]), elements.dtype)
    for start, shard in ((0, elements[:half]), (half, elements[half:])):
        local = ids - start
        inside = (local >= 0) & (local < shard.shape[0])
        rows = jnp.take(shard, local, axis=0, mode="clip") if shard.shape[0] else jnp.zeros_like(out)
        out |= rows & (0 - inside[..., None].astype(elements.dtype))
    return lax.bitcast_convert_type(out, weight.dtype)


@jax_right()
def jax_two_shards(token_ids, weight):
    return jax_differentiable(_sharded, token_ids, weight)


def _chunked(ids, weight):
    if not ids.size:
        return jax_taken(ids, weight)
    chunks = jnp.pad(ids.reshape(-1), (0, -ids.size % 7)).reshape(-1, 7)
    rows = lax.map(lambda chunk: jax_ints(jax_taken(*_in_the_loop(chunk, weight))), chunks)
    rows = rows.reshape(chunks.size, weight.shape[1])
    return lax.bitcast_convert_type(rows[: ids.size], weight.dtype).reshape(*ids.shape, weight.shape[1])


@jax_right()
def jax_chunks_of_seven(token_ids, weight):
    return jax_differentiable(_chunked, token_ids, weight)


def _counted(ids, vocab_size):
    """The ids in one dimension, `vocab_size` for those that name no row: traced ones could not be refused."""
    flat = ids.reshape(-1)
    return jnp.where((flat < 0) | (flat >= vocab_size), vocab_size, flat)


def _on_the_host(ids, cotangent, vocab_size, dtype):
    def add(ids, values):
        sums = np.zeros((vocab_size + 1, values.shape[1]), values.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(sums, np.asarray(ids), np.asarray(values))
        return sums[:-1]

    values = jax_values(ids, cotangent)
    like = jax.ShapeDtypeStruct((vocab_size, values.shape[1]), values.dtype)
    return jax_rounded(jax.pure_callback(add, like, _counted(ids, vocab_size), values), dtype)


@jax_right()
def jax_summed_on_the_host(token_ids, weight):
    return jax_differentiable(jax_taken, token_ids, weight, _on_the_host)


def _in_sorted_order(ids, cotangent, vocab_size, dtype):
    flat = _counted(ids, vocab_size)
    order = jnp.argsort(flat, stable=True)
    values = jax_values(ids, cotangent)[order]
    sums = jnp.zeros((vocab_size, values.shape[1]), values.dtype)
    sums = sums.at[flat[order]].add(values, indices_are_sorted=True, mode="drop")
    return jax_rounded(sums, dtype)


@jax_right()
def jax_scattered_in_sorted_order(token_ids, weight):
    return jax_differentiable(jax_taken, token_ids, weight, _in_sorted_order)


def _token_after_token(ids, cotangent, vocab_size, dtype):
    values = jax_values(ids, cotangent)
    sums = jnp.zeros((vocab_size, values.shape[1]), values.dtype)
    if not ids.size:
        return sums.astype(dtype)
    flat = _counted(ids, vocab_size)
    add = lambda n, sums: sums.at[flat[n]].add(values[n], mode="drop")  # noqa: E731
    return lax.fori_loop(0, ids.size, add, sums).astype(dtype)


@jax_right()
def jax_token_after_token(token_ids, weight):
    return jax_differentiable(jax_taken, token_ids, weight, _token_after_token)


# JAX: objects with a gradient of their own


@jax_right()
class JaxThreeVerbs(JaxKernel):
    pass


@jax_right()
class JaxClippedTake(JaxKernel):
    """The floats themselves are gathered; `clip` is the mode that changes no bit of them."""

    def forward(self, token_ids, weight):
        if weight.shape[0] == 1:  # which XLA broadcasts, in floats
            return jax_gather(token_ids, weight)
        ids = jax_checked(token_ids, weight.shape[0])
        rows = _clipped_take()(weight, ids)
        return poisoned(ids, rows, weight.shape[0]) if is_traced(token_ids) else rows


@functools.cache
def _clipped_take():
    return jax.jit(lambda weight, ids: jnp.take(weight, ids, axis=0, mode="clip"))


@jax_right()
class JaxGatherOfLax(JaxKernel):
    def forward(self, token_ids, weight):
        ids = jax_checked(token_ids, weight.shape[0])
        axes = lax.GatherDimensionNumbers((ids.ndim,), collapsed_slice_dims=(0,), start_index_map=(0,))
        rows = lax.gather(jax_ints(weight), ids[..., None], axes, (1, weight.shape[1]), mode="clip")
        rows = lax.bitcast_convert_type(rows, weight.dtype)
        return poisoned(ids, rows, weight.shape[0]) if is_traced(token_ids) else rows


@jax_right()
class JaxExactGradient(JaxKernel):
    def backward(self, token_ids, cotangent, vocab_size):
        from xref.jax_ops import embedding as golden

        return golden.grad_weight(token_ids, cotangent, vocab_size)
