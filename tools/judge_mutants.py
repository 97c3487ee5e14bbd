"""Judge every mutant and every right kernel of the tests in the default tier: what is caught, named and passed.

    PYTHONPATH=.:tests python tools/judge_mutants.py [--framework torch] [--tier standard] [--jobs 2] [NAME ...]

One line for each, and the totals; `--all-dtypes` is for each on all of them. A mutant is caught if a clause that it
breaks fails, and named if that clause's first explanation is its fault. Takes seconds to a minute each; with `--jobs`
so many are judged at once, each in a process of its own.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import time
from collections.abc import Iterator

from mutants.embedding import JAX_MUTANTS, TORCH_MUTANTS
from mutants.embedding_right import RIGHT_JAX, RIGHT_TORCH

from xref.bits import FORMATS
from xref.judging.judge import judge

KERNELS = {"torch": (TORCH_MUTANTS, RIGHT_TORCH), "jax": (JAX_MUTANTS, RIGHT_JAX)}


def judged(name: str, options: argparse.Namespace) -> tuple[str, bool, bool]:
    """Judge a kernel, and return the line on it, whether it came out as it must, and whether its fault was named."""
    mutants, rights = KERNELS[options.framework]
    mutant = mutants.get(name)
    candidate = mutant or rights[name]
    shown = getattr(candidate, "dtypes", ())
    one = ("bfloat16",) if not shown or "bfloat16" in shown else shown[:1]
    begun = time.perf_counter()
    report = judge(
        candidate.make(),
        framework=options.framework,
        tier=options.tier,
        dtype=tuple(FORMATS) if options.all_dtypes else one,
        name=name,
    )
    took = f"{time.perf_counter() - begun:6.1f} s  {name}"
    if mutant is None:
        return f"{took}: {'passed' if report.ok else report.statement}", report.ok, False
    broken = [verdict for verdict in report.verdicts if verdict.bad and verdict.clause in mutant.clauses]
    first = [verdict.explanations[0].partition(":")[0] for verdict in broken if verdict.explanations]
    named = mutant.fault in first
    told = f"{'caught' if broken else 'MISSED'}, {'named' if named else f'not named: {first[:2]}'}"
    return f"{took} ({', '.join(mutant.clauses)}; {mutant.fault}): {told}", bool(broken), named


def all_judged(names: list[str], options: argparse.Namespace) -> Iterator[tuple[str, bool, bool]]:
    if options.jobs == 1:
        yield from (judged(name, options) for name in names)
        return
    spawn = multiprocessing.get_context("spawn")
    # A process for each kernel: what one leaves behind is no other's.
    with concurrent.futures.ProcessPoolExecutor(options.jobs, spawn, max_tasks_per_child=1) as pool:
        yield from pool.map(judged, names, [options] * len(names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", default="torch", choices=("torch", "jax"))
    parser.add_argument("--tier", default="standard")
    parser.add_argument("--all-dtypes", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    mutants, rights = KERNELS[options.framework]
    names = [name for name in (*mutants, *rights) if not options.names or name in options.names]
    caught = named = passed = 0
    for name, (line, well, first) in zip(names, all_judged(names, options), strict=True):
        caught, named = caught + (name in mutants and well), named + first
        passed += name in rights and well
        print(line, flush=True)
    wrong = sum(name in mutants for name in names)
    print(
        f"mutants: {caught} caught, {named} named, of {wrong}; right kernels: {passed} of {len(names) - wrong} passed"
    )


if __name__ == "__main__":
    main()
