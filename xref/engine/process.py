"""Child processes: their replies arrive one by one, their end is described, and none outlives its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from xref.engine.steps import Died, Reply, Script, Step
from xref.engine.wire import Channel, GarbledError

__all__ = ["Answer", "Child", "Forked", "die_with_parent", "ending", "replies_from", "signal_name"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_CLOSED_FOR = 5.0  # seconds after which a process that has closed its socket is ended


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The reply to the step of a script at a place."""

    place: int
    reply: Reply


class Child(Protocol):
    """A child process, as `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Return its exit code, negative after a signal, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code."""

    def kill(self) -> None:
        """End it."""


class Forked:
    """A child that `os.fork` has made."""

    def __init__(self, pid: int) -> None:
        self._pid, self._code = pid, None if pid else 0

    def poll(self) -> int | None:
        """Return its exit code, negative after a signal, or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, once it has ended; after the timeout it is ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        """End it."""
        if self._code is None:
            os.kill(self._pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it is gone: nobody else would (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none, as those for real time."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending(child: Child) -> str:
    """Return how a child has ended that has closed its socket; it is ended if it lives on."""
    with contextlib.suppress(Exception):  # each kind of child has its own for a timeout
        code = child.wait(_CLOSED_FOR)
        return f"death by {signal_name(-code)}" if code < 0 else f"exit with code {code}"
    child.kill()
    child.wait()
    return "no connection to it any more"


def replies_from(channel: Channel, child: Child, script: Script, seconds: Callable[[Step], float]) -> Iterator[Reply]:
    """Yield the replies to a script as a child gives them; the last one is a `Died` if it ends or falls silent.

    `seconds` says how long it may take for a step. Afterwards it is dead or has replied to everything.
    """
    for place, step in enumerate(script.steps):
        limit = seconds(step)
        try:
            answer = channel.receive(Answer, seconds=limit, alive=lambda: child.poll() is None)
            if answer.place != place or isinstance(answer.reply, Died):
                raise GarbledError("another step's reply")
        except TimeoutError:
            death = Died(how=f"no answer within {limit:g} s", late=True)
        except EOFError:
            death = Died(how=ending(child))
        except (GarbledError, OSError):
            death = Died(how="an answer that is none")
        else:
            yield answer.reply
            continue
        child.kill()
        child.wait()
        yield death
        return
