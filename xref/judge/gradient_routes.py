"""The ways to a candidate's gradient: its own backward, or what the framework makes of its verbs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from xref import errors
from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.inputs import Ids, make_table
from xref.judge.candidate import Candidate
from xref.judge.subject import formed, main_dtypes, widest

__all__ = ["Route", "Run", "routes_of"]

_TABLES = 8  # that a route keeps for its next calls

Call = Callable[[Any, Any], Any]
Run = Callable[[Any, Any, int], Any]


@dataclasses.dataclass(frozen=True)
class Route:
    """One way to a candidate's gradient: `(token_ids, cotangent, vocab_size) -> [V, H]`, and its dtypes."""

    name: str
    candidate: Candidate
    run: Run
    source: str
    """Of the cotangents."""
    result: str
    """Of the gradient, and of the table."""
    verb: str
    """That it is the gradient of: `backward` where it is the candidate's own."""
    more: dict[str, Run]
    """Other ways to the same gradient, by name."""
    traced: bool = False
    """Whether it is taken with everything traced: the same sums in another program."""

    def put(self, ids: Ids, cotangent: Bits) -> tuple[Any, Any]:
        """Return ids and cotangents as the framework's arrays, laid out as they are here."""
        framework, device = self.candidate.framework, self.candidate.device
        return framework.put(ids, None, device), framework.put(cotangent, self.source, device)

    def bits(self, out: Any, vocab: int, hidden: int) -> Bits:
        """Return a gradient's bits, `[V, H]`, in memory of their own.

        Raises:
            MisformedError: it has another shape, dtype or device.
        """
        wanted = ((vocab, hidden), self.result, self.candidate.device)
        return formed(self.candidate.framework, out, wanted).copy()

    def ways(self) -> dict[str, Run]:
        """Return other ways to ask for the same gradient: within settings and threads, and those of the route."""
        within = {name: _within(mode, self.run) for name, mode in self.candidate.framework.surroundings().items()}
        return {**within, **self.more}

    def tried(self) -> Bits | Exception | SystemExit:
        """Make one small call, and return the gradient's bits or what it raised."""
        case = GradientCase(source=self.source, result=self.result, values="gaussian", vocab=10, hidden=4, shape=(6,))
        with self.candidate.framework.precision(widest(self.source, self.result)):
            try:
                return self.bits(self.run(*self.put(*gradients.build(case)), case.vocab), case.vocab, case.hidden)
            except (Exception, SystemExit) as error:
                return error

    def lacks(self, error: BaseException) -> bool:
        """Return whether an error says that there is no such gradient; otherwise it is a gradient that fails."""
        if self.result.startswith("float8") or isinstance(error, NotImplementedError):
            return True
        # JAX cannot differentiate what it cannot see into, and says so in many ways.
        return self.verb != "backward" and self.candidate.framework.NAME == "jax"


def routes_of(candidate: Candidate, dtypes: tuple[str, ...]) -> Iterator[Route]:
    """Yield a candidate's routes, for tables of these dtypes."""
    for dtype in dtypes:
        if candidate.backward is not None:
            modes = candidate.framework.gradient_modes()
            more = {name: _or_refused(_within(mode, candidate.backward)) for name, mode in modes.items()}
            yield Route(f"backward, {dtype}", candidate, candidate.backward, dtype, dtype, "backward", more)
            continue
        for verb in candidate.verbs:
            if verb in contract.verbs_of(dtype):
                source = contract.result_dtype(verb, dtype)
                name = f"gradient of {verb}, {source} to {dtype}"
                ways = candidate.framework.gradient_ways()
                run, *others = _differentiated(candidate, verb, dtype, [candidate.framework.gradient, *ways.values()])
                yield Route(name, candidate, run, source, dtype, verb, dict(zip(ways, others, strict=True)))
                traced = candidate.framework.traced_gradient(candidate.verbs[verb])
                if traced is not None and verb == "forward" and dtype in main_dtypes(dtypes):
                    # As a way of the framework's, which is given the verb: it is in the program already.
                    [run] = _differentiated(candidate, verb, dtype, [lambda _, *given, taken=traced: taken(*given)])
                    yield Route(f"traced {name}", candidate, run, source, dtype, verb, {}, traced=True)


def _within(mode: Callable[[Call], Call], run: Run) -> Run:
    """Return the run made in one of the framework's modes."""
    return lambda ids, cotangent, vocab_size: mode(lambda i, c: run(i, c, vocab_size))(ids, cotangent)


def _or_refused(run: Run) -> Run:
    """Return a run that may be refused with an error, as cotangents that require a gradient may be."""

    def refusable(ids: Any, cotangent: Any, vocab_size: int) -> Any:
        try:
            return run(ids, cotangent, vocab_size)
        except Exception as error:
            raise errors.RefusedError(str(error)) from error

    return refusable


def _differentiated(candidate: Candidate, verb: str, dtype: str, ways: list[Callable[..., Any]]) -> list[Run]:
    """Return a run for each of the ways in which the framework differentiates a verb."""
    framework = candidate.framework

    @functools.lru_cache(_TABLES)
    def table(vocab_size: int, hidden: int) -> Any:
        return framework.put(make_table("gaussian", vocab_size, hidden, FORMATS[dtype]), dtype, candidate.device)

    def run(way: Callable[..., Any], ids: Any, cotangent: Any, vocab_size: int) -> Any:
        return way(candidate.verbs[verb], ids, table(vocab_size, cotangent.shape[-1]), cotangent)

    return [functools.partial(run, way) for way in ways]
