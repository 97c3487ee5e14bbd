"""`xref bench`: how long the goldens, the frameworks' own operators and candidates take, beside the machine's own copy.

All who take part at a shape take turns, round by round, so that a machine that slows down slows all of them; a figure
is the median of the rounds. What a call must move at the least, over its time, is its bandwidth, and that as a share of
the copy's in the same rounds says how much faster a call could be at all.

Which clock a figure rests on is recorded with it: a device's own where there is one, else the host's.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from xref import __version__, errors
from xref.bits import Bits
from xref.judge import frameworks
from xref.judge.bench import described
from xref.judge.candidate import Candidate
from xref.judge.contenders import (
    BACKWARD,
    DIRECTIONS,
    Call,
    Clock,
    Contender,
    Inputs,
    Shape,
    Timing,
    contenders,
    ids_of,
    rows_of,
)
from xref.judge.frameworks import Framework
from xref.judge.speed_report import COPY, BenchReport, Figure, machine

__all__ = ["HostClock", "Runner", "bench", "chosen", "take_turns"]

_CALL = "bench"
_LAP = 5e-3
"""Seconds that the calls of a lap take together at the least: a clock's own error is microseconds."""
_MOST_CALLS = 1000
_MOST_BYTES = 2**33
"""Of results on the way at once: JAX's calls return before they are done."""

Progress = Callable[[str, int, int], None]


class HostClock:
    """The host's clock around calls that are waited for."""

    NAME = "host"

    def __init__(self, timing: Timing, device: str) -> None:
        self._timing, self._device = timing, device
        self._laps: dict[str, list[float]] = {}

    def __enter__(self) -> HostClock:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def lap(self, key: str, call: Call, repeats: int) -> None:
        """Make the calls and note what one took."""
        begun = time.perf_counter()
        self._timing.run(call, repeats, self._device)
        self._laps.setdefault(key, []).append((time.perf_counter() - begun) / repeats)

    def seconds(self) -> dict[str, list[float]]:
        """Return what one call took, by key, lap after lap."""
        return self._laps


@dataclasses.dataclass
class Runner:
    """A contender at work."""

    contender: Contender
    call: Call | None = None
    repeats: int = 1
    problem: str = ""

    def drop(self, error: BaseException) -> None:
        """Take the contender out, and what it holds with it."""
        self.problem, self.call = described(error), None


def bench(
    candidates: Sequence[Candidate] = (),
    *,
    framework: Sequence[str] = (),
    device: str = "cpu",
    dtype: Sequence[str] = ("bfloat16", "float32"),
    direction: Sequence[str] = DIRECTIONS,
    tokens: Sequence[int] = (8192,),
    vocab: int = 151936,
    hidden: int = 4096,
    rounds: int = 11,
    memory: bool = False,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure everybody at every shape.

    Args:
        candidates: kernels, each on the device.
        framework: `torch`, `jax`; none named means all that are installed and have the device.
        device: `cpu`, `cuda` or `tpu`.
        dtype: table dtypes.
        direction: `forward`, `backward`.
        tokens: T, how many ids a call has, one shape after the other.
        vocab: V, the rows of the table.
        hidden: H, the elements of a row.
        rounds: how often everybody has a turn.
        memory: measure peak memory, too.
        progress: called with what is measured next, how many shapes are done, and how many there are.

    Returns:
        The report; `report.ok` says whether everything could be measured.

    Raises:
        MissingFrameworkError: a framework is not installed.
        UsageError: a framework does not have the device here.
    """
    taking_part = chosen(framework, device)
    report = BenchReport(
        xref=__version__,
        device=device,
        vocab=vocab,
        hidden=hidden,
        rounds=rounds,
        machine=machine(taking_part, device),
        figures=[],
    )
    shapes = [(way, count) for way in direction for count in tokens]
    done, total = 0, len(dtype) * len(taking_part) * len(shapes)
    for kind in dtype:
        rows = rows_of(max(vocab, *tokens), hidden, kind)
        for each in taking_part:
            measure = _Measure(each, [one for one in candidates if one.framework is each], device, rounds, memory)
            with each.precision(kind):
                # Made when first asked for, so that one that does not fit is an error of its shapes.
                table = functools.cache(functools.partial(each.put, rows[:vocab], kind, device))
                for way, count in shapes:
                    if progress is not None:
                        progress(f"{each.NAME} {kind} {way}, {count} tokens", done, total)
                    shape = Shape(way, kind, vocab, hidden, count)
                    report.figures += measure(shape, table, rows[:count])
                    report.notes += [note for note in measure.notes if note not in report.notes]
                    done += 1
            del table
            gc.collect()  # JAX's arrays hold themselves in cycles, and the next table may be as large
    return report


def chosen(names: Sequence[str], device: str) -> list[Framework]:
    """Return the frameworks that take part.

    Raises:
        MissingFrameworkError: one that is named is not installed, or none is.
        UsageError: one that is named does not have the device here, or none does.
    """
    loaded = [frameworks.load(name, _CALL) for name in names or filter(frameworks.installed, frameworks.FRAMEWORKS)]
    if not loaded:
        raise errors.MissingFrameworkError(frameworks.FRAMEWORKS[0], _CALL)
    present = {each.NAME: frameworks.devices(each, _CALL) for each in loaded}
    having = [each for each in loaded if device in present[each.NAME]]
    if not having or (names and len(having) < len(loaded)):
        here = "; ".join(f"{name} has {', '.join(kinds)}" for name, kinds in present.items())
        raise errors.UsageError(errors.message("--device", device, f"a device that is here ({here})", _CALL))
    return having


@dataclasses.dataclass
class _Measure:
    """What measures one framework's contenders, shape after shape."""

    framework: Framework
    candidates: list[Candidate]
    device: str
    rounds: int
    memory: bool
    notes: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.timing = cast(Timing, importlib.import_module(f"xref.{self.framework.NAME}_ops.timing"))

    def __call__(self, shape: Shape, table: Callable[[], Any], rows: Bits) -> list[Figure]:
        """Return the figures of a shape; `rows` are the cotangent's bits."""
        runners = [Runner(each) for each in contenders(self.timing, self.candidates, self.device, shape)]
        figures = [self._blank(runner, shape) for runner in runners]
        try:
            inputs = self._inputs(shape, table, rows)
        except Exception as error:  # memory is short, each framework's own way
            for figure in figures:
                figure.problem = described(error)
            return figures
        for runner, figure in zip(runners, figures, strict=True):
            self._warmed(runner, inputs)
            if self.memory and runner.call is not None:
                figure.peak_bytes = self._peak(runner.contender, inputs)
        host = HostClock(self.timing, self.device)
        own = self.timing.device_clock(self.device)
        take_turns(runners, self.rounds, host)
        if own is not None:
            try:
                take_turns(runners, self.rounds, own)
            except Exception as error:  # the clock's own: a profiler that may not run, or sees nothing
                self.notes.append(f"{self.framework.NAME} on {self.device}: no {own.NAME} ({described(error)})")
        for runner, figure in zip(runners, figures, strict=True):
            figure.problem, figure.calls = runner.problem, runner.repeats
            if not runner.problem:
                _fill(figure, host, own)
        _compare(figures)
        return figures

    def _blank(self, runner: Runner, shape: Shape) -> Figure:
        return Figure(
            framework=self.framework.NAME,
            contender=runner.contender.name,
            kind=runner.contender.kind,
            direction=shape.direction,
            dtype=shape.dtype,
            tokens=shape.tokens,
            moved=runner.contender.moved,
        )

    def _inputs(self, shape: Shape, table: Callable[[], Any], rows: Bits) -> Inputs:
        put = self.framework.put
        cotangent = put(rows, shape.dtype, self.device) if shape.direction == BACKWARD else None
        return Inputs(put(ids_of(shape, self.timing.IDS), None, self.device), table(), cotangent)

    def _warmed(self, runner: Runner, inputs: Inputs) -> None:
        """Make the first call, which compiles, and find how many of the next ones make a lap."""
        try:
            call = runner.contender.prepare(inputs)
            self.timing.run(call, 1, self.device)
            begun = time.perf_counter()
            self.timing.run(call, 1, self.device)
            taken = time.perf_counter() - begun
        except (Exception, SystemExit) as error:  # anybody's kernel
            runner.drop(error)
            return
        most = min(_MOST_CALLS, max(_MOST_BYTES // max(runner.contender.result, 1), 1))
        runner.call, runner.repeats = call, min(math.ceil(_LAP / max(taken, 1e-9)), most)

    def _peak(self, contender: Contender, inputs: Inputs) -> int:
        """Return the bytes that a call holds at most beside its inputs, or 0 and a note where it cannot be told."""
        if contender.operator is None:
            return 0
        try:
            return self.framework.peak_extra_bytes(contender.operator, *inputs.operands)
        except (Exception, SystemExit) as error:  # such as what JAX cannot trace
            self.notes.append(f"{self.framework.NAME} {contender.name}: no peak memory ({described(error)})")
            return 0


def take_turns(runners: Sequence[Runner], rounds: int, clock: Clock) -> None:
    """Let everybody have a lap, round after round and one round more, which warms up; who raises is out."""
    with clock:
        for _ in range(rounds + 1):
            for runner in runners:
                if runner.call is not None:
                    try:
                        clock.lap(runner.contender.name, runner.call, runner.repeats)
                    except (Exception, SystemExit) as error:  # anybody's kernel
                        runner.drop(error)


def _fill(figure: Figure, host: Clock, own: Clock | None) -> None:
    """Write down what was measured, by the device's own clock if that saw anything."""
    by_host = host.seconds()[figure.contender][1:]
    laps = own.seconds().get(figure.contender, [])[1:] if own else []
    seen = own is not None and bool(laps) and min(laps) > 0
    figure.clock = own.NAME if own is not None and seen else host.NAME
    laps = laps if seen else by_host
    figure.seconds, figure.host_seconds = statistics.median(laps), statistics.median(by_host)
    first, _, last = statistics.quantiles(laps, n=4, method="inclusive") if len(laps) > 1 else (laps[0],) * 3
    figure.quartiles = first, last


def _compare(figures: Sequence[Figure]) -> None:
    """Hold every figure of a shape against the copy and against the framework's own operator, if they have any."""
    copy = next((figure.bandwidth for figure in figures if figure.kind == COPY), 0.0)
    native = next((figure.seconds for figure in figures if figure.kind == "native"), 0.0)
    for figure in figures:
        figure.of_copy = figure.bandwidth / copy if copy else 0.0
        figure.of_native = figure.seconds / native if native and figure.kind != COPY else 0.0
