"""Time the exact gradient of the torch golden beside torch's own, in one run.

    python benchmarks/gradient_torch.py [--device cuda] [--tokens 8192] [--hidden 4096] [--vocab-size 151936] [--runs 7]

The tokens are random, a quarter of them one id. torch's own gradient is `aten.embedding_dense_backward`, the backward of
`F.embedding`; it sums in the cotangent's dtype and in an order of its own, so it is faster and not exact. Both
write the dense `[V, H]` result, zeros included, which is most of the time on a CPU. The two take turns, and the
table shows medians.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

from xref.torch_ops._gradient import GradAccumulator, grad_rows, grad_weight


def milliseconds(work: Callable[[], object], device: torch.device) -> float:
    """Return how long one call takes: by the device's own events on a GPU, else by the clock."""
    if device.type == "cuda":
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(stop))
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def peak_mib(work: Callable[[], object], device: torch.device) -> float:
    """Return the most memory in use during one call, beyond what was in use before, in MiB; CUDA only."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def inputs(arguments: argparse.Namespace, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids `[N]`, a quarter of them one id in random places, and a float32 cotangent `[N, H]`."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(arguments.vocab_size, (arguments.tokens,), generator=generator)
    hot = torch.randperm(arguments.tokens, generator=generator)[: arguments.tokens // 4]
    ids[hot] = arguments.vocab_size // 2
    cotangent = torch.randn(arguments.tokens, arguments.hidden, generator=generator)
    return ids.to(device), cotangent.to(device)


def accumulated(ids: torch.Tensor, cotangent: torch.Tensor, vocab_size: int) -> object:
    """Add four micro-batches and take the rows."""
    accumulator = GradAccumulator(vocab_size, cotangent.shape[-1], device=ids.device)
    for part, rows in zip(ids.chunk(4), cotangent.chunk(4), strict=True):
        accumulator.add(part, rows)
    return accumulator.result_rows(cotangent.dtype)


def main() -> None:
    """Parse the arguments, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab-size", type=int, default=151936)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{arguments.tokens} tokens x {arguments.hidden}, V={arguments.vocab_size}, a quarter of the tokens one id\n")
    print("| cotangent | what | ms | times torch's own |")
    print("|---|---|---|---|")
    ids, full = inputs(arguments, device)
    for dtype in (torch.bfloat16, torch.float32):
        cotangent = full.to(dtype)
        size = arguments.vocab_size
        rows: dict[str, Callable[[], object]] = {
            "torch's own, dense": lambda: torch.ops.aten.embedding_dense_backward(cotangent, ids, size, -1, False),
            "zeros alone": lambda: torch.zeros(size, arguments.hidden, dtype=dtype, device=device),
            "grad_weight": lambda: grad_weight(ids, cotangent, size),
            "grad_rows": lambda: grad_rows(ids, cotangent),
            "GradAccumulator, 4 parts, rows": lambda: accumulated(ids, cotangent, size),
        }
        times: dict[str, list[float]] = {what: [] for what in rows}
        for run in range(arguments.runs + 1):
            for what, work in rows.items():
                taken = milliseconds(work, device)
                if run:  # the first warms up
                    times[what].append(taken)
        medians = {what: statistics.median(taken) for what, taken in times.items()}
        own = medians["torch's own, dense"]
        for what, median in medians.items():
            print(f"| {str(dtype).removeprefix('torch.')} | {what} | {median:.2f} | {median / own:.2f} |")
        if device.type == "cuda":
            dense = size * arguments.hidden * dtype.itemsize / 2**20
            extra = peak_mib(rows["grad_weight"], device) - dense
            print(
                f"| | grad_weight beyond its result: {extra:.0f} MiB, the cotangent: {cotangent.nbytes / 2**20:.0f} MiB | | |"
            )


if __name__ == "__main__":
    main()
