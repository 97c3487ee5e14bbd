"""The command `xref verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xref.cli.files import OutputFile, check_files
from xref.cli.options import DeviceOrAuto, Dtypes, Framework, JsonFile, OperatorName
from xref.cli.terminal import command, console, progress_bar
from xref.spec import Tier
from xref.verifying import report as reports
from xref.verifying.verify import verify as run_verify

__all__ = ["verify"]


def verify(
    tier: Annotated[Tier, typer.Option(help="How many cases; --weights has its own.")] = Tier.STANDARD,
    framework: Annotated[
        list[Framework] | None,
        typer.Option(help="Run this one alone, held to the pinned digests (repeatable; both if not given)."),
    ] = None,
    device: Annotated[
        list[DeviceOrAuto] | None,
        typer.Option(help="Kind of device (repeatable); auto: the CPU and what else there is."),
    ] = None,
    dtype: Dtypes = None,
    weights: Annotated[Path | None, typer.Option(help="A safetensors file: verify on its table.")] = None,
    tensor: Annotated[str | None, typer.Option(help="The table's name in that file.")] = None,
    ids: Annotated[Path | None, typer.Option(help="Token ids for that table: .npy, or .txt with integers.")] = None,
    json: JsonFile = None,
    operator: OperatorName = "embedding",
) -> None:
    """Confirm the goldens: torch and JAX against the exact answer and each other, bit for bit."""
    files = [OutputFile("--json", json)] if json is not None else []
    with command("verify", "nothing was confirmed"):
        check_files(files, [path for path in (weights, ids) if path is not None])
        with progress_bar() as progress:
            report = run_verify(
                operator=operator,
                tier=tier,
                framework=tuple(framework or ()),
                device=tuple(device or ("auto",)),
                dtype=tuple(dtype or ()),
                weights_file=weights,
                tensor=tensor,
                ids_file=ids,
                progress=progress,
            )
        try:  # the file first, as the terminal may be gone; and if there is no file, the terminal all the same
            for file in files:
                file.write(report.to_json() + "\n")
        finally:
            reports.show(report, console())
    raise typer.Exit(0 if report.ok else 1 if report.elements else 3)
