"""Time the exact gradient of the JAX golden beside the gradient of `jnp.take`, on whatever device JAX has.

    python benchmarks/gradient_jax.py [--tokens 8192] [--hidden 4096] [--vocab 151936] [--repeats 9]

A quarter of the tokens are one id, the rest uniform; cotangents are gaussian. All ways run in turn, `--repeats` times
after one that compiles, so that whatever else the machine does falls on all of them; the table shows medians of the
host's clock. On a CPU the eager call leaves untouched pages to the system (`xref.jax_ops._placement`), which under
`jit` XLA has to fill; both are shown.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from xref.jax_ops._gradient import grad_rows, grad_weight

NATIVE = "jnp.take's gradient, jit"


def ways(ids: jax.Array, cotangent: jax.Array, vocab_size: int) -> dict[str, Callable[[], object]]:
    """Return the gradients to time, by name."""

    @jax.jit
    def native(ids: jax.Array, cotangent: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.vjp(lambda weight: jnp.take(weight, ids, axis=0), weight)[1](cotangent)[0]

    weight = jnp.zeros((vocab_size, cotangent.shape[1]), cotangent.dtype)
    traced = jax.jit(functools.partial(grad_weight, vocab_size=vocab_size))
    return {
        NATIVE: lambda: native(ids, cotangent, weight),
        "grad_weight": lambda: grad_weight(ids, cotangent, vocab_size),
        "grad_weight, jit": lambda: traced(ids, cotangent),
        "grad_rows": lambda: grad_rows(ids, cotangent, vocab_size=vocab_size),
    }


def medians(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median time of each call in milliseconds, the calls taking turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(measured[1:]) for name, measured in times.items()}


def machine() -> str:
    """Return the device and the versions, in a line."""
    name = jax.devices()[0].device_kind
    if jax.default_backend() == "cpu":
        lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
        name = f"{len(os.sched_getaffinity(0))} cores of {models[0] if models else platform.processor()}"
    return f"{name}; JAX {jax.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, default in (("tokens", 8192), ("hidden", 4096), ("vocab", 151936), ("repeats", 9)):
        parser.add_argument(f"--{option}", type=int, default=default)
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    ids = rng.integers(0, options.vocab, options.tokens).astype(np.int32)
    ids[rng.permutation(options.tokens)[: options.tokens // 4]] = 7 % options.vocab
    normal = jnp.asarray(rng.standard_normal((options.tokens, options.hidden), dtype=np.float32))

    print(f"{options.tokens} tokens x {options.hidden}, V = {options.vocab}, a quarter of the tokens one id")
    print(f"{machine()}\n")
    print("| dtype | gradient | ms | of native |\n|---|---|---:|---:|")
    for dtype in ("bfloat16", "float32"):
        measured = medians(ways(jnp.asarray(ids), normal.astype(dtype), options.vocab), options.repeats)
        for name, milliseconds in measured.items():
            print(f"| {dtype} | {name} | {milliseconds:.2f} | {milliseconds / measured[NATIVE]:.2f} |")


if __name__ == "__main__":
    main()
