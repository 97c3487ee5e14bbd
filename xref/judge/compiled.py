"""`xref compile`: what a compiler makes of a JAX kernel, read from the program that it would run, without running it.

Two questions: is the way from the table to the output a pure copy (`copies`), and does a temporary grow with the table
(EMB-12)? For the second everything is compiled once more for a quarter of the rows: what the temporaries grow by with
each row tells whether there is one of the table's size, whatever else there is. One bit an element is the least that
such a temporary can have, so that is the limit.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec

from xref import __version__, errors
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.judge import frameworks
from xref.judge.candidate import Candidate, candidate_of
from xref.judge.copies import Way, way_of
from xref.judge.hlo import read
from xref.judge.subject import Progress, described

__all__ = ["GRADIENT", "CompileReport", "Compiled", "compile_kernel", "compiler"]

GRADIENT = "gradient"
"""What is compiled beside the verbs: the gradient of the first of them."""
_CALL = "compile"
_FAST_MEMORY = 2**27  # bytes: the largest VMEM of a TPU; what lies there is not among the temporaries


class Compiled(msgspec.Struct, kw_only=True):
    """One program, compiled."""

    verb: str
    dtype: str
    where: str
    """A topology of TPUs, or a kind of device."""
    temporaries: int = 0
    """Bytes."""
    output: int = 0
    """Bytes."""
    growth: float = 0.0
    """Bytes by which the temporaries grow with each row of the table."""
    limit: float = 0.0
    """What that growth must stay below: one bit an element."""
    operations: list[str] = []
    """On the way from the table to the output; of a gradient, none."""
    reasons: list[str] = []
    """Why that way is not proven to be a copy."""
    problem: str = ""
    """Why there is no program."""

    @property
    def copies(self) -> str:
        """Whether the way is a pure copy: `proven`, `not proven`, or nothing where it need not be one."""
        if self.problem or (self.verb == GRADIENT and not self.reasons):
            return ""
        return "not proven" if self.reasons else "proven"

    @property
    def grows(self) -> bool:
        """Whether a temporary has the table's size."""
        return self.growth >= self.limit

    @property
    def ok(self) -> bool:
        """Whether it is a copy, where it has to be one, without a temporary of the table's size."""
        return not (self.problem or self.reasons or self.grows)


class CompileReport(msgspec.Struct, kw_only=True):
    """All programs of one kernel."""

    xref: str
    candidate: str
    jax: str
    compiler: str
    """Version of the `libtpu` package; empty where it was not used."""
    vocab: int
    hidden: int
    tokens: int
    programs: list[Compiled]

    @property
    def ok(self) -> bool:
        """Whether every program is as it must be; none at all is not."""
        return bool(self.programs) and all(program.ok for program in self.programs)

    def to_json(self) -> str:
        """Return the report as JSON."""
        programs = [
            {**msgspec.to_builtins(program), "copies": program.copies, "ok": program.ok} for program in self.programs
        ]
        record = {**msgspec.to_builtins(self), "ok": self.ok, "programs": programs}
        return msgspec.json.format(msgspec.json.encode(record)).decode()


def compiler() -> ModuleType:
    """Return the module that compiles, having loaded JAX.

    Raises:
        MissingFrameworkError: JAX is not installed.
        UsageError: JAX cannot be imported.
    """
    frameworks.load("jax", _CALL)
    return importlib.import_module("xref.jax_ops.compiling")


def compile_kernel(
    target: object,
    *,
    topology: tuple[str, ...] = (),
    device: tuple[str, ...] = (),
    dtype: tuple[str, ...] = ("bfloat16", "float32"),
    verb: tuple[str, ...] = (),
    vocab: int = 151936,
    hidden: int = 4096,
    tokens: int = 8192,
    name: str | None = None,
    progress: Progress | None = None,
) -> CompileReport:
    """Compile a JAX kernel and read what came of it.

    Args:
        target: as `xref.judge` takes it, of JAX.
        topology: TPUs that need not be here, such as `v5e:2x2`; the `libtpu` package compiles for them.
        device: kinds of device that are here: `cpu`, `cuda`, `tpu`.
        dtype: table dtypes.
        verb: `forward`, `forward_fp32` or `gradient`; none named means the first two, where the kernel has them.
        vocab: V, the rows of the table; at least 4. For TPUs a quarter of the table must be larger than the fast memory
            that their compiler does not count.
        hidden: H, the elements of a row.
        tokens: T, how many ids there are, int32 `[T]`.
        name: what the report calls it.
        progress: called with what is compiled next, how many programs are done, and how many there are.

    Returns:
        The report; `report.ok` says whether every program is a proven copy without a temporary of the table's size.

    Raises:
        MissingFrameworkError: JAX is not installed.
        UsageError: the target is no kernel, or lacks the verb; no compiler for a topology; no such device or topology.
    """
    made = compiler()
    candidate = candidate_of(target, framework="jax", device="cpu", name=name)
    for each in topology:
        _check_topology(each, made)
    for each in device:
        _check_device(each)
    verbs = verb or tuple(candidate.verbs)
    for each in verbs:
        if each not in (*candidate.verbs, GRADIENT):
            has = f"one of {', '.join((*candidate.verbs, GRADIENT))}"
            raise errors.UsageError(errors.message("--verb", each, has, _CALL))
    places = (*topology, *device)
    wanted = [(place, each, kind) for place in places for each in verbs for kind in dtype if _there_is(each, kind)]
    if not wanted:
        expected = "a topology or a device, and a verb that takes one of the dtypes"
        raise errors.UsageError(errors.message("xref compile", "nothing to compile", expected, _CALL))
    for place, _, kind in wanted:
        _check_size(place, kind, (vocab, hidden))
    programs = []
    for done, (place, each, kind) in enumerate(wanted):
        if progress is not None:
            progress(f"{each} {kind} for {place}", done, len(wanted))
        programs.append(_compiled(candidate, made, each, kind, place, (vocab, hidden, tokens)))
    return CompileReport(
        xref=__version__,
        candidate=candidate.name,
        jax=candidate.framework.version(),
        compiler=importlib.metadata.version("libtpu") if topology or "tpu" in device else "",
        vocab=vocab,
        hidden=hidden,
        tokens=tokens,
        programs=programs,
    )


def _check_device(device: str) -> None:
    present = frameworks.devices(frameworks.load("jax", _CALL), _CALL)
    if device not in present:
        expected = f"a device that jax has here: {', '.join(present)}"
        raise errors.UsageError(errors.message("--device", device, expected, _CALL))


def _check_topology(topology: str, made: ModuleType) -> None:
    if not made.has_tpu_compiler():
        got, expected = f"{topology} without the libtpu package", "the TPU's compiler: pip install 'xref[tpu]'"
        raise errors.UsageError(errors.message("--topology", got, expected, _CALL))
    why = "a device" if frameworks.load("jax", _CALL).supports(topology) else ""
    try:
        if not why:
            made.device_of(topology)
    except ValueError as error:
        why = str(error)
    if why:
        expected = f"a topology such as {', '.join(made.TOPOLOGIES)}"
        raise errors.UsageError(errors.message("--topology", f"{topology} ({why})", expected, _CALL))


def _check_size(place: str, dtype: str, sizes: tuple[int, int]) -> None:
    """Raise where a table is too small for its copy to show in the temporaries."""
    vocab, hidden = sizes
    size = vocab * hidden * FORMATS[dtype].width // 8
    least = _FAST_MEMORY if place not in ("cpu", "cuda") else 0
    if vocab < 4 or size // 4 < least:
        expected = f"4 rows or more, and for a TPU {4 * _FAST_MEMORY // 10**6} MB: a smaller copy would not be counted"
        got = f"a table of {vocab} rows and {size / 1e6:g} MB"
        raise errors.UsageError(errors.message("--vocab, --hidden", got, expected, _CALL))


def _there_is(verb: str, dtype: str) -> bool:
    return verb == GRADIENT or verb in contract.verbs_of(dtype)


def _compiled(
    candidate: Candidate, made: ModuleType, verb: str, dtype: str, where: str, sizes: tuple[int, int, int]
) -> Compiled:
    vocab, hidden, tokens = sizes
    found = Compiled(verb=verb, dtype=dtype, where=where, limit=hidden / 8)
    call: Callable[..., Any] = candidate.verbs.get(verb) or functools.partial(
        candidate.framework.gradient, next(iter(candidate.verbs.values()))
    )
    less = max(vocab // 4, 1)
    try:
        with candidate.framework.precision(dtype):
            whole, part = (
                made.compile_program(call, list(_inputs(verb, dtype, rows, hidden, tokens)), where)
                for rows in (vocab, less)
            )
            found.temporaries, found.output = whole.temporaries, whole.output
            found.growth = (whole.temporaries - part.temporaries) / max(vocab - less, 1)
        found.reasons = list(_misformed(verb, dtype, whole.form, sizes))
        if verb != GRADIENT:
            # On a CPU a select of narrow floats, or of integers that become such, may go through float32.
            way = _read(whole.text, selects=where != "cpu")
            found.operations, found.reasons = list(way.operations), [*found.reasons, *way.reasons]
    except (Exception, SystemExit) as error:  # anybody's kernel, and the compiler's own errors
        found.problem = described(error)
    return found


def _misformed(verb: str, dtype: str, form: tuple[tuple[int, ...], str], sizes: tuple[int, int, int]) -> Iterator[str]:
    vocab, hidden, tokens = sizes
    wanted = (
        (vocab if verb == GRADIENT else tokens, hidden),
        dtype if verb == GRADIENT else contract.result_dtype(verb, dtype),
    )
    if form != wanted:
        (shape, kind), (due, due_kind) = form, wanted
        yield f"an output {kind} {shape}, expected {due_kind} {due}"


def _read(text: str, *, selects: bool) -> Way:
    try:
        return way_of(read(text), 1, selects=selects)
    except (ValueError, LookupError) as error:  # another version's text
        return Way((), (str(error),))


def _inputs(verb: str, dtype: str, vocab: int, hidden: int, tokens: int) -> Iterator[tuple[tuple[int, ...], str]]:
    yield (tokens,), "int32"
    yield (vocab, hidden), dtype
    if verb == GRADIENT:
        yield (tokens, hidden), dtype
