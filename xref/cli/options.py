"""What several commands take: common options, and their values as enumerations that typer shows and checks."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from xref.bits import FORMATS
from xref.engine.frameworks import FRAMEWORKS

__all__ = ["Device", "DeviceOrAuto", "Dtype", "Framework", "JsonFile", "MainDtypes", "OneDevice", "OperatorName"]

_DEVICES = ("cpu", "cuda", "tpu")

Framework = enum.StrEnum("Framework", {name: name for name in FRAMEWORKS})  # type: ignore[misc]
Device = enum.StrEnum("Device", {name: name for name in _DEVICES})  # type: ignore[misc]
DeviceOrAuto = enum.StrEnum("DeviceOrAuto", {name: name for name in ("auto", *_DEVICES)})  # type: ignore[misc]
Dtype = enum.StrEnum("Dtype", {name: name for name in FORMATS})  # type: ignore[misc]

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the report to this file.")]
OneDevice = Annotated[Device, typer.Option("--device", help="Kind of device; an absent one is an error.")]
Dtypes = Annotated[list[Dtype] | None, typer.Option("--dtype", help="Table dtype (repeatable); all if not given.")]
MainDtypes = Annotated[
    list[Dtype] | None, typer.Option("--dtype", help="Table dtype (repeatable); bfloat16 and float32.")
]
OperatorName = Annotated[str, typer.Option("--operator", help="Which operator; `xref list operators` has them.")]
