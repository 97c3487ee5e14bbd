"""Judge every mutant and every right kernel of the tests in the default tier: what is caught, named and passed.

    PYTHONPATH=.:tests python tools/judge_mutants.py [--framework torch] [--tier standard] [--all-dtypes] [NAME ...]

One line for each, and the totals. A mutant is caught if a clause that it breaks fails, and named if that clause's first
explanation is its fault. Takes seconds to a minute each.
"""

from __future__ import annotations

import argparse
import time

from mutants.embedding import JAX_MUTANTS, TORCH_MUTANTS
from mutants.embedding_right import RIGHT_JAX, RIGHT_TORCH

from xref.judge.judge import judge
from xref.judge.judged import JudgeReport


def dtypes_of(candidate: object, *, every: bool) -> tuple[str, ...]:
    shown = getattr(candidate, "dtypes", ())
    return () if every else ("bfloat16",) if not shown or "bfloat16" in shown else shown[:1]


def judged(name: str, candidate: object, options: argparse.Namespace) -> tuple[JudgeReport, float]:
    begun = time.perf_counter()
    dtype = dtypes_of(candidate, every=options.all_dtypes)
    make = candidate.make  # type: ignore[attr-defined]
    report = judge(make(), framework=options.framework, tier=options.tier, dtype=dtype, name=name)
    return report, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", default="torch", choices=("torch", "jax"))
    parser.add_argument("--tier", default="standard")
    parser.add_argument("--all-dtypes", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    mutants, rights = (TORCH_MUTANTS, RIGHT_TORCH) if options.framework == "torch" else (JAX_MUTANTS, RIGHT_JAX)
    caught = named = passed = 0
    for name, mutant in mutants.items():
        if options.names and name not in options.names:
            continue
        report, seconds = judged(name, mutant, options)
        broken = [verdict for verdict in report.verdicts if verdict.bad and verdict.clause in mutant.clauses]
        first = [verdict.explanations[0].partition(":")[0] for verdict in broken if verdict.explanations]
        caught += bool(broken)
        named += mutant.fault in first
        told = f"{'caught' if broken else 'MISSED'}, {'named' if mutant.fault in first else f'not named: {first[:2]}'}"
        print(f"{seconds:6.1f} s  {name} ({', '.join(mutant.clauses)}; {mutant.fault}): {told}", flush=True)
    for name, right in rights.items():
        if options.names and name not in options.names:
            continue
        report, seconds = judged(name, right, options)
        passed += report.ok
        print(f"{seconds:6.1f} s  {name}: {'passed' if report.ok else report.statement}", flush=True)
    print(
        f"mutants: {caught} caught, {named} named, of {len(mutants)}; right kernels: {passed} of {len(rights)} passed"
    )


if __name__ == "__main__":
    main()
