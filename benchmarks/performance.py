"""Make docs/performance.md and its plots out of the records in benchmarks/results.

xref bench --memory --plot any.svg --json benchmarks/results/NAME.json      # a record
python benchmarks/performance.py
"""

from __future__ import annotations

from pathlib import Path

from xref.benching.plot import draw
from xref.benching.report import BenchReport, Figure, digits, problems, ratio, read_report, statement

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
TOKENS = (1, 64, 1024, 8192, 131072)  # that the tables show; the plots have all
MAIN = 8192

HEAD = """# Performance

<!-- made by benchmarks/performance.py out of benchmarks/results/*.json: change those -->

How long the goldens take beside the frameworks' own operators and beside the machine's plain copy, as `xref bench`
measures it. Put a kernel of your own into the same tables, or make this page anew:

    xref bench my_kernels.py:embedding --device cuda
    xref bench --memory --json benchmarks/results/cpu.json
    xref bench --device cuda --json benchmarks/results/h200.json
    python benchmarks/performance.py

## What the figures mean

- **T** is the tokens of a call. **A cell** has the milliseconds of one call, and its bandwidth as a share of the
  copy's. The bandwidth is what a call has to move at the least over its time. A forward reads T rows and T ids and
  writes T rows; a backward reads T rows and T ids and writes the whole `[V, H]` result, or (`grad_rows`,
  `GradAccumulator`) the rows that a token names and their ids.
- **The copy** is the same framework's, of 1 GiB (256 MiB on a CPU) onto memory that is there already, read plus
  written. It is more than caches hold, and what a token reads may be in one, or what is written in memory that must
  be had from the system first: so a share can be over 1, and on a CPU far below it.
- **JAX's `grad_weight` on a CPU** leaves rows that no token names to the system, which makes their zeros when
  somebody reads them. What it moves is then less than what is counted, and its share says nothing; under `jit` it
  writes all.
- **x native** is the time as a multiple of the framework's own: `F.embedding` and its backward, `jnp.take` and its
  gradient under `jit`. They sum in another order and format than the exact gradient, and their bits are not the
  golden's.
- **Everybody takes turns**, round by round, and the figure is the median of the rounds; the records have the
  quartiles, too. The ids are uniform; in a backward a quarter of them are one id, as padding or a frequent token is.
  All calls have the same.
- **The clock** is `events` for torch on a GPU (CUDA's events around calls made back to back, so that what the device
  waits for the host counts), `profile` for JAX on a GPU (when the device ran anything at all, so that it does not),
  and `host` on a CPU. The two first differ where a call is small: compare across frameworks by `host_seconds`, which
  every record has.
- **Peak** is the most memory that a call holds beside its inputs, its result included; in JAX what XLA plans under
  `jit`.
- **A kernel of your own** is called as it is: one for JAX without `jax.jit` runs operation by operation; its backward
  goes through autograd or `jax.vjp`, and has no peak, where the native one is called directly. Its results
  are looked at for shape, dtype and device alone; whether they are right, `xref judge` finds.
- **Not measured**: TPUs and ROCm; the energy; more than one device; ids that are sorted or all alike.

## JAX's gather beside torch's on an H200

By a profile, the golden's forward is one kernel, as `jnp.take(mode="clip")` is, and takes as long: 0.735 and 0.730 ms
for 131072 tokens in bfloat16, 1.11 and 1.10 ms in float32; the check for ids out of range is a second one of 2 us.
Torch's takes 0.57 and 1.14 ms. What is slower in bfloat16 is XLA's code for it: its loops write some 8e11 elements a
second whatever their width, the zeros of `[151936, 4096]` in 0.73 ms in either dtype. A gather by other code closes
the gap: `examples/pallas_embedding.py` took 0.525 ms (0.96 of the copy). The golden stays the plain `jnp.take`. With
ids on the card, validation reads them on the host first, which the host's clock shows and the profile does not.
"""


def page(records: dict[str, BenchReport]) -> str:
    """Return the page of all records, by name."""
    return "\n".join([HEAD, *(line for name, record in records.items() for line in section(name, record))])


def section(name: str, record: BenchReport) -> list[str]:
    devices = dict.fromkeys(each["device"] for each in record.machine.frameworks.values())
    title = record.machine.processor if record.device == "cpu" else " and ".join(devices)
    lines = [f"## {title}", "", statement(record), "", f"![Bandwidth against tokens](performance-{name}.svg)", ""]
    for direction, dtype in dict.fromkeys((figure.direction, figure.dtype) for figure in record.figures):
        lines += [f"### {direction}, {dtype}", ""]
        lines += table([each for each in record.figures if (each.direction, each.dtype) == (direction, dtype)])
        lines.append("")
    missing = [f"- {text}" for text in (*problems(record), *record.notes)]
    return [*lines, *(["What this run could not measure:", "", *missing, ""] if missing else [])]


def table(figures: list[Figure]) -> list[str]:
    """Return a row for each contender, a column for each number of tokens that is shown."""
    shown = [tokens for tokens in TOKENS if any(figure.tokens == tokens for figure in figures)]
    memory = any(figure.peak_bytes for figure in figures)
    heads = [f"T = {tokens}" for tokens in shown]
    heads += [f"x native, T = {MAIN}"] * (MAIN in shown) + [f"peak MB, T = {MAIN}"] * (MAIN in shown and memory)
    lines = ["| | " + " | ".join(heads) + " | clock |", "|---|" + "---:|" * len(heads) + "---|"]
    for who in dict.fromkeys(figure.who for figure in figures):
        own = {each.tokens: each for each in figures if each.who == who}
        title = next(iter(own.values())).title
        cells = [cell(own[tokens]) if tokens in own else "" for tokens in shown]
        if MAIN in shown:
            cells.append(ratio(own[MAIN].of_native))
            cells += [digits(own[MAIN].peak_bytes / 1e6) if own[MAIN].peak_bytes else ""] * memory
        clocks = ", ".join(dict.fromkeys(each.clock for each in own.values() if each.clock))
        lines.append(f"| {who[0]}: {title} | {' | '.join(cells)} | {clocks} |")
    return lines


def cell(figure: Figure) -> str:
    return "error" if figure.problem else f"{digits(1e3 * figure.seconds)} ({ratio(figure.of_copy)})"


def main() -> None:
    records = {path.stem: read_report(path) for path in sorted(RESULTS.glob("*.json"))}
    for name, record in records.items():
        PAGE.with_name(f"performance-{name}.svg").write_bytes(draw(record, ".svg"))
    PAGE.write_text(page(records), encoding="utf-8")


if __name__ == "__main__":
    main()
