"""What this machine has for xref: versions, devices, settings that change bits, and how to install what is missing."""

from __future__ import annotations

import importlib.metadata
import platform

from rich import box
from rich.markup import escape
from rich.table import Table

from xref import __version__, errors
from xref.judge import frameworks

__all__ = ["findings", "table"]

_LIBRARIES = ("numpy", "ml_dtypes", "safetensors")


def findings() -> list[tuple[str, str, str]]:
    """Return `(of what, name, value)` for each thing found or found missing."""
    found = [("xref", "version", __version__), ("python", "version", platform.python_version())]
    found.append(("machine", "processor", f"{platform.system()} {platform.machine()}"))
    found += [(name, "version", importlib.metadata.version(name)) for name in _LIBRARIES]
    for name in frameworks.FRAMEWORKS:
        try:
            framework = frameworks.load(name, "doctor")
        except errors.UsageError as error:
            found.append((name, "missing", str(error)))
            continue
        found.append((name, "version", framework.version()))
        try:
            present = frameworks.devices(framework, "doctor")
            found.append((name, "devices", ", ".join(f"{kind} ({framework.describe(kind)})" for kind in present)))
        except errors.UsageError as error:
            found.append((name, "devices", str(error)))
        found += [(name, key, value) for key, value in framework.settings().items()]
    return found


def table() -> Table:
    """Return the findings as a table."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("of", "what", "value"):
        shown.add_column(heading, overflow="fold")
    for row in findings():
        shown.add_row(*map(escape, row))
    return shown
