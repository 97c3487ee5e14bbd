"""The command `xref doctor`: versions, devices, settings that change bits, and how to install what is missing."""

from __future__ import annotations

import importlib.metadata
import platform

from rich import box
from rich.markup import escape
from rich.table import Table

from xref import __version__, errors
from xref.cli.terminal import console
from xref.engine import frameworks

__all__ = ["doctor", "findings"]

_LIBRARIES = ("numpy", "ml_dtypes", "safetensors")


def findings() -> list[tuple[str, str, str]]:
    """Return `(of what, name, value)` for each thing found or found missing."""
    found = [("xref", "version", __version__), ("python", "version", platform.python_version())]
    found.append(("machine", "processor", f"{platform.system()} {platform.machine()}"))
    found += [(name, "version", importlib.metadata.version(name)) for name in _LIBRARIES]
    for name in frameworks.FRAMEWORKS:
        try:
            arrays = (framework := frameworks.load(name, "doctor")).arrays
        except errors.UsageError as error:
            found.append((name, "missing", str(error)))
            continue
        found.append((name, "version", arrays.version()))
        try:
            present = frameworks.devices(framework, "doctor")
            found.append((name, "devices", ", ".join(f"{kind} ({arrays.describe(kind)})" for kind in present)))
        except errors.UsageError as error:
            found.append((name, "devices", str(error)))
        found += [(name, key, value) for key, value in arrays.environment().items()]
    return found


def doctor() -> None:
    """Show versions, devices and the settings that matter, and how to install what is missing."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("of", "what", "value"):
        table.add_column(heading, overflow="fold")
    for row in findings():
        table.add_row(*map(escape, row))
    console().print(table)
