"""What `xref bench` has measured, as a record: on which machine, by which clock, and what could not be measured."""

from __future__ import annotations

import copy
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xref import errors
from xref.engine.frameworks import Framework

__all__ = [
    "COPY",
    "BenchReport",
    "Figure",
    "Machine",
    "digits",
    "machine",
    "merged",
    "problems",
    "ratio",
    "read_report",
    "show",
    "statement",
]

COPY = "copy"
"""The contender that all others are held against."""


class Figure(msgspec.Struct, kw_only=True):
    """What one contender took at one shape: the medians of the rounds."""

    framework: Annotated[str, msgspec.Meta(pattern="^(torch|jax)$")]
    contender: str
    kind: Annotated[str, msgspec.Meta(pattern="^(copy|native|golden|candidate)$")]
    direction: Annotated[str, msgspec.Meta(pattern="^(forward|backward)$")]
    dtype: str
    tokens: Annotated[int, msgspec.Meta(ge=1)]
    moved: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Bytes that a call must read and write, each once."""
    clock: str = ""
    """`events` and `profile` are the device's own clocks, `host` is the host's."""
    calls: int = 0
    """Calls back to back in a round."""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    """Of one call, by that clock."""
    quartiles: tuple[float, float] = (0.0, 0.0)
    """Seconds: a quarter of the rounds took less than the first, a quarter more than the second."""
    host_seconds: float = 0.0
    """Of one call, by the host's clock."""
    of_copy: float = 0.0
    """Bandwidth, as a share of what the copy had in the same rounds."""
    of_native: float = 0.0
    """Seconds, as a multiple of what the framework's own operator took in the same rounds."""
    peak_bytes: int = 0
    """The most memory that a call holds beside its inputs; 0 where not asked for."""
    problem: str = ""
    """Why it could not be measured."""

    @property
    def who(self) -> tuple[str, str, str]:
        """The contender among all: a kernel may be called as a golden is, or as the other framework's."""
        return self.framework, self.kind, self.contender

    @property
    def title(self) -> str:
        """The contender as a reader knows it."""
        return f"golden {self.contender}" if self.kind == "golden" else self.contender

    @property
    def bandwidth(self) -> float:
        """Bytes moved in a second."""
        return self.moved / self.seconds if self.seconds else 0.0


class Machine(msgspec.Struct, kw_only=True):
    """Where it was measured."""

    processor: str
    cores: int
    system: str
    python: str
    numpy: str
    driver: str
    """Of NVIDIA's devices; empty where there is none, or none was used."""
    frameworks: dict[str, dict[str, str]]
    """By name: version, device and settings."""


class BenchReport(msgspec.Struct, kw_only=True):
    """All figures of one run."""

    xref: str
    device: str
    vocab: int
    hidden: int
    rounds: int
    machine: Machine
    figures: list[Figure]
    notes: list[str] = []
    """What was not measured, and why: a framework, by the device's own clock, or peak memory."""

    @property
    def ok(self) -> bool:
        """Whether everything was measured that a framework can do itself; nothing at all is not."""
        return bool(self.figures) and not any(figure.problem for figure in self.figures if figure.kind != "native")

    def to_json(self) -> str:
        """Return the report as JSON."""
        record = {**msgspec.to_builtins(self), "ok": self.ok}
        return msgspec.json.format(msgspec.json.encode(record)).decode()


def read_report(path: Path) -> BenchReport:
    """Return a report that was written before.

    Raises:
        UsageError: the file cannot be read, or is no such report.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=BenchReport)
        statement(found)  # which names what the type does not: versions and devices
        return found
    except (OSError, msgspec.MsgspecError, KeyError) as error:
        why = error.strerror if isinstance(error, OSError) else f"no {error}" if isinstance(error, KeyError) else error
        raise errors.UsageError("--from", f"{path} ({why})", "a file of xref bench --json") from error


def merged(reports: Sequence[BenchReport]) -> BenchReport:
    """Return one report of several runs, such as of one framework each.

    Raises:
        UsageError: they are not of one machine and size, or have a figure in common.
    """
    first, *others = reports
    whole = copy.deepcopy(first)
    for other in others:
        for name, got, expected in zip(("machine", "sizes"), _alike(other), _alike(first), strict=True):
            if got != expected:
                raise errors.UsageError("--from", f"{name} {got}", f"{name} {expected}")
        for name, now in other.machine.frameworks.items():
            before = whole.machine.frameworks.setdefault(name, now)
            for key in before.keys() | now.keys():
                if before.get(key) != now.get(key):
                    got, expected = (f"{name} with {key} {each.get(key)}" for each in (now, before))
                    raise errors.UsageError("--from", got, expected)
        whole.figures += other.figures
        whole.notes += [note for note in other.notes if note not in whole.notes]
    known = set()
    for figure in whole.figures:
        place = figure.who, figure.direction, figure.dtype, figure.tokens
        if place in known:
            got = f"{figure.framework} {figure.title}, {figure.direction} {figure.dtype}, {figure.tokens} tokens twice"
            raise errors.UsageError("--from", got, "each figure once")
        known.add(place)
    return whole


def _alike(report: BenchReport) -> tuple[str, str]:
    """Return what must be the same in reports that are one."""
    known = report.machine
    machine = f"{known.cores} cores of {known.processor}, {known.system}, driver {known.driver or 'none'}"
    versions = f"xref {report.xref}, Python {known.python}, NumPy {known.numpy}"
    return f"{machine}, {versions}", f"[{report.vocab}, {report.hidden}], {report.rounds} rounds on {report.device}"


def machine(frameworks: Iterable[Framework], device: str) -> Machine:
    """Return what there is to say of this machine, and of the frameworks on the device."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        system=platform.platform(terse=True),
        python=platform.python_version(),
        numpy=np.__version__,
        driver=_driver() if device == "cuda" else "",
        frameworks={
            each.name: {
                "version": each.arrays.version(),
                "device": each.arrays.describe(device),
                **each.arrays.environment(),
            }
            for each in frameworks
        },
    )


def _processor() -> str:
    known = Path("/proc/cpuinfo")  # Python itself tells the architecture alone
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _driver() -> str:
    """Return the version of NVIDIA's driver, which neither framework tells."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    except (OSError, subprocess.SubprocessError):  # a device of another maker, or a container without the tool
        return ""
    return found[0] if found else ""


def show(report: BenchReport, console: Console) -> None:
    """Print the figures, a table for each direction and dtype, what could not be measured, and where it was."""
    columns = [
        *("tokens", "framework", "contender", "ms", "spread", "GB/s", "of copy", "x native"),
        *(["host ms"] if any(figure.clock not in ("", "host") for figure in report.figures) else []),
        *(["peak MB"] if any(figure.peak_bytes for figure in report.figures) else []),
        "clock",
    ]
    for direction, dtype in dict.fromkeys((figure.direction, figure.dtype) for figure in report.figures):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{direction}, {dtype}", title_justify="left")
        for heading in columns:
            words = heading in ("framework", "contender", "clock")
            table.add_column(heading, justify="left" if words else "right", no_wrap=heading != "contender")
        for figure in report.figures:
            if (figure.direction, figure.dtype) == (direction, dtype):
                cells = _cells(figure)
                table.add_row(*(escape(cells.get(heading, "")) for heading in columns))
        console.print(table)
    for line in (*problems(report), *report.notes, statement(report)):
        console.print(escape(line), soft_wrap=True, highlight=False)


def _cells(figure: Figure) -> dict[str, str]:
    """Return what stands in a figure's row, by column."""
    head = {"tokens": str(figure.tokens), "framework": figure.framework, "contender": figure.title}
    if figure.problem:
        return {**head, "ms": "error"}
    low, high = figure.quartiles
    return {
        **head,
        "ms": digits(1e3 * figure.seconds),
        "spread": f"{(high - low) / figure.seconds:.0%}" if figure.seconds else "",
        "GB/s": digits(figure.bandwidth / 1e9),
        "of copy": ratio(figure.of_copy),
        "x native": ratio(figure.of_native),
        "host ms": digits(1e3 * figure.host_seconds),
        "peak MB": digits(figure.peak_bytes / 1e6) if figure.peak_bytes else "",
        "clock": figure.clock,
    }


def digits(value: float) -> str:
    """Return three significant digits, and never an exponent."""
    rounded = float(f"{value:.3g}")
    places = 2 - math.floor(math.log10(rounded)) if rounded > 0 else 0
    return f"{rounded:.{min(max(places, 0), 12)}f}" if rounded > 0 else "0"


def ratio(value: float) -> str:
    """Return two decimals, or nothing for a ratio that there is not."""
    return "" if not value else f"{value:.2f}" if value >= 0.005 else "<0.01"


def problems(report: BenchReport) -> list[str]:
    """Return what could not be measured and why, a line for each contender and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for figure in report.figures:
        if figure.problem:
            what = f"{figure.framework} {figure.title}, {figure.direction} {figure.dtype}"
            found.setdefault((what, figure.problem), []).append(str(figure.tokens))
    return [f"{what}, tokens {', '.join(tokens)}: {why}" for (what, why), tokens in found.items()]


def statement(report: BenchReport) -> str:
    """Return where it was measured, in a line."""
    known = report.machine
    ran = [
        f"{name} {each['version']} on {each['device']}"
        + (f" (threads: {each['threads']})" if report.device == "cpu" and "threads" in each else "")
        for name, each in known.frameworks.items()
    ]
    where = f"{known.cores} cores of {known.processor}"
    driver = f", driver {known.driver}" if known.driver else ""
    shape = f"[{report.vocab}, {report.hidden}] table, medians of {report.rounds} rounds"
    return f"{shape}: {', '.join(ran)}{driver}; {where}, Python {known.python}, NumPy {known.numpy}."
