"""A subject in a process of its own: what kills it is a reply, and nothing that it prints or replaces reaches this one.

This process sends inputs and gets arrays back; it imports neither the target nor a framework. A child that has died is
replaced when the next script is performed. Ctrl-C is for the parent alone, which ends the child.

Not promised: a kernel that attacks the machine is not stopped. Whoever starts a stand in a thread must keep that thread
alive, as the child dies with it on Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

import msgspec

from xref import errors
from xref.engine.child import Load, Loading
from xref.engine.keys import Keys
from xref.engine.process import ending, replies_from
from xref.engine.results import device_fault
from xref.engine.steps import Died, Differentiate, Peak, Raised, Replies, Reply, Run, Script, Step
from xref.engine.wire import Channel, GarbledError
from xref.spec import Traits

__all__ = ["Stand"]

_LOADED_WITHIN = 1200.0  # seconds: a module may compile its kernels first
_FIRST, _FIRST_SECONDS = 24, 300.0  # calls of a child in which anything may be compiled, and the seconds for each
_LEAST_SECONDS, _TIMES_LONGEST = 20.0, 20  # later: so long, or so many times the longest step so far
_TAIL, _LINES = 8192, 12  # bytes of what the child wrote last that are looked at, and lines that are shown
_CHILD = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import sys;"
    " from xref.engine.child import main; main(int(sys.argv[1]))"
)


class _Process(subprocess.Popen[bytes]):
    """A process that leads a group: with it ends what it has started."""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Stand:
    """A target that is examined in a child process.

    Args:
        target: as `pkg.mod:name` or `path/to/file.py:name`.
        verbs: what can be asked of the operator.
        trial: a small script for each verb, by which the framework is found where the code does not tell.
        framework: `torch` or `jax`; None finds it out.
        device: `cpu`, `cuda` or `tpu`.

    Raises:
        UsageError: the target cannot be loaded, or is no candidate.
    """

    traits: Traits
    deaths: int
    """How many of its processes have ended before they should."""

    elsewhere = True

    def __init__(
        self,
        target: str,
        *,
        verbs: tuple[str, ...],
        trial: Mapping[str, Script],
        framework: str | None = None,
        device: str = "cpu",
    ) -> None:
        self._load = Load(target=target, verbs=verbs, trial=dict(trial), framework=framework, device=device)
        self._keys = Keys()
        self._child: _Process | None = None
        self.deaths = 0
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the stand)
        try:
            self.traits = self._started()
        except BaseException:
            self._output.close()
            raise

    def perform(self, script: Script) -> Replies:
        """Return the replies to a script; the last one is a `Died` if its process ended or fell silent."""
        if self._child is None:
            try:
                self._started()
            except errors.UsageError as error:
                return Replies(script, [self._death(Died(how=f"no other process after that ({error})"))])
        drops, planned = self._keys.planned(script)
        try:
            replies = Replies(script, list(self._performed(planned))[drops:])
        except BaseException:  # Ctrl-C among them
            self._end()
            raise
        if not replies.replies and script.steps:
            replies = Replies(script, [Died(how="an end while it dropped arrays")])
        if self._child is not None:
            self._keys.note(script, replies)
        return replies

    def forget(self) -> None:
        """Keep no array any longer: a call has written into one."""
        self._keys.forget()

    def close(self) -> None:
        """End the process."""
        self._end()
        self._output.close()

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Traits:
        """Start a process that loads the target, and return its traits."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = _Process(
                [sys.executable, "-c", _CHILD, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        self._channel, child = Channel(ours), self._child
        self._calls, self._longest = 0, 0.0
        try:
            self._channel.send(self._load, seconds=_LOADED_WITHIN)
            answer = self._channel.receive(Loading, seconds=_LOADED_WITHIN, alive=lambda: child.poll() is None)
        except TimeoutError:
            got = f"no answer within {_LOADED_WITHIN:g} s"
        except (EOFError, OSError):
            got = ending(child)
        except GarbledError:
            got = "an answer that is none"
        except BaseException:
            self._end()
            raise
        else:
            if answer.traits is not None:
                return answer.traits
            self._end()
            raise errors.UsageError(*answer.refusal)
        said = self._said().strip().rpartition("\n")[2]
        self._end()
        shown = f"{got} while it was loaded" + (f" ({said})" if said else "")
        raise errors.UsageError(self._load.target, shown, "it to load")

    def _performed(self, script: Script) -> Iterator[Reply]:
        child = self._child
        if child is None:
            return
        try:
            self._channel.send(script, seconds=_FIRST_SECONDS)
        except OSError:
            yield self._death(Died(how=ending(child)))
            return
        begun = time.monotonic()
        replies = replies_from(self._channel, child, script, lambda step: self._seconds(script, step))
        for step, reply in zip(script.steps, replies, strict=False):
            now = time.monotonic()
            self._calls += isinstance(step, Run | Differentiate | Peak)
            self._longest, begun = max(self._longest, now - begun), now
            if isinstance(reply, Raised) and (fault := _fault(reply)):
                reply = Died(how=f"abort on the device ({fault})")
            if isinstance(reply, Died):
                yield self._death(reply)
                return
            yield reply

    def _seconds(self, script: Script, step: Step) -> float:
        """Return how long a step may take."""
        if script.seconds:
            return script.seconds
        compiles = isinstance(step, Run | Differentiate | Peak) and (step.mode or getattr(step, "way", ""))
        if self._calls < _FIRST or compiles:
            return _FIRST_SECONDS
        return max(_LEAST_SECONDS, _TIMES_LONGEST * self._longest)

    def _death(self, death: Died) -> Died:
        """Return the reply with what the process wrote last, and end what is left of it."""
        self.deaths += 1
        death = msgspec.structs.replace(death, stderr=self._said())
        self._end()
        return death

    def _said(self) -> str:
        """Return the last lines that the processes have written."""
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(end - _TAIL, 0))
        lines = self._output.read(_TAIL).decode(errors="replace").splitlines()[-_LINES:]
        return "\n".join("".join(each if each.isprintable() else " " for each in line).rstrip() for line in lines)

    def _end(self) -> None:
        self._keys.clear()
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._channel.close()
            self._child = None
            self._output.seek(0)
            self._output.truncate()


def _fault(raised: Raised) -> str:
    """Return what an exception says has happened to the device's context, which nothing works in afterwards."""
    return device_fault(raised.text) or (raised.line if raised.type == "AcceleratorError" else "")
