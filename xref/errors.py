"""Exceptions of xref, and the one wording that every message follows.

A message reads `where: got, expected [call]`, so that a reader who does not know the code sees which argument
was wrong, what it held and what is allowed. The goldens of all frameworks raise through the functions below:
that is why their wording is the same to the letter.

The checks of plain integers stand here too, as they need no framework.

Wrong arguments raise Python's own types (`TypeError`, `ValueError`, `IndexError`), as an operator's user would
expect; the classes here are for what happens around the operators.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

__all__ = [
    "MissingFrameworkError",
    "NothingComparedError",
    "UsageError",
    "XrefError",
    "bad_type",
    "bad_value",
    "called",
    "checked_padding_idx",
    "checked_size",
    "described",
    "ids_out_of_range",
    "message",
    "printable",
    "text_of",
]

LINE = 500
"""Characters of an exception's message that are shown."""


class XrefError(Exception):
    """Base of the exceptions that xref defines: the parts of a message, or one text.

    What is used by several commands leaves `call` empty; the command adds its own name (`called`).
    """

    def __init__(self, where: object, got: object = None, expected: object = None, call: str = "") -> None:
        super().__init__(*([where] if expected is None else [where, got, expected, call]))
        self.where, self.got, self.expected, self.call = where, got, expected, call

    def __str__(self) -> str:
        if self.expected is None:
            return str(self.where)
        return message(self.where, self.got, self.expected, self.call)


class UsageError(XrefError):
    """What was asked for cannot be done as asked: a bad path, an unknown name, an absent device."""


class MissingFrameworkError(UsageError, ImportError):
    """A framework is not installed; the message carries the line that installs it."""

    def __init__(self, framework: str, call: str = "") -> None:
        super().__init__(framework, "not installed", f"it to be: pip install 'xref[{framework}]'", call)
        self.args = framework, call  # what it is made of again where it is copied


class NoGradientError(XrefError, NotImplementedError):
    """An operator has no gradient: what it returns is not connected with the table."""


class RefusedError(XrefError):
    """An operator has refused what it may refuse; its own error is the cause."""


class NothingComparedError(XrefError):
    """A comparison ran over no element: that is never a pass."""


def message(where: object, got: object, expected: object, call: str) -> str:
    """Return `where: got, expected [call]`, the wording of every message; without the call if that is empty."""
    return f"{where}: got {got}, expected {expected}" + (f" [{call}]" if call else "")


def described(error: BaseException) -> str:
    """Return an exception's type and the first line of its message: frameworks append a page of advice.

    What cannot be printed is escaped, so that it fits into any report.
    """
    first = printable(text_of(error).strip().partition("\n")[0][:LINE])
    name = printable(type(error).__name__)
    return f"{name}: {first}" if first else name


def text_of(error: BaseException) -> str:
    """Return an exception's message, as far as it can be encoded."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except (Exception, SystemExit):  # a kernel's own exception may fail at this, too
        return ""


def printable(text: str) -> str:
    """Return a text with what cannot be printed escaped."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


@contextlib.contextmanager
def called(name: str) -> Iterator[None]:
    """Name what the user called, a command or a function, in messages from the block that do not name it yet."""
    try:
        yield
    except XrefError as error:
        error.call = error.call or name
        raise


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


def checked_size(size: Any, where: str, call: str, *, limit: int | None = None) -> int:
    """Return `size` as a plain integer of at least 0, and at most `limit` where one is given.

    Raises:
        TypeError: not an integer (`True` is none).
        ValueError: negative, or past the limit.
    """
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise bad_type(where, f"{size!r} of type {type(size).__name__}", "an integer", call)
    value = operator.index(size)
    if value < 0:
        raise bad_value(where, value, "at least 0", call)
    if limit is not None and value > limit:
        raise bad_value(where, value, f"at most {limit}", call)
    return value


def checked_padding_idx(padding_idx: Any, vocab_size: int, call: str) -> int | None:
    """Return `padding_idx` as a plain integer in `[0, vocab_size)`, or None.

    Raises:
        TypeError: neither an integer nor None.
        ValueError: outside `[0, vocab_size)`: a negative one does not count from the end.
    """
    if padding_idx is None:
        return None
    if isinstance(padding_idx, bool) or not hasattr(padding_idx, "__index__"):
        got = f"{padding_idx!r} of type {type(padding_idx).__name__}"
        raise bad_type("padding_idx", got, "an integer or None", call)
    value = operator.index(padding_idx)
    if not 0 <= value < vocab_size:
        raise bad_value("padding_idx", value, f"0 <= padding_idx < V={vocab_size}", call)
    return value
