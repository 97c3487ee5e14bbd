"""What a project says of its kernels in `pyproject.toml`, under `[tool.xref]`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from xref import errors
from xref.judging.options import OptionsDict
from xref.spec import Operator

__all__ = ["settings", "with_settings"]


def _texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)


_SETTINGS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "expect-fail": ("a table of reasons", lambda value: isinstance(value, dict) and _texts(value.values())),
    "out-of-range": ("a promise", lambda _: True),
    "require": ("a list of checks or clauses", lambda value: isinstance(value, list) and _texts(value)),
}


def settings(path: Path) -> dict[str, Any]:
    """Return the table `[tool.xref]` of a `pyproject.toml`, if there is one.

    Raises:
        UsageError: the file is no TOML, or the table holds what is no setting.
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
    for key, value in found.items():
        if key not in _SETTINGS:
            raise errors.UsageError("[tool.xref]", repr(key), f"one of {', '.join(_SETTINGS)}")
        expected, fits = _SETTINGS[key]
        if not fits(value):
            raise errors.UsageError(f"[tool.xref] {key}", repr(value), expected)
    return found


def with_settings(operator: Operator, options: OptionsDict, path: Path = Path("pyproject.toml")) -> OptionsDict:
    """Return options with those of a project's `pyproject.toml`: what is asked for counts more, or adds to it.

    Raises:
        UsageError: as `settings` raises it, or the operator knows no such promise.
    """
    found = settings(path)
    merged = options.copy()
    promise, promises = found.get("out-of-range"), operator.promises.get("out_of_range", ("raise",))
    if promise is not None and promise not in promises:
        raise errors.UsageError("[tool.xref] out-of-range", repr(promise), f"one of {', '.join(promises)}")
    if promise is not None:
        merged.setdefault("out_of_range", promise)
    merged["require"] = (*found.get("require", ()), *options.get("require", ()))
    merged["expect_fail"] = {**found.get("expect-fail", {}), **(options.get("expect_fail") or {})}
    return merged
