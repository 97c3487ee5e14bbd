"""The exact gradient of the torch golden beside torch's own, at the shape of Qwen3-8B's input table.

A quarter of the tokens name one row, as padding or a frequent token does. torch's own gradient, the backward of
`F.embedding`, sums in the cotangent's dtype and in an order of its own; both write the dense `[V, H]` result, zeros
included. Each round times every contender once, in turn, so that a machine that slows down slows all of them; the
figure is the median of the rounds, by the device's events on a GPU. Prints milliseconds, the ratio to torch's own, and
the peak extra memory beyond the result as a multiple of the cotangent's size.

    python benchmarks/gradient_torch.py [--device cuda] [--rounds 21]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch

from xref.torch_ops import framework
from xref.torch_ops._gradient import GradAccumulator, grad_rows, grad_weight

VOCAB, HIDDEN, TOKENS = 151936, 4096, 8192


def milliseconds(run: Callable[[], object], device: str) -> float:
    """Return how long a call takes until its result is there; giving the result back is not counted."""
    if device == "cuda":
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begun.record()
        result = run()
        done.record()
        torch.cuda.synchronize()
        figure = begun.elapsed_time(done)
    else:
        start = time.perf_counter()
        result = run()
        figure = 1e3 * (time.perf_counter() - start)
    del result
    return figure


def medians(contenders: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """Return the median time of each contender in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 2):  # the first two warm up
        for name, run in contenders.items():
            times[name].append(milliseconds(run, device))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def make_ids() -> torch.Tensor:
    """Return `[TOKENS]` ids of which a quarter, in random places, name one row."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCAB, (TOKENS,), generator=generator)
    ids[torch.randperm(TOKENS, generator=generator)[: TOKENS // 4]] = VOCAB // 2
    return ids


def torchs_own(ids: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(cotangent, ids, VOCAB, -1, False)  # noqa: FBT003


def exact_dense(ids: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    return grad_weight(ids, cotangent, VOCAB)


def exact_rows(ids: torch.Tensor, cotangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grad_rows(ids, cotangent)


def accumulated(ids: torch.Tensor, cotangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    accumulator = GradAccumulator(VOCAB, HIDDEN, device=cotangent.device)
    for part, rows in zip(ids.chunk(4), cotangent.chunk(4), strict=True):
        accumulator.add(part, rows)
    return accumulator.result_rows(cotangent.dtype)


CONTENDERS = {
    "F.embedding's backward": torchs_own,
    "grad_weight": exact_dense,
    "grad_rows": exact_rows,
    "GradAccumulator, 4 parts": accumulated,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the torch golden's gradient.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", default=9, type=int)
    arguments = parser.parse_args()
    device = arguments.device
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {framework.describe(device)},")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {VOCAB} x {HIDDEN}, {TOKENS} tokens")
    ids = make_ids().to(device)
    full = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).to(device)
    for dtype in (torch.bfloat16, torch.float32):
        cotangent = full.to(dtype)
        results = {"grad_weight": VOCAB * HIDDEN * dtype.itemsize}
        results["grad_rows"] = ids.unique().numel() * HIDDEN * dtype.itemsize
        figures = medians(
            {name: lambda run=run, given=cotangent: run(ids, given) for name, run in CONTENDERS.items()},
            device,
            arguments.rounds,
        )
        base = figures["F.embedding's backward"]
        for name, figure in figures.items():
            line = (
                f"{str(dtype).removeprefix('torch.'):9} {name:25} {figure:9.3f} ms {figure / base:6.2f} x torch's own"
            )
            if name in results:
                extra = framework.peak_extra_bytes(CONTENDERS[name], ids, cotangent) - results[name]
                line += f"{extra / cotangent.nbytes:8.2f} x cotangent"
            print(line)


if __name__ == "__main__":
    main()
