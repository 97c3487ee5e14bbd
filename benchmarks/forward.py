"""The goldens' forward pass beside the frameworks' own gathers, at the shape of Qwen3-8B's input table.

Each round times every contender once, in turn, so that a machine that slows down slows all of them; the figure is the
median of the rounds. Prints milliseconds, the ratio to the framework's own gather, and the peak extra memory as a
multiple of the output's size.

    python benchmarks/forward.py [--device cuda] [--rounds 21]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

VOCAB, HIDDEN, TOKENS = 151936, 4096, 8192


def medians(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median time of each contender in milliseconds; each call must return only when it is done."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 3):  # the first three warm up
        for name, run in contenders.items():
            begun = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begun)
    return {name: 1e3 * statistics.median(values[3:]) for name, values in times.items()}


def report(framework: str, dtype: str, figures: dict[str, float], base: str, memory: dict[str, float]) -> None:
    for name, figure in figures.items():
        extra = f"{memory[name]:8.2f} x output" if name in memory else ""
        print(f"{framework:6} {dtype:9} {name:28} {figure:9.3f} ms  {figure / figures[base]:6.2f} x {base}{extra}")


def run_torch(device: str, rounds: int) -> None:
    import torch
    import torch.nn.functional as F

    from xref.torch_ops import embedding as golden
    from xref.torch_ops import framework

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device} {framework.describe(device)}")
    ids = torch.randint(0, VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(0)).to(device)

    def timed(run: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            run()
            if device == "cuda":
                torch.cuda.synchronize()

        return call

    for dtype in (torch.bfloat16, torch.float32):
        table = torch.empty(VOCAB, HIDDEN, dtype=dtype, device=device).normal_()
        runs = {
            "F.embedding": lambda table=table: F.embedding(ids, table),
            "forward, validate=False": lambda table=table: golden.forward(ids, table, validate=False),
            "forward": lambda table=table: golden.forward(ids, table),
            "forward_fp32": lambda table=table: golden.forward_fp32(ids, table),
        }
        memory = {}
        for name, verb in (("forward", golden.forward), ("forward_fp32", golden.forward_fp32)):
            size = TOKENS * HIDDEN * (4 if name == "forward_fp32" else dtype.itemsize)
            memory[name] = framework.peak_extra_bytes(verb, ids, table) / size
        figures = medians({name: timed(run) for name, run in runs.items()}, rounds)
        report("torch", str(dtype).removeprefix("torch."), figures, "F.embedding", memory)
        del table, runs


def run_jax(device: str, rounds: int) -> None:
    import jax
    import jax.numpy as jnp

    from xref.jax_ops import embedding as golden
    from xref.jax_ops import framework

    print(f"jax {jax.__version__}, {device} {framework.describe(device)}")
    place = jax.devices({"cuda": "gpu"}.get(device, device))[0]
    ids = jax.device_put(jax.random.randint(jax.random.key(0), (TOKENS,), 0, VOCAB), place)
    take = jax.jit(lambda ids, table: jnp.take(table, ids, axis=0, mode="clip"))
    for dtype in (jnp.bfloat16, jnp.float32):
        table = jax.device_put(jax.random.normal(jax.random.key(1), (VOCAB, HIDDEN), dtype), place)
        runs = {
            "take(mode='clip')": lambda table=table: take(ids, table).block_until_ready(),
            "forward, validate=False": lambda table=table: golden.forward(
                ids, table, validate=False
            ).block_until_ready(),
            "forward": lambda table=table: golden.forward(ids, table).block_until_ready(),
            "forward_fp32": lambda table=table: golden.forward_fp32(ids, table).block_until_ready(),
        }
        memory = {}
        for name, verb in (("forward", golden.forward), ("forward_fp32", golden.forward_fp32)):
            size = TOKENS * HIDDEN * (4 if name == "forward_fp32" else table.dtype.itemsize)
            memory[name] = framework.peak_extra_bytes(verb, ids, table) / size
        report("jax", table.dtype.name, medians(runs, rounds), "take(mode='clip')", memory)
        del table, runs


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the goldens' forward pass.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", default=21, type=int)
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {VOCAB} x {HIDDEN}, {TOKENS} tokens")
    for name, run in (("torch", run_torch), ("jax", run_jax)):
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed, not timed")
        else:
            run(arguments.device, arguments.rounds)


if __name__ == "__main__":
    main()
