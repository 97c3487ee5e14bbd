"""The clock: it ends a loop of Python, and leaves handler and clock as they were."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from xref.engine import clock
from xref.engine.clock import CrashedError, limited

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such clock here")


def looped():
    while True:
        pass


def crashes(says):
    return pytest.raises(CrashedError, match=f"^{says}$")


def test_it_ends_an_endless_loop():
    begun = time.monotonic()
    with crashes("no answer within 0.2 s"), limited(0.2):
        looped()
    assert time.monotonic() - begun < 5


def test_a_kernel_that_catches_exceptions_does_not_swallow_it():
    def kernel():
        try:
            looped()
        except Exception:
            return "caught"

    with crashes("no answer within 0.2 s"), limited(0.2):
        kernel()


def test_handler_and_clock_are_afterwards_what_they_were_before():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        handler = signal.getsignal(signal.SIGALRM)
        with limited(10):
            assert signal.getsignal(signal.SIGALRM) is not handler
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        with pytest.raises(KeyError), limited(10):
            raise KeyError
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert rung == []
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_clock_within_a_clock_leaves_it_running():
    with crashes("no answer within 0.4 s"), limited(0.4):
        with limited(10):
            pass
        looped()
    with limited(10):
        with crashes("no answer within 0.1 s"), limited(0.1):
            looped()
        assert 5 < signal.getitimer(signal.ITIMER_REAL)[0] < 10


def test_a_longer_clock_within_does_not_put_off_the_shorter_one():
    begun = time.monotonic()
    with crashes("no answer within 0.2 s"), limited(0.2), limited(60):
        looped()
    assert time.monotonic() - begun < 5


def test_outside_the_main_thread_there_is_none():
    found = []

    def run():
        with limited(0.05):
            time.sleep(0.2)
        found.append("to its end")

    handler = signal.getsignal(signal.SIGALRM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["to its end"]
    assert signal.getsignal(signal.SIGALRM) is handler


class _Deaf:
    """Python drops whatever is raised while this is destroyed."""

    def __del__(self):
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_clock_that_was_not_heard_rings_again(monkeypatch):
    monkeypatch.setattr(clock, "_AGAIN", 0.3)
    with crashes("no answer within 0.2 s"), limited(0.2):
        _Deaf()  # the first ring comes in here
        end = time.monotonic() + 20
        while time.monotonic() < end:
            pass
    time.sleep(0.7)  # and afterwards nothing rings any more
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
