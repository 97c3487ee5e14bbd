"""Exceptions of xref, and the one wording that every message follows.

A message reads `where: got, expected [call]`, so that a reader who does not know the code sees which argument
was wrong, what it held and what is allowed. The goldens of all frameworks raise through the functions below:
that is why their wording is the same to the letter.

Wrong arguments raise Python's own types (`TypeError`, `ValueError`, `IndexError`), as an operator's user would
expect; the classes here are for what happens around the operators.
"""

from __future__ import annotations

__all__ = [
    "MissingFrameworkError",
    "NothingComparedError",
    "UsageError",
    "XrefError",
    "bad_type",
    "bad_value",
    "ids_out_of_range",
    "message",
]


class XrefError(Exception):
    """Base of the exceptions that xref defines."""


class UsageError(XrefError):
    """What was asked for cannot be done as asked: a bad path, an unknown name, an absent device."""


class MissingFrameworkError(UsageError, ImportError):
    """A framework is not installed; the message carries the line that installs it."""

    def __init__(self, framework: str, call: str) -> None:
        super().__init__(message(framework, "not installed", f"it to be: pip install 'xref[{framework}]'", call))


class NothingComparedError(XrefError):
    """A comparison ran over no element: that is never a pass."""


def message(where: str, got: object, expected: object, call: str) -> str:
    """Return `where: got, expected [call]`, the wording of every message."""
    return f"{where}: got {got}, expected {expected} [{call}]"


def bad_type(where: str, got: object, expected: object, call: str) -> TypeError:
    """Return the `TypeError` for an argument of the wrong type or dtype."""
    return TypeError(message(where, got, expected, call))


def bad_value(where: str, got: object, expected: object, call: str) -> ValueError:
    """Return the `ValueError` for an argument of the right type and a wrong shape, device or value."""
    return ValueError(message(where, got, expected, call))


def ids_out_of_range(
    *, count: int, total: int, position: tuple[int, ...], value: int, vocab_size: int, call: str
) -> IndexError:
    """Return the `IndexError` of clause EMB-4.

    `count` of the `total` ids are outside `[0, vocab_size)`; `position` is the index tuple of the first of them
    in row-major order (`()` for 0-dimensional ids), `value` what stands there in the dtype that was passed in.
    """
    return IndexError(
        message(
            "token_ids",
            f"{count} of {total} ids out of range, the first at position {position} with value {value}",
            f"0 <= id < V={vocab_size}",
            call,
        )
    )
