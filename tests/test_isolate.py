"""A child process and a clock: whatever a kernel does to its process, it ends in a message, and nothing else does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.helpers import raises

from xref.judge import isolate
from xref.judge.isolate import CrashedError, limited, run_in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def descriptors():
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


def looped():
    while True:
        pass


# The child


def test_what_a_child_sends_arrives_in_order():
    def work(send):
        for n in range(5):
            send((n, {"a": [n, None]}))

    assert run_in_child(work, seconds=20) == ([(n, {"a": [n, None]}) for n in range(5)], None)


def test_a_child_that_sends_nothing_is_no_failure():
    assert run_in_child(lambda send: None, seconds=20) == ([], None)


def test_large_messages_arrive_whole():
    large = np.arange(1 << 19)

    def work(send):
        send(large)
        send(b"x" * (1 << 20))
        send("after")

    (first, second, last), died = run_in_child(work, seconds=20)
    assert (first == large).all()
    assert (len(second), last, died) == (1 << 20, "after", None)


@pytest.mark.parametrize(
    ("fault", "died"),
    [
        (lambda: 1 / 0, "exit with code 1"),
        (lambda: sys.exit(0), "exit with code 1"),
        (lambda: os._exit(7), "exit with code 7"),
        (lambda: ctypes.string_at(0), "death by SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "death by SIGKILL"),
        (os.abort, "death by SIGABRT"),
    ],
    ids=["exception", "SystemExit", "exit", "segfault", "kill", "abort"],
)
def test_how_a_child_dies_is_told_and_what_it_sent_before_is_kept(fault, died):
    def work(send):
        send("before")
        fault()
        send("after")

    messages, how = run_in_child(work, seconds=20)
    assert (messages, how) == (["before"], died)


def test_a_child_that_exits_with_code_0_and_says_no_more_has_died_all_the_same():
    def work(send):
        send("before")
        os._exit(0)

    assert run_in_child(work, seconds=20) == (["before"], "exit with code 0")


def test_a_message_that_cannot_be_pickled_is_the_childs_death():
    assert run_in_child(lambda send: send(lambda: None), seconds=20) == ([], "exit with code 1")


def test_a_silent_child_is_ended():
    def work(send):
        send("before")
        looped()

    begun = time.monotonic()
    assert run_in_child(work, seconds=0.5) == (["before"], "no answer within 0.5 s")
    assert time.monotonic() - begun < 5


def test_a_child_that_keeps_talking_is_not():
    def work(send):
        for _ in range(4):
            time.sleep(0.2)
            send(0)

    assert run_in_child(work, seconds=0.6) == ([0] * 4, None)


def test_a_child_is_waited_for_and_its_pipe_is_closed():
    before = descriptors()
    run_in_child(lambda send: send(1), seconds=20)
    run_in_child(lambda send: ctypes.string_at(0), seconds=20)
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_child_prints_nothing(capfd):
    sys.stdout.write("unflushed")

    def work(send):
        sys.stdout.write("to stdout")
        sys.stdout.flush()
        os.write(1, b"past Python")
        os.write(2, b"to stderr")
        send(1)

    run_in_child(work, seconds=20)
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert (out, err) == ("unflushed", "")


def test_what_a_child_changes_stays_in_it():
    seen = []

    def work(send):
        seen.append(1)
        send(len(seen))

    assert run_in_child(work, seconds=20) == ([1], None)
    assert seen == []


def test_the_clock_works_in_a_child_too_even_of_a_thread():
    def work(send):
        try:
            with limited(0.2):
                looped()
        except CrashedError as error:
            send(str(error))

    found = []
    thread = threading.Thread(target=lambda: found.append(run_in_child(work, seconds=20)))
    thread.start()
    thread.join()
    assert found == [(["no answer within 0.2 s"], None)]


# The clock


def test_the_clock_ends_an_endless_loop():
    begun = time.monotonic()
    with raises(CrashedError, "no answer within 0.2 s"), limited(0.2):
        looped()
    assert time.monotonic() - begun < 5


def test_a_kernel_that_catches_exceptions_does_not_swallow_the_clock():
    def kernel():
        try:
            looped()
        except Exception:
            return "caught"

    with raises(CrashedError, "no answer within 0.2 s"), limited(0.2):
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
    with raises(CrashedError, "no answer within 0.4 s"), limited(0.4):
        with limited(10):
            pass
        looped()
    with limited(10):
        with raises(CrashedError, "no answer within 0.1 s"), limited(0.1):
            looped()
        assert 5 < signal.getitimer(signal.ITIMER_REAL)[0] < 10


def test_a_longer_clock_within_does_not_put_off_the_shorter_one():
    begun = time.monotonic()
    with raises(CrashedError, "no answer within 0.2 s"), limited(0.2), limited(60):
        looped()
    assert time.monotonic() - begun < 5


def test_outside_the_main_thread_there_is_no_clock():
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
    monkeypatch.setattr(isolate, "_AGAIN", 0.3)
    with raises(CrashedError, "no answer within 0.2 s"), limited(0.2):
        _Deaf()  # the first ring comes in here
        end = time.monotonic() + 20
        while time.monotonic() < end:
            pass
    time.sleep(0.7)  # and afterwards nothing rings any more
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
