"""How a candidate kernel of the test-suite is registered, whatever its operator: wrong ones, and right ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["Mutant", "Right", "mutants", "rights"]

Decorator = Callable[..., Callable[[Any], Any]]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A candidate that is wrong in one way."""

    name: str
    framework: str
    make: Callable[[], Any]
    """Returns a fresh candidate: what it remembers of earlier calls is gone."""
    clauses: tuple[str, ...]
    """Clauses that it breaks, the first one foremost."""
    fault: str
    """Its name in the fault catalogue."""
    verb: str = "forward"
    """The verb that is wrong: `forward`, `forward_fp32` or `backward` (autograd's or `jax.vjp`'s too)."""
    dtypes: tuple[str, ...] = ()
    """Table dtypes that show it; none named: all of them."""
    shows: str = ""
    """What it takes to see it, where not every input does."""
    ends: bool = True
    """Whether a call always returns or raises; one that ends the process or never returns is judged in another."""


@dataclasses.dataclass(frozen=True)
class Right:
    """A candidate that is right, in an unusual way."""

    name: str
    framework: str
    make: Callable[[], Any]
    no_gradient: tuple[str, ...] = ()
    """Table dtypes of which its framework takes no gradient."""


def _maker(candidate: Any) -> Callable[[], Any]:
    return candidate if isinstance(candidate, type) else lambda: candidate


def mutants(framework: str) -> tuple[dict[str, Mutant], Decorator]:
    """Return an empty dictionary of mutants, and the decorator `(clause, fault, ...)` that adds a function or class."""
    found: dict[str, Mutant] = {}

    def mutant(*clauses: str, fault: str, **how: Any) -> Callable[[Any], Any]:
        def register(candidate: Any) -> Any:
            name = candidate.__name__
            if name in found:
                raise ValueError(f"{name}: got it twice")
            found[name] = Mutant(name, framework, _maker(candidate), clauses, fault, **how)
            return candidate

        return register

    return found, mutant


def rights(framework: str) -> tuple[dict[str, Right], Decorator]:
    """Return an empty dictionary of right kernels, and the decorator `(...)` that adds a function or class."""
    found: dict[str, Right] = {}

    def right(**how: Any) -> Callable[[Any], Any]:
        def register(candidate: Any) -> Any:
            name = candidate.__name__
            if name in found:
                raise ValueError(f"{name}: got it twice")
            found[name] = Right(name, framework, _maker(candidate), **how)
            return candidate

        return register

    return found, right
