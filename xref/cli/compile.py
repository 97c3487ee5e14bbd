"""The command `xref compile`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from xref import errors, operators
from xref.cli.files import OutputFile, check_files, target_file
from xref.cli.options import Device, JsonFile, MainDtypes, OperatorName
from xref.cli.terminal import command, console, progress_bar
from xref.compiling.compile import Options, compile_kernel, compiler
from xref.compiling.report import show
from xref.targets import load_target

__all__ = ["compile_"]


def compile_(
    target: Annotated[
        str | None, typer.Argument(help="A JAX kernel: pkg.mod:name or path/to/file.py:name; else the golden.")
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(help="TPUs to compile for, such as v5e:2x2 (repeatable); all: one of each generation."),
    ] = None,
    device: Annotated[list[Device] | None, typer.Option(help="Or a kind of device that is here (repeatable).")] = None,
    dtype: MainDtypes = None,
    verb: Annotated[
        list[str] | None, typer.Option(help="A verb or `gradient` (repeatable); the verbs if not given.")
    ] = None,
    vocab: Annotated[int, typer.Option(min=1, help="V, rows of the table.")] = 151936,
    hidden: Annotated[int, typer.Option(min=1, help="H, elements of a row.")] = 4096,
    tokens: Annotated[int, typer.Option(min=1, help="T, ids in the batch.")] = 8192,
    operator: OperatorName = "embedding",
    json: JsonFile = None,
) -> None:
    """Compile a JAX kernel, for TPUs without a TPU, and show its memory and whether it only copies."""
    files = [OutputFile("--json", json)] if json is not None else []
    with command("compile", "nothing was compiled"):
        check_files(files, [target_file(target or "")])
        if bool(topology) == bool(device):
            got = "both --topology and --device" if topology else "nothing to compile for"
            raise errors.UsageError("xref compile", got, "--topology or --device")
        if topology:
            _without_tpu()
        known = operators.find(operator)
        name = target or f"{known.goldens['jax']}:{known.native}"
        with progress_bar() as progress:
            options = Options(
                topology=_topologies(topology or []),
                device=tuple(device or ()),
                dtype=tuple(dtype or ("bfloat16", "float32")),
                verb=tuple(verb or ()),
                vocab=vocab,
                hidden=hidden,
                tokens=tokens,
            )
            found = compile_kernel(known, load_target(name), options, name=name, progress=progress)
        try:
            for file in files:
                file.write(found.to_json() + "\n")
        finally:
            show(found, console())
    raise typer.Exit(0 if found.ok else 1)


def _without_tpu() -> None:
    """Let the compiler for TPUs look for no TPU, nor complain of none; all is read when JAX is first imported."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # else one process at a time: it may have a TPU to itself
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")  # of a host, whatever is compiled for


def _topologies(named: list[str]) -> tuple[str, ...]:
    every = compiler().TOPOLOGIES if "all" in named else ()
    return tuple(dict.fromkeys((*every, *(each for each in named if each != "all"))))
