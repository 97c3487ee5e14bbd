"""The ways to a candidate's gradient: its own backward, or what the framework makes of its verbs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.contracts.inputs import Ids, make_table
from xref.judge.bench import described, formed, main_dtypes, widest
from xref.judge.candidate import Candidate

__all__ = ["Route", "routes_of"]

_TABLES = 8  # that a route keeps for its next calls

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

    def missing(self) -> str | None:
        """Return why it cannot be taken at all, or None."""
        case = GradientCase(source=self.source, result=self.result, values="gaussian", vocab=10, hidden=4, shape=(6,))
        with self.candidate.framework.precision(widest(self.source, self.result)):
            try:
                self.run(*self.put(*gradients.build(case)), case.vocab)
            except (Exception, SystemExit) as error:
                own = self.candidate.backward is not None
                if own and not self.result.startswith("float8"):
                    return None  # a gradient of its own that raises is no gradient that lacks
                return f"{self.name}: {described(error)}"
        return None


def routes_of(candidate: Candidate, dtypes: tuple[str, ...]) -> Iterator[Route]:
    """Yield a candidate's routes, for tables of these dtypes."""
    for dtype in dtypes:
        if candidate.backward is not None:
            yield Route(f"backward, {dtype}", candidate, candidate.backward, dtype, dtype)
            continue
        for verb in candidate.verbs:
            if verb in contract.verbs_of(dtype):
                source = contract.result_dtype(verb, dtype)
                name = f"gradient of {verb}, {source} to {dtype}"
                yield Route(name, candidate, _differentiated(candidate, verb, dtype), source, dtype)
                traced = candidate.framework.traced_gradient(candidate.verbs[verb])
                if traced is not None and verb == "forward" and dtype in main_dtypes(dtypes):
                    name = f"traced gradient of {verb}, {source} to {dtype}"
                    run = _differentiated(candidate, verb, dtype, traced)
                    yield Route(name, candidate, run, source, dtype, traced=True)


def _differentiated(
    candidate: Candidate, verb: str, dtype: str, gradient: Callable[[Any, Any, Any], Any] | None = None
) -> Run:
    framework = candidate.framework
    taken = gradient or functools.partial(framework.gradient, candidate.verbs[verb])

    @functools.lru_cache(_TABLES)
    def table(vocab_size: int, hidden: int) -> Any:
        return framework.put(make_table("gaussian", vocab_size, hidden, FORMATS[dtype]), dtype, candidate.device)

    def run(ids: Any, cotangent: Any, vocab_size: int) -> Any:
        return taken(ids, table(vocab_size, cotangent.shape[-1]), cotangent)

    return run
