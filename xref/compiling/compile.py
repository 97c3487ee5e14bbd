"""`xref compile`: what a compiler makes of a JAX kernel, read from the program that it would run, without running it.

Two questions: is the output a pure copy of the table's elements (`copies`), and does a temporary grow with the table
(EMB-12)? For the second everything is compiled once more for a quarter of the rows: what the temporaries grow by with
each row tells whether there is one of the table's size, whatever else there is. One bit an element is the least that
such a temporary can have, so that is the limit.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from xref import __version__, errors
from xref.bits import FORMATS
from xref.compiling.copies import Flow, flow_of
from xref.compiling.hlo import read
from xref.compiling.report import GRADIENT, CompiledProgram, CompileReport
from xref.engine import frameworks
from xref.engine.candidate import Candidate, candidate_of
from xref.spec import Operator

__all__ = ["Options", "compile_kernel", "compiler"]

_FAST_MEMORY = 2**27  # bytes: the largest VMEM of a TPU; what is in it is not among the temporaries


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What is compiled, and for what."""

    topology: tuple[str, ...] = ()
    """TPUs that need not be here, such as `v5e:2x2`; the `libtpu` package compiles for them."""
    device: tuple[str, ...] = ()
    """Kinds of device that are here: `cpu`, `cuda`, `tpu`."""
    dtype: tuple[str, ...] = ("bfloat16", "float32")
    """Table dtypes."""
    verb: tuple[str, ...] = ()
    """Verbs of the operator, or `gradient`; none named means the verbs that the kernel has."""
    vocab: int = 151936
    """V, the rows of the table; at least 4. For TPUs a quarter of the table must be larger than the fast memory that
    their compiler does not count."""
    hidden: int = 4096
    """H, the elements of a row."""
    tokens: int = 8192
    """T, how many ids there are, int32 `[T]`."""


def compiler() -> ModuleType:
    """Return the module that compiles, having loaded JAX.

    Raises:
        MissingFrameworkError: JAX is not installed.
        UsageError: JAX cannot be imported.
    """
    frameworks.load("jax")
    return importlib.import_module("xref.jax_ops.compiling")


def compile_kernel(
    operator: Operator,
    target: object,
    options: Options,
    *,
    name: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> CompileReport:
    """Compile a JAX kernel and read what came of it.

    Args:
        operator: the kernel's; its module `programs` says what its verbs take and return.
        target: as `xref.judge` takes it, of JAX.
        options: what is compiled, and for what.
        name: what the report calls it.
        progress: called with what is compiled next, how many programs are done, and how many there are.

    Returns:
        The report; `report.ok` says whether every program is a proven copy without a temporary of the table's size.

    Raises:
        MissingFrameworkError: JAX is not installed.
        UsageError: the target is no kernel, or lacks the verb; no compiler for a topology; no such device or topology.
    """
    backend = compiler()
    candidate = candidate_of(target, verbs=operator.verbs, trial={}, framework="jax", device="cpu", name=name)
    for topology in options.topology:
        _check_topology(topology, backend)
    for device in options.device:
        _check_device(device)
    own = [verb for verb in candidate.verbs if verb in operator.verbs]
    for verb in options.verb:
        if verb not in (*own, GRADIENT):
            raise errors.UsageError("--verb", verb, f"one of {', '.join((*own, GRADIENT))}")
    compilation = _Compilation(candidate, backend, operator.module("programs"), options)
    programs = [
        (place, verb, dtype)
        for place in (*options.topology, *options.device)
        for verb in options.verb or own
        for dtype in options.dtype
        if compilation.module.takes(verb, dtype)
    ]
    if not programs:
        expected = "a topology or a device, and a verb that takes one of the dtypes"
        raise errors.UsageError("xref compile", "nothing to compile", expected)
    for place, _, dtype in programs:
        _check_size(place, dtype, options)
    found = []
    for done, (place, verb, dtype) in enumerate(programs):
        if progress is not None:
            progress(f"{verb} {dtype} for {place}", done, len(programs))
        found.append(compilation.program(verb, dtype, place))
    return CompileReport(
        xref=__version__,
        candidate=candidate.name,
        jax=candidate.framework.arrays.version(),
        compiler=importlib.metadata.version("libtpu") if options.topology or "tpu" in options.device else "",
        vocab=options.vocab,
        hidden=options.hidden,
        tokens=options.tokens,
        programs=found,
    )


def _check_device(device: str) -> None:
    present = frameworks.devices(frameworks.load("jax"))
    if device not in present:
        raise errors.UsageError("--device", device, f"a device that jax has here: {', '.join(present)}")


def _check_topology(topology: str, backend: ModuleType) -> None:
    if not backend.has_tpu_compiler():
        got, expected = f"{topology} without the libtpu package", "the TPU's compiler: pip install 'xref[tpu]'"
        raise errors.UsageError("--topology", got, expected)
    why = "a device" if frameworks.load("jax").arrays.supports(topology) else ""
    try:
        if not why:
            backend.device_of(topology)
    except ValueError as error:
        why = str(error)
    if why:
        expected = f"a topology such as {', '.join(backend.TOPOLOGIES)}"
        raise errors.UsageError("--topology", f"{topology} ({why})", expected)


def _check_size(place: str, dtype: str, options: Options) -> None:
    """Raise where a table is too small for its copy to show in the temporaries."""
    size = options.vocab * options.hidden * FORMATS[dtype].width // 8
    least = _FAST_MEMORY if place not in ("cpu", "cuda") else 0
    if options.vocab < 4 or size // 4 < least:
        expected = f"4 rows or more, and for a TPU {4 * _FAST_MEMORY // 10**6} MB: a smaller copy would not be counted"
        got = f"a table of {options.vocab} rows and {size / 1e6:g} MB"
        raise errors.UsageError("--vocab, --hidden", got, expected)


@dataclasses.dataclass(frozen=True)
class _Compilation:
    """What compiles a candidate, program after program."""

    candidate: Candidate
    backend: ModuleType
    module: ModuleType
    """The operator's, which says what its verbs take and return."""
    options: Options

    def program(self, verb: str, dtype: str, where: str) -> CompiledProgram:
        """Return what one program shows; a kernel that does not compile has a problem."""
        vocab, hidden = self.options.vocab, self.options.hidden
        found = CompiledProgram(verb=verb, dtype=dtype, where=where, limit=hidden / 8)
        framework = self.candidate.framework
        call: Callable[..., Any] = self.candidate.verbs.get(verb) or functools.partial(
            framework.modes.gradient, next(iter(self.candidate.verbs.values()))
        )
        fewer = max(vocab // 4, 1)
        try:
            with framework.arrays.precision(dtype):
                whole, part = (
                    self.backend.compile_program(
                        call, self.module.inputs(verb, dtype, rows, hidden, self.options.tokens), where
                    )
                    for rows in (vocab, fewer)
                )
            found.temporaries, found.output = whole.temporaries, whole.output
            found.growth = (whole.temporaries - part.temporaries) / max(vocab - fewer, 1)
            found.reasons = list(self._misformed(verb, dtype, whole.form))
            if verb != GRADIENT:
                # On a CPU a select of narrow floats, or of integers that become such, may go through float32.
                flow = _read(whole.text, self.module.COPIED, selects=where != "cpu")
                found.operations, found.reasons = list(flow.operations), [*found.reasons, *flow.reasons]
        except (Exception, SystemExit) as error:  # anybody's kernel, and the compiler's own errors
            found.problem = errors.described(error)
        return found

    def _misformed(self, verb: str, dtype: str, form: tuple[tuple[int, ...], str]) -> Iterator[str]:
        options = self.options
        expected = self.module.result(verb, dtype, options.vocab, options.hidden, options.tokens)
        if form != expected:
            yield f"an output {form[1]} {form[0]}, expected {expected[1]} {expected[0]}"


def _read(text: str, copied: int, *, selects: bool) -> Flow:
    try:
        return flow_of(read(text), copied, selects=selects)
    except (ValueError, LookupError) as error:  # another version's text
        return Flow((), (str(error),))
