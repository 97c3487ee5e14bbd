"""Calls that may kill the process, or never end: made in a child process, or at least under a clock.

A kernel that does not check its ids reads foreign memory: that can be a segmentation fault. torch on a CPU runs such
calls in a forked child. Where a fork is not possible (JAX has threads of its own, and a GPU belongs to the process that
opened it) they run here, last of all, under a clock that ends a loop of Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["CrashedError", "die_with_parent", "limited", "prolong", "run_in_child", "signal_name"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_AGAIN = 1.0  # seconds after which a clock that was not heard rings again


class CrashedError(BaseException):
    """A call did not end in time.

    As with KeyboardInterrupt, no `except Exception` on its way takes it for a result, be it a kernel's.
    """


def run_in_child(run: Callable[[Callable[[Any], None]], None], *, seconds: float) -> tuple[list[Any], str | None]:
    """Call `run(send)` in a forked child; return what it sent, and how it died if it did.

    `seconds` is how long the child may be silent. What it sends is pickled.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads: nothing here needs them in the child
        child = os.fork()
    if child == 0:
        _child(run, writer)
    os.close(writer)
    try:
        return _received(reader, child, seconds)
    finally:
        os.close(reader)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent is gone: nobody else would end an endless loop (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _child(run: Callable[[Callable[[Any], None]], None], writer: int) -> None:
    code = 1
    try:
        die_with_parent()
        signal.setitimer(signal.ITIMER_REAL, 0)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        sys.stdout = sys.stderr = os.fdopen(silent, "w")  # they may be no files of 1 and 2, as in a notebook
        faulthandler.disable()

        def write(data: bytes) -> None:
            view = memoryview(len(data).to_bytes(8, "little") + data)
            while view:
                view = view[os.write(writer, view) :]

        run(lambda message: write(pickle.dumps(message)))
        write(b"")  # no message is empty: it came to its end
        code = 0
    finally:
        os._exit(code)  # no exit handlers: they are the parent's


def _received(reader: int, child: int, seconds: float) -> tuple[list[Any], str | None]:
    messages: list[Any] = []
    data, deadline, ended = b"", time.monotonic() + seconds, False
    while True:
        ready, _, _ = select.select([reader], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return messages, f"no answer within {seconds:g} s"
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
        while len(data) >= 8 and len(data) - 8 >= (size := int.from_bytes(data[:8], "little")):
            if size:
                messages.append(pickle.loads(data[8 : 8 + size]))
            ended |= size == 0
            data, deadline = data[8 + size :], time.monotonic() + seconds
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return messages, f"death by {signal_name(-code)}"
    return messages, None if ended else f"exit with code {code}"


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none, as those for real time."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `CrashedError` in the block after so many seconds: in the main thread, and between steps of Python.

    It is raised again every so often until the block ends: Python drops what is raised in a destructor or in the
    callback of a weak reference. A clock that runs already goes on afterwards, and rings no later than it would have.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    left, interval = signal.getitimer(signal.ITIMER_REAL)  # of another such block, or of pytest-timeout
    if 0 < left <= seconds:
        yield
        return
    begun, inside = time.monotonic(), True

    def ring(*_: object) -> None:
        if inside:
            raise CrashedError(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begun), 0.001), interval)


def prolong(seconds: float) -> None:
    """Give the block of `limited` that is running so many seconds from now on."""
    if threading.current_thread() is threading.main_thread() and signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
