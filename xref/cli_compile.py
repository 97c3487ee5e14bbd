"""The command `xref compile`."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from xref import errors
from xref.cli_options import Device, Dtype
from xref.contracts import embedding as contract
from xref.judge import report
from xref.judge.compiled import GRADIENT, Compiled, CompileReport, compile_kernel, compiler
from xref.targets import load_target
from xref.terminal import console, progress_bar, stopped

__all__ = ["compile_"]

_CALL = "compile"
_GOLDEN = "xref.jax_ops.embedding:NativeEmbeddingOp"
_MEGA = 1e6

Verb = enum.StrEnum("Verb", {name: name for name in (*contract.VERBS, GRADIENT)})  # type: ignore[misc]


def compile_(
    target: Annotated[str, typer.Argument(help="A JAX kernel: pkg.mod:name or path/to/file.py:name.")] = _GOLDEN,
    topology: Annotated[
        list[str] | None,
        typer.Option(help="TPUs to compile for, such as v5e:2x2 (repeatable); all: one of each generation."),
    ] = None,
    device: Annotated[list[Device] | None, typer.Option(help="Or a kind of device that is here (repeatable).")] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Table dtype (repeatable); bfloat16 and float32.")] = None,
    verb: Annotated[list[Verb] | None, typer.Option(help="What to compile (repeatable); the forward verbs.")] = None,
    vocab: Annotated[int, typer.Option(min=1, help="V, rows of the table.")] = 151936,
    hidden: Annotated[int, typer.Option(min=1, help="H, elements of a row.")] = 4096,
    tokens: Annotated[int, typer.Option(min=1, help="T, ids in the batch.")] = 8192,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Compile a JAX kernel, for TPUs without a TPU, and show its memory and whether it only copies."""
    try:
        if json is not None:
            report.check_writable(json, inputs=[Path(target.rpartition(":")[0])], call=_CALL)
        if bool(topology) == bool(device):
            got = "both --topology and --device" if topology else "nothing to compile for"
            raise errors.UsageError(errors.message("xref compile", got, "--topology or --device", _CALL))
        if topology:
            _without_tpu()
        with progress_bar() as progress:
            found = compile_kernel(
                load_target(target, _CALL),
                topology=_topologies(topology or []),
                device=tuple(device or ()),
                dtype=tuple(dtype or ("bfloat16", "float32")),
                verb=tuple(verb or ()),
                vocab=vocab,
                hidden=hidden,
                tokens=tokens,
                name=target,
                progress=progress,
            )
        try:
            if json is not None:
                report.write_file(found.to_json() + "\n", json)
        finally:
            _show(found)
    except errors.XrefError as error:
        raise stopped(error, 2) from error
    except KeyboardInterrupt as error:
        raise stopped("interrupted: nothing was compiled", 130) from error
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


def _show(found: CompileReport) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("for")
    table.add_column("verb")
    table.add_column("table")
    table.add_column("temporaries", justify="right")
    table.add_column("output", justify="right")
    table.add_column("of the table's size", justify="right")
    table.add_column("copy")
    ways: dict[tuple[str, str], list[str]] = {}
    for program in found.programs:
        table.add_row(*map(escape, _row(program)))
        ways.setdefault((f"{program.verb} {program.dtype}", _way(program)), []).append(program.where)
    on = console()
    on.print(table)
    for (what, way), places in ways.items():
        if way:
            on.print(escape(f"{what} for {', '.join(places)}:\n  {way}"), soft_wrap=True, highlight=False)
    libtpu = f", libtpu {found.compiler}" if found.compiler else ""
    shape = f"[{found.vocab}, {found.hidden}] table, {found.tokens} ids"
    copies = any(program.verb != GRADIENT for program in found.programs)
    statement = f"{'copies, ' if copies else ''}without a temporary of the table's size"
    statement = statement if found.ok else "not all as they must be"
    on.print(f"{escape(found.candidate)}: {statement}: {escape(shape)}, jax {found.jax}{libtpu}.", soft_wrap=True)


def _row(program: Compiled) -> tuple[str, ...]:
    head = program.where, program.verb, program.dtype
    if program.problem:
        return (*head, "", "", "", "no program")
    size = "yes" if program.grows else "none"
    memory = f"{program.temporaries / _MEGA:.1f} MB", f"{program.output / _MEGA:.1f} MB", size
    return (*head, *memory, program.copies)


def _way(program: Compiled) -> str:
    """Return what there is to say of how the table's elements come to the output."""
    if program.problem:
        return program.problem
    why = f" (not proven: {', '.join(program.reasons)})" if program.reasons else ""
    return " > ".join(program.operations) + why
