"""A token embedding in CUDA, through torch's extension loader, that xref passes.

    xref judge examples/cuda_embedding.py:CudaEmbedding --framework torch --device cuda

The first call compiles the source below with `nvcc`, for a minute or so; torch keeps what came of it. What there is to
copy from it is what `triton_embedding.py` says: rows moved as integers, 64-bit offsets, the table's own strides, ids
checked where they are used, and a gradient without atomics.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.cpp_extension import load_inline

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SUMMED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DECLARED = """
void gather(torch::Tensor ids, torch::Tensor table, torch::Tensor out, torch::Tensor bad);
void add_rows(
    torch::Tensor order, torch::Tensor starts, torch::Tensor rows, torch::Tensor cotangent, torch::Tensor out);
"""
_SOURCE = r"""
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 65535;

// A block for each token, in turn; its threads take the columns.
template <typename Element>
__global__ void gather_kernel(
    const int64_t* ids, const Element* table, Element* out, int* bad, int64_t tokens, int64_t vocab, int64_t hidden,
    int64_t row_stride, int64_t column_stride) {
  for (int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
    const int64_t row = ids[token];
    if (row < 0 || row >= vocab) {
      if (threadIdx.x == 0) atomicAdd(bad, 1);
      continue;
    }
    for (int64_t column = threadIdx.x; column < hidden; column += blockDim.x)
      out[token * hidden + column] = table[row * row_stride + column * column_stride];
  }
}

// A thread adds one column of one row, in the order of the tokens, and rounds once.
template <typename Element, typename Sum>
__global__ void add_rows_kernel(
    const int64_t* order, const int64_t* starts, const int64_t* rows, const Element* cotangent, Element* out,
    int64_t segments, int64_t hidden) {
  for (int64_t segment = blockIdx.x; segment < segments; segment += gridDim.x)
    for (int64_t column = threadIdx.x; column < hidden; column += blockDim.x) {
      Sum total = 0;
      for (int64_t place = starts[segment]; place < starts[segment + 1]; ++place)
        total += static_cast<Sum>(cotangent[order[place] * hidden + column]);
      out[rows[segment] * hidden + column] = static_cast<Element>(total);
    }
}

void gather(torch::Tensor ids, torch::Tensor table, torch::Tensor out, torch::Tensor bad) {
  const c10::cuda::CUDAGuard guard(table.device());
  const int blocks = std::min<int64_t>(ids.numel(), kMostBlocks);
  AT_DISPATCH_INTEGRAL_TYPES(table.scalar_type(), "gather", [&] {
    gather_kernel<scalar_t><<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        ids.data_ptr<int64_t>(), table.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), bad.data_ptr<int>(),
        ids.numel(), table.size(0), table.size(1), table.stride(0), table.stride(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void add_rows(
    torch::Tensor order, torch::Tensor starts, torch::Tensor rows, torch::Tensor cotangent, torch::Tensor out) {
  const c10::cuda::CUDAGuard guard(out.device());
  const int blocks = std::min<int64_t>(rows.numel(), kMostBlocks);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "add_rows", [&] {
    using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    add_rows_kernel<scalar_t, Sum><<<blocks, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
        order.data_ptr<int64_t>(), starts.data_ptr<int64_t>(), rows.data_ptr<int64_t>(),
        cotangent.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), rows.numel(), out.size(1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""


@functools.cache
def kernels() -> Any:
    """Return the compiled kernels."""
    return load_inline(
        "xref_example_embedding", cpp_sources=_DECLARED, cuda_sources=_SOURCE, functions=["gather", "add_rows"]
    )


def gather(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `weight[token_ids, :]`, or raise `IndexError` for an id outside `[0, V)`."""
    if token_ids.dtype.is_floating_point or token_ids.dtype.is_complex or token_ids.dtype == torch.bool:
        raise TypeError(f"token_ids: got {token_ids.dtype}, expected integers")
    # As int64: a uint64 id of 2**63 or more turns negative, and names no row either way.
    ids = token_ids.to(torch.int64).contiguous()
    table = weight.detach().view(_INTEGERS[weight.element_size()])
    out = table.new_empty((*ids.shape, table.shape[1]))
    if ids.numel():
        bad = torch.zeros(1, dtype=torch.int32, device=table.device)
        kernels().gather(ids, table, out, bad)
        if int(bad):
            raise IndexError(f"token_ids: got {int(bad)} ids out of range, expected 0 <= id < {table.shape[0]}")
    return out.view(weight.dtype)


def gradient(token_ids: torch.Tensor, cotangent: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the gradient of the table, `[V, H]` of the cotangent's dtype, for ids that `gather` has taken."""
    if cotangent.dtype not in _SUMMED:
        raise TypeError(f"cotangent: got {cotangent.dtype}, expected one of {_SUMMED}")
    out = cotangent.new_zeros((vocab_size, cotangent.shape[-1]))
    ids, order = token_ids.reshape(-1).to(torch.int64).sort(stable=True)
    if out.numel() and ids.numel():
        rows, counts = ids.unique_consecutive(return_counts=True)
        starts = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        kernels().add_rows(order, starts, rows, cotangent.contiguous(), out)
    return out


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(token_ids)
        ctx.vocab_size = weight.shape[0]
        return gather(token_ids, weight)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[None, torch.Tensor]:
        (token_ids,) = ctx.saved_tensors
        return None, gradient(token_ids, cotangents[0], ctx.vocab_size)


class CudaEmbedding:
    """The operator as xref takes it; its gradient is autograd's way to `gradient`."""

    def forward(self, token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return `weight[token_ids, :]`."""
        return _Embedding.apply(token_ids, weight)
