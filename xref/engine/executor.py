"""Scripts performed on a kernel: each step becomes calls of the framework, and each result a reply."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from xref.bits import FORMATS, as_bits, from_bits
from xref.engine import results
from xref.engine.clock import CrashedError
from xref.engine.frameworks import Framework
from xref.engine.layouts import DENSE, LAYOUTS
from xref.engine.steps import (
    Add,
    Count,
    Differentiate,
    Done,
    Drop,
    NotMade,
    Overwrite,
    Peak,
    Put,
    Raised,
    Read,
    Reply,
    Reuse,
    Run,
    Script,
    Step,
)
from xref.inputs import allocate

__all__ = ["Executor"]

TRACED = "traced"
Call = Callable[..., Any]
_Changing = (Run, Differentiate, Add, Overwrite, Peak)


@dataclasses.dataclass
class _Scope:
    """What the steps of one script have made so far."""

    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)
    """By name: arrays of the framework's, or what a verb has returned."""
    outdated: set[str] = dataclasses.field(default_factory=set)
    """Names of arrays that should have been overwritten and could not be."""

    def lacks(self, step: Step) -> str:
        """Return what a step needs and no step has made, or nothing."""
        needed: tuple[Any, ...] = ()
        if isinstance(step, Run | Differentiate | Peak):
            needed = step.arguments
            needed += (step.cotangent,) if isinstance(step, Differentiate) else ()
            needed += step.warm if isinstance(step, Peak) else ()
        elif isinstance(step, Add):
            needed = step.first, step.second
        elif isinstance(step, Read | Overwrite):
            needed = (step.name,)
        names = [name for name in needed if isinstance(name, str)]
        outdated = set() if isinstance(step, Overwrite) else self.outdated
        return next((name for name in names if name not in self.arrays or name in outdated), "")

    def of(self, names: tuple[str | int, ...]) -> tuple[Any, ...]:
        """Return arguments: arrays for their names, and numbers as they are."""
        return tuple(self.arrays[name] if isinstance(name, str) else name for name in names)


class Executor:
    """Performs scripts on a kernel; between scripts it keeps the arrays that have a key, until they are dropped.

    Args:
        verbs: the kernel's functions by name, `backward` among them if it has one.
        framework: whose arrays they take.
        device: `cpu`, `cuda` or `tpu`.
        takes_over: whether the arrays of a script are nobody else's, so that they need not be copied.
        alone: whether no other thread takes memory while that of a call is measured.
    """

    def __init__(
        self, verbs: Mapping[str, Call], framework: Framework, device: str, *, takes_over: bool = False,
        alone: bool = True,
    ) -> None:  # fmt: skip
        self._verbs, self._framework, self._device = verbs, framework, device
        self._arrays, self._takes_over, self._alone = framework.arrays, takes_over, alone
        self._kept: dict[str, Any] = {}
        self._calls: dict[tuple[Any, ...], Call | None] = {}

    def perform(self, script: Script, *, copies: bool = True) -> Iterator[Reply]:
        """Yield a reply to each step.

        Without `copies` an output's elements may be in the output's own memory: they are good until the next step.
        With them only those of the last call's are, which the next script may change.

        Raises:
            CrashedError: the clock of `limited` has rung.
            KeyboardInterrupt: the user has.
        """
        scope = _Scope()
        last = max((n for n, step in enumerate(script.steps) if isinstance(step, _Changing)), default=-1)
        for n, step in enumerate(script.steps):
            yield self._performed(step, scope, script.dtype, copy=copies and n < last)

    def clear(self) -> None:
        """Drop all arrays that are kept."""
        self._kept.clear()

    def _performed(self, step: Step, scope: _Scope, dtype: str, *, copy: bool) -> Reply:
        missing = scope.lacks(step)
        try:
            if missing:
                reply: Reply = NotMade(why=f"{missing} was not made")
            else:
                with self._arrays.precision(dtype):
                    reply = self._made(step, scope, copy=copy)
        except (CrashedError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, and what pytest's skip and exit raise
            reply = self._raised(step, error)
        if isinstance(reply, NotMade | Raised):
            if isinstance(step, Overwrite):
                scope.outdated.add(step.name)
            elif not isinstance(step, Read):
                scope.arrays.pop(step.name, None)
        return reply

    def _raised(self, step: Step, error: BaseException) -> Reply:
        refused = isinstance(step, Run) and step.refusable and isinstance(error, Exception)
        # JAX cannot differentiate what it cannot see into, and says so in many ways.
        unconnected = isinstance(step, Differentiate) and (
            self._framework.name == "jax" or isinstance(error, NotImplementedError)
        )
        return results.raised_of(error, refused=refused, unconnected=unconnected)

    def _made(self, step: Step, scope: _Scope, *, copy: bool) -> Reply:
        match step:
            case Put():
                scope.arrays[step.name] = self._put(step)
            case Reuse():
                if step.key not in self._kept:
                    return NotMade(why=f"nothing is kept under {step.key}")
                scope.arrays[step.name] = self._kept[step.key]
            case Overwrite():
                if not self._arrays.overwrite(scope.arrays[step.name], step.array, counted=step.counted):
                    return NotMade(why=f"{self._framework.name} cannot write into such an array")
                scope.outdated.discard(step.name)
            case Drop():
                scope.arrays.pop(step.name, None)
                self._kept.pop(step.name, None)
            case Read():
                return results.output_of(self._arrays, scope.arrays[step.name], rows=step.rows, copy=copy)
            case Add():
                first, second = scope.of((step.first, step.second))
                return self._result(step, scope, first + second, copy=copy)
            case Run():
                return self._run(step, scope, copy=copy)
            case Differentiate():
                return self._differentiate(step, scope, copy=copy)
            case Peak():
                return self._peak(step, scope)
        return Done()

    def _put(self, step: Put) -> Any:
        layout = LAYOUTS[step.layout]
        if step.rows is not None:
            array = allocate((step.vocab, *step.array.shape[1:]), step.array.dtype)
            array[step.rows] = step.array
            array = array if step.layout == DENSE else layout.make(array)
        elif (self._takes_over or step.checksums) and step.layout == DENSE and step.array.flags.writeable:
            array = step.array
        else:
            array = layout.make(step.array)
        if step.host:
            placed: Any = array if step.dtype is None else from_bits(array, step.dtype)
        else:
            placed = self._arrays.put(array, step.dtype, self._device)
        placed = placed if layout.cut is None else layout.cut(placed)
        if step.key:
            self._kept[step.key] = placed
        return placed

    def _run(self, step: Run, scope: _Scope, *, copy: bool) -> Reply:
        arguments = scope.of(step.arguments)
        call = self._call(step.verb, step.mode, arguments[2:], step.options)
        if call is None:
            return self._absent(step.verb, step.mode)
        out = call(*arguments[:2])
        if isinstance(out, np.ndarray) and out.dtype.name in FORMATS and any(map(_is_numpy_table, arguments)):
            out = self._arrays.put(as_bits(out).copy(), out.dtype.name, self._device)
        return self._result(step, scope, out, copy=copy)

    def _differentiate(self, step: Differentiate, scope: _Scope, *, copy: bool) -> Reply:
        first, *middle, last = scope.of(step.arguments)
        call = self._call(step.verb, "", (), {})
        if call is None:
            return self._absent(step.verb, "")
        if middle:
            verb = call
            call = lambda one, other: verb(one, *middle, other)  # noqa: E731
        way = self._gradient_call(step, call)
        mode = self._mode(step.mode)
        if way is None or mode is None:
            return self._absent(step.verb, step.way if way is None else step.mode)
        taken = mode(lambda one, cotangent: way(one, last, cotangent))
        return self._result(step, scope, taken(first, scope.arrays[step.cotangent]), copy=copy)

    def _gradient_call(self, step: Differentiate, call: Call) -> Call | None:
        """Return what takes the gradient of `call` in the step's way: `(first, last, cotangent) -> gradient`."""
        modes = self._framework.modes
        if step.way == TRACED:
            key = (TRACED, "gradient", step.verb)
            if len(step.arguments) > 2:  # they are in the trace
                return modes.traced_gradient(call)
            if key not in self._calls:
                self._calls[key] = modes.traced_gradient(call)
            return self._calls[key]
        way: Call | None = modes.gradient_calls().get(step.way) if step.way else modes.gradient
        return None if way is None else lambda *arrays: way(call, *arrays)

    def _peak(self, step: Peak, scope: _Scope) -> Reply:
        arguments, warm = scope.of(step.arguments), [scope.of(step.warm)] if step.warm else []
        call = self._call(step.verb, step.mode, arguments[2:], {})
        if call is None:
            return self._absent(step.verb, step.mode)

        def measured(first: Any, second: Any) -> Any:
            # Of what is traced there is no first call, and its arguments are not those of the step.
            if warm and first is arguments[0]:
                return call(*warm.pop()[:2])
            return call(first, second)

        return Count(value=self._framework.memory.peak_extra_bytes(measured, *arguments[:2], alone=self._alone))

    def _result(self, step: Step, scope: _Scope, out: Any, *, copy: bool) -> Reply:
        reply = results.output_of(self._arrays, out, copy=copy)
        scope.arrays[step.name] = out
        return reply

    def _absent(self, verb: str, mode: str) -> NotMade:
        what = f"{self._framework.name} has no {mode}" if verb in self._verbs else f"the kernel has no {verb}"
        return NotMade(why=what)

    def _call(self, verb: str, mode: str, rest: tuple[Any, ...], options: Mapping[str, Any]) -> Call | None:
        """Return a verb in a mode, with all but its first two arguments bound; None where there is no such thing.

        The same one is returned for the same numbers, so that a framework that compiles it does so once.
        """
        if verb not in self._verbs:
            return None
        key = (verb, mode, *rest, *sorted(options.items()))
        constant = all(isinstance(each, int) for each in rest)
        if constant and key in self._calls:
            return self._calls[key]
        run = self._verbs[verb]
        bound = (lambda *first: run(*first, *rest, **options)) if rest or options else run
        wrap = self._mode(mode)
        call = None if wrap is None else wrap(bound)
        if constant:
            self._calls[key] = call
        return call

    def _mode(self, mode: str) -> Callable[[Call], Call | Any] | None:
        modes = self._framework.modes
        if mode in ("", TRACED):
            return modes.traced if mode else lambda call: call
        return {**modes.transforms(), **modes.grad_modes(), **modes.settings()}.get(mode)


def _is_numpy_table(argument: Any) -> bool:
    return isinstance(argument, np.ndarray) and argument.dtype.name in FORMATS
