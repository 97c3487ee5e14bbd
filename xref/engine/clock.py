"""A clock that ends what takes too long in this process: a loop of Python, in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

__all__ = ["CrashedError", "limited"]

_AGAIN = 1.0  # seconds after which a clock that was not heard rings again


class CrashedError(BaseException):
    """A call did not end in time.

    As with KeyboardInterrupt, no `except Exception` on its way takes it for a result, be it a kernel's.
    """


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
