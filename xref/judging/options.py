"""What a judge is asked for, checked before anything is loaded: every wrong value is one clear error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import msgspec

from xref import errors
from xref.bits import FORMATS
from xref.spec import Call, Operator, Tier

__all__ = ["DEVICES", "Options", "OptionsDict", "checked", "selected"]

DEVICES = ("cpu", "cuda", "tpu")


class OptionsDict(TypedDict, total=False):
    """The keyword arguments of `xref.judge`; `Options` says what each means."""

    framework: str | None
    device: str
    tier: str
    dtype: str | tuple[str, ...]
    accumulate: str
    out_of_range: str
    require: tuple[str, ...]
    expect_fail: Mapping[str, str] | None
    only: str | None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    framework: str | None = None
    """`torch` or `jax`; None finds it out."""
    device: str = "cpu"
    tier: Tier = Tier.STANDARD
    dtype: tuple[str, ...] = tuple(FORMATS)
    """Table dtypes."""
    accumulate: str = "float32"
    """The format in which the kernel sums its gradient; the bound is that format's."""
    out_of_range: str = "raise"
    """What it promises of ids out of range."""
    require: tuple[str, ...] = ()
    """Checks that are only graded otherwise, or skipped where the kernel lacks them."""
    expect_fail: Mapping[str, str] = {}
    """Reasons by check: what is known to fail. If it passes, that fails the kernel."""
    only: Call | None = None
    """The one call to make."""


def checked(operator: Operator, call: str, options: OptionsDict) -> Options:
    """Return options whose values are all allowed; names of clauses stand for their checks.

    Raises:
        UsageError: an unknown name, or a record that is no call; the message names the option as the command has it.
    """
    known: dict[str, Any] = dict(options)
    unknown = known.keys() - OptionsDict.__annotations__.keys()
    if unknown:
        raise errors.UsageError(
            "option", ", ".join(sorted(unknown)), f"one of {', '.join(OptionsDict.__annotations__)}", call
        )
    found: dict[str, Any] = {}
    for name, allowed in (("device", DEVICES), ("tier", tuple(Tier)), ("accumulate", tuple(FORMATS)),
                          ("out_of_range", operator.promises.get("out_of_range", ("raise",)))):  # fmt: skip
        if name in known:
            found[name] = _one_of(name, known[name], allowed, call)
    if known.get("framework") is not None:
        found["framework"] = _one_of("framework", known["framework"], tuple(operator.goldens), call)
    dtypes = [_one_of("dtype", each, tuple(FORMATS), call) for each in _names("dtype", known.get("dtype", ()), call)]
    if dtypes:
        found["dtype"] = tuple(dict.fromkeys(dtypes))
    found["require"] = selected(operator, "require", _names("require", known.get("require", ()), call), call)
    found["expect_fail"] = {
        check: reason
        for name, reason in (known.get("expect_fail") or {}).items()
        for check in selected(operator, "expect_fail", (name,), call)
    }
    if known.get("only") is not None:
        found["only"] = _call(operator, known["only"], call)
    return Options(**{**found, "tier": Tier(found.get("tier", Tier.STANDARD))})


def selected(operator: Operator, option: str, names: Iterable[str], call: str) -> tuple[str, ...]:
    """Return the checks that names stand for: the one of that name, or else all of a clause."""
    ids = [check.id for check in operator.checks]
    found: list[str] = []
    for name in names:
        some = [each for each in ids if name == each] or [check.id for check in operator.checks if name == check.clause]
        if not some:
            raise errors.UsageError(_flag(option), repr(name), f"a clause or one of {', '.join(ids)}", call)
        found += some
    return tuple(found)


def _call(operator: Operator, text: object, call: str) -> Call:
    try:
        if not isinstance(text, str):
            raise TypeError(f"a {type(text).__name__}")
        json.loads(text)
        made = operator.call(text)
        if made.check not in {check.id for check in operator.checks}:
            raise ValueError(f"no check {made.check!r}")
        return made
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise errors.UsageError(
            "--only", f"{text!r} ({error})", "the record of a call, as a report has it", call
        ) from error


def _names(option: str, value: object, call: str) -> tuple[str, ...]:
    """Return one name, or several, as a tuple."""
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise errors.UsageError(_flag(option), repr(name), "a name, or a tuple of names", call)
    return names


def _one_of(option: str, value: str, allowed: tuple[str, ...], call: str) -> str:
    if value not in allowed:
        raise errors.UsageError(_flag(option), repr(value), f"one of {', '.join(allowed)}", call)
    return value


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
