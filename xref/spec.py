"""The records that an operator is described by: clauses, checks, calls, faults, and what is examined of whom.

An operator is data and functions, so that one engine can examine any: see `xref.operators.embedding` for the first.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import msgspec

__all__ = [
    "Call", "Check", "Clause", "Exam", "Failure", "Fault", "Operator", "Seen", "Skip", "Suspect", "Tier",
    "Traits", "check", "declared",
]  # fmt: skip


class Tier(enum.StrEnum):
    """How much to run; each tier includes the ones before it."""

    SMOKE = "smoke"  # seconds
    STANDARD = "standard"  # under a minute
    EXHAUSTIVE = "exhaustive"  # every float32 pattern, every id of the largest table

    def includes(self, other: Tier) -> bool:
        """Return whether a run of this tier runs what belongs to `other`."""
        order = list(Tier)
        return order.index(other) <= order.index(self)


class Clause(msgspec.Struct, frozen=True):
    """One promise of a contract, such as `EMB-1 gather`."""

    id: str
    title: str
    statement: str
    """What must hold, in one or two sentences."""


class Fault(msgspec.Struct, frozen=True):
    """One way in which kernels of an operator have been wrong, such as `negative-ids-wrap`."""

    name: str
    """Unique in its catalogue, in kebab-case."""
    looks: str
    """What the wrong output looks like, in one sentence."""
    does: str
    """What it does to users, in one sentence."""
    report: str = ""
    """A public report of it, such as `pytorch/pytorch#151918`; empty where none is known."""


@dataclasses.dataclass(frozen=True, order=True)
class Suspect:
    """A fault that an observation speaks for."""

    weight: float
    """How much it speaks for it, from 0 to 1."""
    fault: str
    """The fault's name."""
    seen: str
    """What was seen, in words."""


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a subject before it is examined: whose it is, where it runs, and what it offers."""

    name: str
    framework: str
    version: str
    device: str
    device_name: str
    verbs: tuple[str, ...]
    """Those of the operator's verbs that it has, `backward` among them where it has its own gradient."""
    transforms: tuple[str, ...] = ()
    """Of the framework, by name: compiled, traced, mapped."""
    grad_modes: tuple[str, ...] = ()
    """Modes of the framework that differ in whether a gradient is recorded."""
    settings: tuple[str, ...] = ()
    """Threads and settings of the framework that an operator may be called in."""
    gradient_calls: tuple[str, ...] = ()
    """Other ways in which the framework is asked for a gradient."""
    traces: bool = False
    """Whether the framework can trace the ids, so that nothing can be raised on them."""
    flushes: bool = False
    """Whether the framework takes subnormal sums for zero on this device."""
    saturates: bool = False
    """Whether its cast to float8_e4m3fn gives the largest number for what is too large."""
    golden: bool = False
    """Whether it is held to the letter: exact gradients, the very messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exam:
    """What is examined of whom: a subject's traits, how much, and what it promises."""

    traits: Traits
    tier: Tier
    dtypes: tuple[str, ...]
    """Table dtypes."""
    accumulate: str = "float32"
    """Format in which the subject sums its gradient."""
    out_of_range: str = "raise"
    """What it promises of ids out of range."""
    pinned: bool = False
    """Whether the calls of accuracy are the contract's fixed ones, with pinned digests: so are the goldens examined."""


@dataclasses.dataclass
class Failure:
    """One thing that was wrong with what a call gave."""

    check: str
    message: str
    """`where: got, expected`, without the call."""
    elements: int = 0
    suspects: tuple[Suspect, ...] = ()
    """What the way it failed speaks for."""
    evidence: Any = None
    """What the operator's diagnosis needs to see more."""
    call: Call | None = None
    """The call that fails, where it is another than the one that was made: the plain one in a varied call's script."""
    aborts: bool = False
    """Whether it took the subject's process along."""
    raised: str = ""
    """The exception in one line, if there was one."""
    detail: str = ""
    """What the subject's process wrote to stderr before it ended."""


@dataclasses.dataclass
class Seen:
    """What one call showed, by check."""

    passed: dict[str, int] = dataclasses.field(default_factory=dict)
    """Elements that were as they must be."""
    failures: list[Failure] = dataclasses.field(default_factory=list)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    """Reasons why a check could not be made."""
    outputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Bits of the outputs, by verb: what other subjects' are compared with."""

    def ok(self, check: str, elements: int) -> None:
        """Count elements that were as they must be."""
        self.passed[check] = self.passed.get(check, 0) + elements

    def fail(self, check: str, message: object, elements: int = 0, *suspects: Suspect, **more: Any) -> None:
        """Add a failure; `more` are further fields of it."""
        self.failures.append(Failure(check, str(message), elements, suspects, **more))

    def failed(self, check: str) -> Failure | None:
        """Return the first failure of a check, if there is one."""
        return next((each for each in self.failures if each.check == check), None)


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="call"):
    """One thing that a subject is asked to do, written whole: it can be made, made smaller, and written as JSON.

    Its kinds are an operator's. `str` of a call is one line for people.
    """

    check: str
    """The check that it is made for; of a call in a report, the check that it fails."""

    def script(self, exam: Exam) -> Any:
        """Return the `xref.engine.steps.Script` that makes the call."""
        raise NotImplementedError

    def judge(self, script: Any, replies: Any, exam: Exam) -> Seen:
        """Return what the replies to the script show; it makes no call."""
        raise NotImplementedError

    def plainer(self) -> Iterator[Call]:
        """Yield calls that differ in one thing and are plainer: dense memory, ordinary ids, one dimension."""
        return iter(())

    def sizes(self) -> dict[str, int]:
        """Return what can be smaller, by name, the most telling first: tokens, columns, rows."""
        return {}

    def resized(self, name: str, size: int) -> Call | None:
        """Return the same call with another size, or None where there is none such."""
        return None

    def to_json(self) -> str:
        """Return the call as JSON on one line."""
        return msgspec.json.encode(self).decode()


@dataclasses.dataclass(frozen=True)
class Skip:
    """What a check yields where it cannot be made."""

    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One line of a verdict: a clause, or one condition of it, and the calls that it is judged by."""

    id: str
    """`EMB-7/padding`, or the clause where it has no conditions."""
    judgment: str
    """One of the operator's judgments, such as `forward_accuracy`."""
    text: str
    """What must hold, in a few words."""
    required: bool = True
    """Whether a candidate that fails it fails as a whole; otherwise it is graded only."""
    against: str = "exact"
    """What results are compared with."""
    calls: Callable[[Exam], Iterable[Call | Skip]] | None = None
    """Yields its calls; None where every call is judged by it."""

    @property
    def clause(self) -> str:
        """The clause's id."""
        return self.id.partition("/")[0]

    @property
    def condition(self) -> str:
        """What follows the clause's id, if anything does."""
        return self.id.partition("/")[2]


def check(
    id: str, *, judgment: str, text: str, required: bool = True, against: str = "exact"
) -> Callable[[Callable[[Exam], Iterable[Call | Skip]]], Check]:
    """Return the decorator that declares the check whose calls a function yields."""
    return lambda calls: Check(id=id, judgment=judgment, text=text, required=required, against=against, calls=calls)


def declared(*modules: ModuleType) -> tuple[Check, ...]:
    """Return the checks that modules declare, in their order."""
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, Check))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator as the engine and the tools see it; `xref.operators.find` returns it by name."""

    name: str
    version: int
    """Of its contract."""
    verbs: tuple[str, ...]
    """What can be asked of it; the first one is what a plain function stands for."""
    clauses: tuple[Clause, ...]
    checks: tuple[Check, ...]
    """In the order of a report."""
    faults: tuple[Fault, ...]
    calls: tuple[type[Call], ...]
    """The kinds of call."""
    goldens: Mapping[str, str]
    """Modules of the goldens, by framework."""
    native: str
    """The class of that name in each golden's module."""
    trial: Callable[[], Mapping[str, Any]]
    """Returns a small `xref.engine.steps.Script` for each verb: whose arrays a subject takes is found out by it."""
    explain: Callable[[Call, Failure, Callable[[Call], Seen]], Iterable[Suspect]]
    """Returns what a failure of a call speaks for; the third argument makes another call, to look closer."""
    follow_up: Callable[[Call, Seen], Iterable[Call]] = lambda call, seen: ()
    """Returns calls to make because of what a call showed."""
    promises: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """What a candidate may promise, by name: the values, the default first."""
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Modules that tools load when they need them: `contenders`, `programs`, `goldens`, `pinned`."""

    def module(self, name: str) -> Any:
        """Return one of its modules."""
        return importlib.import_module(self.modules[name])

    def call(self, text: str | bytes) -> Call:
        """Return the call that JSON stands for.

        Raises:
            msgspec.MsgspecError: it is none.
        """
        kinds: Any = self.calls[0]
        for kind in self.calls[1:]:
            kinds = kinds | kind
        return msgspec.json.decode(text, type=kinds)
