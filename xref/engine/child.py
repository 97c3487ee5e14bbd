"""The process in which a stand's kernel runs: it loads the target, performs scripts, and sends the replies.

It holds no answers and decides nothing. Its parent starts it with one end of a pair of sockets.
"""

from __future__ import annotations

import os
import socket

import msgspec

from xref import errors
from xref.engine.candidate import candidate_of
from xref.engine.executor import Executor
from xref.engine.process import Answer, die_with_parent
from xref.engine.steps import Script
from xref.engine.wire import Channel
from xref.spec import Traits
from xref.targets import load_target

__all__ = ["Load", "Loading", "main"]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: what is to be loaded."""

    target: str
    """As `pkg.mod:name` or `path/to/file.py:name`."""
    verbs: tuple[str, ...]
    trial: dict[str, Script]
    framework: str | None
    device: str


class Loading(msgspec.Struct, frozen=True):
    """The answer to it: what is known of the candidate, or the parts of a `UsageError`."""

    traits: Traits | None = None
    refusal: tuple[str, str | None, str | None] = ("", None, None)


def main(end: int) -> None:
    """Serve the process that holds the other end of the socket with this descriptor, until it closes it."""
    die_with_parent()
    os.set_inheritable(end, False)  # noqa: FBT003
    channel = Channel(socket.socket(fileno=end))
    load = channel.receive(Load)
    try:
        candidate = candidate_of(
            load_target(load.target),
            verbs=load.verbs,
            trial=load.trial,
            framework=load.framework,
            device=load.device,
            name=load.target.rpartition("/")[2],
        )
    except errors.UsageError as error:
        channel.send(Loading(refusal=_parts(error)))
        return
    channel.send(Loading(traits=candidate.traits()))
    executor = Executor(candidate.verbs, candidate.framework, candidate.device, takes_over=True)
    while True:
        try:
            script = channel.receive(Script)
        except EOFError:
            os._exit(0)
        for place, reply in enumerate(executor.perform(script, copies=False)):
            channel.send(Answer(place, reply))
        del script


def _parts(error: errors.UsageError) -> tuple[str, str | None, str | None]:
    if error.expected is None:
        return str(error), None, None
    where, got, expected = (
        str(part).encode(errors="replace").decode() for part in (error.where, error.got, error.expected)
    )
    return where, got, expected
