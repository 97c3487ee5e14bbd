"""The table `[tool.xref]` of a project's `pyproject.toml`: what holds for every judging of its kernels."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from xref import errors

__all__ = ["read_settings"]


def read_settings(path: Path, out_of_range: Sequence[str]) -> dict[str, Any]:
    """Return the table of a `pyproject.toml`, if there is one; `out_of_range` are the promises that it may name.

    Raises:
        UsageError: the file cannot be read, or the table has an unknown key or a value that is none of it.
    """
    if not path.is_file():
        return {}
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise errors.UsageError(path, f"a file that cannot be read as TOML ({error})", "one that can") from error
    found = tool.get("xref", {}) if isinstance(tool, dict) else {}
    if not isinstance(found, dict):
        raise errors.UsageError("[tool.xref]", repr(found), "a table")
    known = _known(out_of_range)
    for key, value in found.items():
        if key not in known:
            raise errors.UsageError("[tool.xref]", repr(key), f"one of {', '.join(known)}")
        expected, fits = known[key]
        if not fits(value):
            raise errors.UsageError(f"[tool.xref] {key}", repr(value), expected)
    return found


def _known(out_of_range: Sequence[str]) -> dict[str, tuple[str, Callable[[Any], bool]]]:
    """Return what each key must be, in words and as a test."""
    return {
        "expect-fail": ("a table of reasons", lambda value: isinstance(value, dict) and _texts(value.values())),
        "out-of-range": (f"one of {', '.join(out_of_range)}", lambda value: value in out_of_range),
        "require": ("a list of checks or clauses", lambda value: isinstance(value, list) and _texts(value)),
    }


def _texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)
