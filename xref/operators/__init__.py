"""Operators, each in a folder of its own or offered by an installed package: `find` returns one by name.

A folder here, `xref/operators/NAME/`, has a module attribute `OPERATOR`; a package names its own by an entry point:

    [project.entry-points."xref.operators"]
    row_scale = "my_pkg.row_scale:OPERATOR"
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil

from xref import errors
from xref.spec import Operator

__all__ = ["GROUP", "find", "names"]

GROUP = "xref.operators"
"""The entry-point group through which packages offer operators."""


def names() -> tuple[str, ...]:
    """Return the names of all operators: the folders' first, then those of other packages."""
    folders = sorted(each.name for each in pkgutil.iter_modules(__path__) if each.ispkg)
    return tuple(dict.fromkeys((*folders, *sorted(each.name for each in importlib.metadata.entry_points(group=GROUP)))))


def find(name: str) -> Operator:
    """Return the operator of that name; a folder of this package goes before an entry point.

    Raises:
        UsageError: there is none, or its package does not import or has none.
    """
    if name not in names():
        raise errors.UsageError("operator", repr(name), f"one of {', '.join(names())}")
    offered = [each for each in importlib.metadata.entry_points(group=GROUP) if each.name == name]
    folder = any(each.name == name for each in pkgutil.iter_modules(__path__))
    where = f"xref.operators.{name}" if folder else offered[0].value
    try:
        found = importlib.import_module(where).OPERATOR if folder else offered[0].load()
    except Exception as error:  # anybody's package
        raise errors.UsageError(where, f"{errors.described(error)} while importing it", "an operator") from error
    if not isinstance(found, Operator):
        raise errors.UsageError(where, type(found).__name__, "an xref.spec.Operator")
    return found
