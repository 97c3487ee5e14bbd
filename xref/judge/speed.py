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

import numpy as np

from xref import __version__, errors
from xref.bits import Bits
from xref.judge import frameworks
from xref.judge.candidate import Candidate
from xref.judge.contenders import (
    BACKWARD,
    DIRECTIONS,
    Contender,
    Inputs,
    Shape,
    Timing,
    contenders,
    ids_of,
    rows_of,
)
from xref.judge.frameworks import Framework
from xref.judge.large import differ
from xref.judge.speed_report import COPY, BenchReport, Figure, machine
from xref.judge.subject import MisformedError, Progress, described
from xref.judge.turns import HostClock, Runner, take_turns

__all__ = ["bench", "chosen"]

_CALL = "bench"
_LAP = 5e-3
"""Seconds that the calls of a lap shall take together: a clock's own error is microseconds."""
_MOST_CALLS = 1000
_MOST_BYTES = 2**33
"""Of results on the way at once: JAX's calls return before they are done."""


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
    rounds: int = 7,
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
    taking_part, notes = chosen(framework, device)
    report = BenchReport(
        xref=__version__,
        device=device,
        vocab=vocab,
        hidden=hidden,
        rounds=rounds,
        machine=machine(taking_part, device),
        figures=[],
        notes=notes,
    )
    # Each is measured once, however often it is named.
    shapes = list(dict.fromkeys((way, count) for way in direction for count in tokens))
    dtypes = dict.fromkeys(dtype)
    done, total = 0, len(dtypes) * len(taking_part) * len(shapes)
    for kind in dtypes:
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
                    report.figures += measure(shape, table, rows)
                    done += 1
                    gc.collect()  # JAX's arrays hold themselves in cycles, and the next ones may be as large
            report.notes += [note for note in dict.fromkeys(measure.notes) if note not in report.notes]
            del table
            gc.collect()
    return report


def chosen(names: Sequence[str], device: str) -> tuple[list[Framework], list[str]]:
    """Return the frameworks that take part, and why others do not.

    Raises:
        MissingFrameworkError: one that is named is not installed, or none is.
        UsageError: one that is named does not have the device here, or none does.
    """
    missing = [name for name in frameworks.FRAMEWORKS if not names and not frameworks.installed(name)]
    if len(missing) == len(frameworks.FRAMEWORKS):
        raise errors.MissingFrameworkError(missing[0], _CALL)
    loaded = [
        frameworks.load(name, _CALL) for name in dict.fromkeys(names or frameworks.FRAMEWORKS) if name not in missing
    ]
    present = {each.NAME: frameworks.devices(each, _CALL) for each in loaded}
    having = [each for each in loaded if device in present[each.NAME]]
    if not having or (names and len(having) < len(loaded)):
        here = "; ".join(f"{name} has {', '.join(kinds)}" for name, kinds in present.items())
        raise errors.UsageError(errors.message("--device", device, f"a device that is here ({here})", _CALL))
    notes = [f"{name} takes no part: it is not installed" for name in missing]
    notes += [
        f"{name} takes no part: it has {', '.join(kinds)} here"
        for name, kinds in present.items()
        if device not in kinds
    ]
    return having, notes


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
        """Return the figures of a shape; the first of `rows` are the bits of the table, and of the cotangent."""
        runners = [Runner(each) for each in contenders(self.timing, self.candidates, self.device, shape)]
        figures = [self._blank(runner, shape) for runner in runners]
        try:
            inputs = self._inputs(shape, table, rows)
        except Exception as error:  # memory is short, each framework's own way
            for figure in figures:
                figure.problem = described(error)
            return figures
        for runner, figure in zip(runners, figures, strict=True):
            self._try(runner, shape, rows)
            self._warmed(runner, inputs)
            if self.memory and runner.call is not None:
                figure.peak_bytes = self._peak(runner.contender, inputs)
        host = HostClock(self.timing, self.device)
        take_turns(runners, self.rounds, host)
        own = self._own_clock(runners)
        for runner, figure in zip(runners, figures, strict=True):
            figure.problem, figure.calls = runner.problem, runner.repeats
            if not runner.problem:
                _fill(figure, host.seconds()[runner.key], own.get(runner.key, ("", [])))
        _compare(figures)
        return figures

    def _own_clock(self, runners: Sequence[Runner]) -> dict[str, tuple[str, list[float]]]:
        """Return the laps by the device's own clock, with its name, if it saw something of everybody."""
        clock = self.timing.device_clock(self.device)
        if clock is None:
            return {}
        why = ""
        try:
            take_turns(runners, self.rounds, clock)
            laps = {key: (clock.NAME, each) for key, each in clock.seconds().items() if min(each) > 0}
            unseen = [runner.contender.name for runner in runners if runner.call and runner.key not in laps]
            if unseen:  # ratios are of one clock
                laps, why = {}, f"it saw nothing of {', '.join(unseen)}"
        except Exception as error:  # the clock's own: a profiler that may not run, or does not show the device
            laps, why = {}, described(error)
        if why:
            self.notes.append(f"{self.framework.NAME} on {self.device}: no {clock.NAME} ({why})")
        return laps

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
        cotangent = put(rows[: shape.tokens], shape.dtype, self.device) if shape.direction == BACKWARD else None
        return Inputs(put(ids_of(shape, self.timing.IDS), None, self.device), table(), cotangent)

    def _warmed(self, runner: Runner, inputs: Inputs) -> None:
        """Make the first call, which compiles, and find how many of the next ones make a lap."""
        if runner.problem:
            return
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

    def _try(self, runner: Runner, shape: Shape, rows: Bits) -> None:
        """Call a candidate once on inputs of its own; one that gives another form or changes them does not take part.

        What it gives is of no concern here, but that it does less than the others, or spoils what they are given.
        """
        if runner.contender.form is None:
            return
        own = rows.copy()  # on a CPU an array of a framework may be the same memory
        try:
            table = functools.partial(self.framework.put, own[: shape.vocab], shape.dtype, self.device)
            inputs = self._inputs(shape, table, own)
            got = self.framework.form_of(runner.contender.prepare(inputs)())
            if got != (wanted := (*runner.contender.form, self.device)):
                raise MisformedError(got, wanted)
            left = self.framework.bits_of(inputs.table), self.framework.numpy_of(inputs.ids)
            kept = rows[: shape.vocab], ids_of(shape, self.timing.IDS)
            if not all(map(np.array_equal, left, kept)) or differ(own, rows):
                raise errors.bad_value("inputs", "other bits after a call", "the same", _CALL)
        except (Exception, SystemExit) as error:  # anybody's kernel
            runner.drop(error)

    def _peak(self, contender: Contender, inputs: Inputs) -> int:
        """Return the bytes that a call holds at most beside its inputs, or 0 and a note where it cannot be told."""
        if contender.operator is None:
            return 0
        try:
            return self.framework.peak_extra_bytes(contender.operator, *inputs.operands, alone=False)
        except (Exception, SystemExit) as error:  # such as what JAX cannot trace
            self.notes.append(f"{self.framework.NAME} {contender.name}: no peak memory ({described(error)})")
            return 0


def _fill(figure: Figure, by_host: Sequence[float], own: tuple[str, Sequence[float]]) -> None:
    """Write down the laps but the first, by the device's own clock if it has any."""
    clock, laps = own if own[1] else (HostClock.NAME, by_host)
    figure.clock, laps = clock, laps[1:]
    figure.seconds, figure.host_seconds = statistics.median(laps), statistics.median(by_host[1:])
    first, _, last = statistics.quantiles(laps, n=4, method="inclusive") if len(laps) > 1 else (laps[0],) * 3
    figure.quartiles = first, last


def _compare(figures: Sequence[Figure]) -> None:
    """Hold every figure of a shape against the copy and against the framework's own operator, if they have any."""
    copy = next((figure.bandwidth for figure in figures if figure.kind == COPY), 0.0)
    native = next((figure.seconds for figure in figures if figure.kind == "native"), 0.0)
    for figure in figures:
        figure.of_copy = figure.bandwidth / copy if copy else 0.0
        figure.of_native = figure.seconds / native if native and figure.kind != COPY else 0.0
