"""A subject in this process: hazards are met in a forked child, or under a clock."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.helpers import FRAMEWORKS

from xref.engine import frameworks
from xref.engine.candidate import Candidate
from xref.engine.local import Local
from xref.engine.steps import Died, Output, Overwrite, Put, Raised, Run, Script

TABLE = (np.arange(12, dtype=np.uint32) + 0x3F800000).reshape(3, 4)


def local(kernel, framework="torch", **how):
    return Local(Candidate("it", frameworks.load(framework), "cpu", {"forward": kernel}), **how)


def call(*ids, key="", **how):
    puts = (Put(name="ids", array=np.array(ids, np.int32)), Put(name="w", array=TABLE, dtype="float32", key=key))
    return Script("float32", (*puts, Run(name="out", verb="forward", arguments=("ids", "w"))), **how)


def looped():
    while True:
        pass


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("hazardous", [False, True])
def test_a_right_kernel(framework, hazardous):
    subject = local(lambda ids, weight: weight[ids], framework, golden=True)
    assert (subject.traits.name, subject.traits.framework, subject.traits.golden) == ("it", framework, True)
    assert subject.traits.traces == (framework == "jax")
    for _ in range(2):
        reply = subject.perform(call(2, 0, key="k", hazardous=hazardous)).of("out")
        assert np.array_equal(reply.array, TABLE[[2, 0]])
    subject.close()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("hazardous", [False, True])
def test_a_loop_ends(framework, hazardous):
    replies = local(lambda ids, weight: looped(), framework).perform(call(1, seconds=0.3, hazardous=hazardous))
    assert replies.death == Died(how="no answer within 0.3 s", late=True)
    assert replies.of("out") is replies.death


@pytest.mark.torch
@pytest.mark.parametrize(
    ("fault", "how"),
    [
        (lambda: os._exit(7), "exit with code 7"),
        (lambda: ctypes.string_at(0), "death by SIGSEGV"),
        (os.abort, "death by SIGABRT"),
    ],
    ids=["exit", "segfault", "abort"],
)
def test_how_a_hazardous_call_dies_is_told(fault, how):
    subject = local(lambda ids, weight: fault())
    assert subject.perform(call(1, hazardous=True)).of("out") == Died(how=how)


@pytest.mark.torch
def test_what_a_hazardous_call_raises_is_a_reply():
    subject = local(lambda ids, weight: 1 / 0)
    reply = subject.perform(call(1, hazardous=True)).of("out")
    assert isinstance(reply, Raised)
    assert reply.line == "ZeroDivisionError: division by zero"


@pytest.mark.torch
def test_a_hazardous_call_leaves_no_process_and_no_file_behind():
    def descriptors():
        return {int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}

    subject = local(lambda ids, weight: weight[ids] if int(ids[0]) else os._exit(1))
    before = descriptors()
    subject.perform(call(1, hazardous=True))
    subject.perform(call(0, hazardous=True))
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.torch
def test_a_hazardous_call_prints_nothing_and_changes_nothing_here(capfd):
    seen = []

    def kernel(ids, weight):
        seen.append(1)
        sys.stdout.write("to stdout")
        sys.stdout.flush()
        os.write(1, b"past Python")
        os.write(2, b"to stderr")
        return weight[ids]

    sys.stdout.write("unflushed")
    assert isinstance(local(kernel).perform(call(1, hazardous=True)).of("out"), Output)
    sys.stdout.flush()
    assert capfd.readouterr() == ("unflushed", "")
    assert seen == []


@pytest.mark.torch
def test_the_clock_works_in_a_child_too_even_of_a_thread():
    found = []
    subject = local(lambda ids, weight: looped())
    script = call(1, seconds=0.2, hazardous=True)
    thread = threading.Thread(target=lambda: found.append(subject.perform(script).death))
    begun = time.monotonic()
    thread.start()
    thread.join()
    assert found[0].how == "no answer within 0.2 s"
    assert time.monotonic() - begun < 10


@pytest.mark.torch
def test_a_table_is_kept_until_it_is_overwritten_or_forgotten():
    addresses = []

    def kernel(ids, weight):
        addresses.append((weight.data_ptr(), float(weight[0, 0])))
        return weight[ids]

    subject = local(kernel)
    subject.perform(call(1, key="k"))
    subject.perform(call(1, key="k"))
    assert addresses[0] == addresses[1]
    script = call(1, key="k")
    zeros = Overwrite(name="w", array=np.zeros_like(TABLE), counted=True)
    subject.perform(Script("float32", (*script.steps[:2], zeros, script.steps[2])))
    subject.perform(script)
    assert [value for _, value in addresses[2:]] == [0.0, 1.0]
    subject.forget()
    subject.perform(script)
    assert addresses[4][1] == 1.0
