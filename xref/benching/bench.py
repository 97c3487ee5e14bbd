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
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, cast

from xref import __version__, errors
from xref.benching.report import COPY, BenchReport, Figure, machine
from xref.benching.turns import HostClock, Runner, take_turns
from xref.bits import Bits
from xref.engine import frameworks
from xref.engine.candidate import Candidate
from xref.engine.frameworks import Framework
from xref.engine.timing import DIRECTIONS, Contender, Inputs, Shape, Timing
from xref.spec import Operator

__all__ = ["Options", "bench", "chosen"]

_COPIED, _COPIED_ELSEWHERE = 2**28, 2**30
"""Bytes that the copy copies, on a CPU and elsewhere: more than caches hold."""
_LAP = 5e-3
"""Seconds that the calls of a lap shall take together: a clock's own error is microseconds."""
_MOST_CALLS = 1000
_MOST_BYTES = 2**33
"""Of results on the way at once: JAX's calls return before they are done."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured, and how often; what is named twice is measured once."""

    framework: Sequence[str] = ()
    """`torch`, `jax`; none named means all that are installed and have the device."""
    device: str = "cpu"
    """`cpu`, `cuda` or `tpu`."""
    dtype: Sequence[str] = ("bfloat16", "float32")
    """Table dtypes."""
    direction: Sequence[str] = DIRECTIONS
    """`forward`, `backward`."""
    tokens: Sequence[int] = (8192,)
    """T, how many ids a call has, one shape after the other."""
    vocab: int = 151936
    """V, the rows of the table."""
    hidden: int = 4096
    """H, the elements of a row."""
    rounds: int = 7
    """How often each contender has a turn."""
    memory: bool = False
    """Whether peak memory is measured, too."""


def bench(
    operator: Operator,
    options: Options,
    candidates: Sequence[Candidate] = (),
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> BenchReport:
    """Measure all contenders at every shape; `report.ok` says whether everything could be measured.

    Args:
        operator: its module `contenders` has the goldens, native forms and inputs.
        options: the frameworks, shapes and rounds.
        candidates: kernels, each on the device.
        progress: called with what is measured next, how many shapes are done, and how many there are.

    Raises:
        MissingFrameworkError: a framework is not installed.
        UsageError: a framework does not have the device here.
    """
    taking_part, notes = chosen(options.framework, options.device)
    module, device, vocab, hidden = operator.module("contenders"), options.device, options.vocab, options.hidden
    report = BenchReport(
        xref=__version__,
        device=device,
        vocab=vocab,
        hidden=hidden,
        rounds=options.rounds,
        machine=machine(taking_part, device),
        figures=[],
        notes=notes,
    )
    shapes = list(dict.fromkeys((direction, tokens) for direction in options.direction for tokens in options.tokens))
    dtypes = dict.fromkeys(options.dtype)
    done, total = 0, len(dtypes) * len(taking_part) * len(shapes)
    for dtype in dtypes:
        rows = module.rows_of(max(vocab, *options.tokens), hidden, dtype)
        for each in taking_part:
            own = [one for one in candidates if one.framework.name == each.name]
            measure = _Measure(each, module, own, options)
            with each.arrays.precision(dtype):
                # Made when first asked for, so that one that does not fit is an error of its shapes.
                table = functools.cache(functools.partial(module.table_of, each, rows, vocab, dtype, device))
                for direction, tokens in shapes:
                    if progress is not None:
                        progress(f"{each.name} {dtype} {direction}, {tokens} tokens", done, total)
                    report.figures += measure(Shape(direction, dtype, vocab, hidden, tokens), table, rows)
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
        raise errors.MissingFrameworkError(missing[0])
    loaded = [frameworks.load(name) for name in dict.fromkeys(names or frameworks.FRAMEWORKS) if name not in missing]
    present = {each.name: frameworks.devices(each) for each in loaded}
    having = [each for each in loaded if device in present[each.name]]
    if not having or (names and len(having) < len(loaded)):
        here = "; ".join(f"{name} has {', '.join(kinds)}" for name, kinds in present.items())
        raise errors.UsageError("--device", device, f"a device that is here ({here})")
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
    module: ModuleType
    """The operator's, with its contenders and their inputs."""
    candidates: list[Candidate]
    options: Options
    notes: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.timing = cast(Timing, importlib.import_module(f"xref.{self.framework.name}_ops.timing"))
        self.device = self.options.device

    def __call__(self, shape: Shape, table: Callable[[], Any], rows: Bits) -> list[Figure]:
        """Return the figures of a shape; the first of `rows` are the bits of the table, and of the cotangent."""
        runners = [Runner(each) for each in self._contenders(shape)]
        figures = [self._blank(runner, shape) for runner in runners]
        try:
            inputs = self._inputs(shape, rows, table())
        except Exception as error:  # memory is short, each framework's own way
            for figure in figures:
                figure.problem = errors.described(error)
            return figures
        for runner, figure in zip(runners, figures, strict=True):
            self._try(runner, shape, rows)
            self._warmed(runner, inputs)
            if self.options.memory and runner.call is not None:
                figure.peak_bytes = self._peak(runner.contender, inputs)
        host = HostClock(self.timing, self.device)
        take_turns(runners, self.options.rounds, host)
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
            take_turns(runners, self.options.rounds, clock)
            laps = {key: (clock.NAME, each) for key, each in clock.seconds().items() if min(each) > 0}
            unseen = [runner.contender.name for runner in runners if runner.call and runner.key not in laps]
            if unseen:  # ratios are of one clock
                laps, why = {}, f"it saw nothing of {', '.join(unseen)}"
        except Exception as error:  # the clock's own: a profiler that may not run, or does not show the device
            laps, why = {}, errors.described(error)
        if why:
            self.notes.append(f"{self.framework.name} on {self.device}: no {clock.NAME} ({why})")
        return laps

    def _blank(self, runner: Runner, shape: Shape) -> Figure:
        return Figure(
            framework=self.framework.name,
            contender=runner.contender.name,
            kind=runner.contender.kind,
            direction=shape.direction,
            dtype=shape.dtype,
            tokens=shape.tokens,
            moved=runner.contender.moved,
        )

    def _contenders(self, shape: Shape) -> Iterator[Contender]:
        """Yield who takes part at a shape, the copy first."""
        size = _COPIED if self.device == "cpu" else _COPIED_ELSEWHERE
        copying = functools.partial(self.timing.copying, size, self.device)
        yield Contender(name=COPY, kind=COPY, moved=2 * size, result=0, prepare=lambda inputs: copying())
        yield from self.module.contenders(self.timing, self.candidates, shape)

    def _inputs(self, shape: Shape, rows: Bits, table: Any) -> Inputs:
        return self.module.inputs_of(self.framework, self.timing.IDS, shape, rows, table, self.device)

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

        Its elements are of no concern here, but that it does less than the others, or spoils their inputs.
        """
        if runner.contender.form is None:
            return
        own = rows.copy()  # on a CPU an array of a framework may be the same memory
        try:
            table = self.module.table_of(self.framework, own, shape.vocab, shape.dtype, self.device)
            inputs = self._inputs(shape, own, table)
            got = self.framework.arrays.form_of(runner.contender.prepare(inputs)())
            if got != (expected := (*runner.contender.form, self.device)):
                raise errors.bad_value("out", _described_form(got), _described_form(expected), "bench")
            if not self.module.unchanged(self.framework, inputs, shape, own, rows):
                raise errors.bad_value("inputs", "other bits after a call", "the same", "bench")
        except (Exception, SystemExit) as error:  # anybody's kernel
            runner.drop(error)

    def _peak(self, contender: Contender, inputs: Inputs) -> int:
        """Return the bytes that a call holds at most beside its inputs, or 0 and a note where it cannot be measured."""
        if contender.operator is None:
            return 0
        try:
            return self.framework.memory.peak_extra_bytes(contender.operator, *inputs.operands, alone=False)
        except (Exception, SystemExit) as error:  # such as what JAX cannot trace
            self.notes.append(f"{self.framework.name} {contender.name}: no peak memory ({errors.described(error)})")
            return 0


def _described_form(form: tuple[tuple[int, ...], str, str]) -> str:
    shape, dtype, device = form
    return f"shape {shape}, {dtype}, on {device}"


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
