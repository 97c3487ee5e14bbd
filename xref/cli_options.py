"""What several commands take: the values of their common options, as enumerations that typer shows and checks."""

from __future__ import annotations

import enum

from xref.bits import FORMATS
from xref.judge.frameworks import FRAMEWORKS
from xref.judge.verify import DEVICES

__all__ = ["Device", "DeviceOrAuto", "Dtype", "Framework"]

Framework = enum.StrEnum("Framework", {name: name for name in FRAMEWORKS})  # type: ignore[misc]
Device = enum.StrEnum("Device", {name: name for name in DEVICES if name != "auto"})  # type: ignore[misc]
DeviceOrAuto = enum.StrEnum("DeviceOrAuto", {name: name for name in DEVICES})  # type: ignore[misc]
Dtype = enum.StrEnum("Dtype", {name: name for name in FORMATS})  # type: ignore[misc]
