"""Messages between processes: everything arrives as it was sent, and what is no message is refused."""

from __future__ import annotations

import os
import socket
import struct
import threading

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xref.engine import steps
from xref.engine.process import Answer
from xref.engine.wire import Channel, GarbledError

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int64", "float32", "float64", "bool", "complex64")
ids, table = np.arange(3), np.arange(12, dtype=np.uint16).reshape(3, 4)
STEPS = (
    steps.Put(name="ids", array=ids),
    steps.Put(name="w", array=table, rows=np.array([0, 7, 9]), vocab=10, dtype="bfloat16", layout="dense", key="k"),
    steps.Reuse(name="w", key="k"),
    steps.Overwrite(name="ids", array=ids, counted=True),
    steps.Run(name="out", verb="forward", arguments=("ids", "w", 3), mode="jit", refusable=True, options={"a": 1}),
    steps.Differentiate(name="g", verb="forward", arguments=("ids", "w"), cotangent="c", way="traced"),
    steps.Add(name="sum", first="out", second="g"),
    steps.Read(name="w", rows=np.array([1])),
    steps.Peak(name="p", verb="forward", arguments=("ids", "w"), warm=("ids", "w")),
    steps.Drop(name="w"),
)
REPLIES = (
    steps.Done(),
    steps.Output(form=((3, 4), "bfloat16", "cpu"), array=table, memory=(1, 2**63)),
    steps.Output(form=((), "list", "none"), unreadable="it is no array"),
    steps.Raised(type="E", bases=("E", "Exception"), text="a\nb", line="E: a", where="x.py:1", refused=True),
    steps.Count(value=2**40),
    steps.NotMade(why="no"),
    steps.Died(how="death by SIGSEGV", stderr="x"),
)


@pytest.fixture
def ends():
    first, second = socket.socketpair()
    yield Channel(first), Channel(second), first
    first.close()
    second.close()


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and all(
            same(getattr(one, field), getattr(other, field)) for field in one.__struct_fields__
        )
    return one == other


def passed(ends, message, kind):
    """Return what arrives, sent from another thread as it may be large."""
    thread = threading.Thread(target=ends[0].send, args=(message,))
    thread.start()
    got = ends[1].receive(kind, seconds=20)
    thread.join()
    return got


def test_every_kind_of_step_and_reply_is_here():
    assert {type(step) for step in STEPS} == set(steps.Step.__args__)
    assert {type(reply) for reply in REPLIES} == set(steps.Reply.__args__)


def test_a_script_arrives_as_it_is(ends):
    script = steps.Script("float32", STEPS, seconds=3.0, hazardous=True)
    got = passed(ends, script, steps.Script)
    assert (got.dtype, got.seconds, got.hazardous) == ("float32", 3.0, True)
    assert all(same(one, other) for one, other in zip(script.steps, got.steps, strict=True))


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: str(reply)[:30].replace("\n", " "))
def test_a_reply_arrives_as_it_is(ends, reply):
    got = passed(ends, Answer(4, reply), Answer)
    assert got.place == 4
    assert same(got.reply, reply)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4), st.randoms(use_true_random=False))
def test_arrays_of_any_form_arrive(dtype, shape, random):
    first, second = socket.socketpair()
    with first, second:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = random.randbytes(size) if dtype != "bool" else bytes(size)
        array = np.frombuffer(raw, dtype).reshape(shape)
        array = array.T if random.random() < 0.5 else array
        Channel(first).send(steps.Put(name="a", array=array))
        assert same(array, Channel(second).receive(steps.Put, seconds=20).array)


@pytest.mark.parametrize("memory", ["sealed", "temporary"])
def test_a_large_array_arrives_in_a_file_and_may_be_written(ends, monkeypatch, memory):
    if memory == "temporary":
        monkeypatch.delattr(os, "memfd_create")
    large = np.arange(1 << 20).reshape(1 << 10, 1 << 10)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH112, PTH208
    got = passed(ends, steps.Put(name="a", array=large.T), steps.Put).array
    assert same(got, large.T)
    got[:] = 0
    assert large[-1, -1] == (1 << 20) - 1
    del got
    if before:
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_more_large_arrays_than_one_message_can_have_files_arrive_all_the_same(ends, monkeypatch):
    monkeypatch.setattr("xref.engine.wire._LARGE", 100)
    arrays = [np.full(200, n) for n in range(230)]
    script = steps.Script("float32", tuple(steps.Put(name=str(n), array=each) for n, each in enumerate(arrays)))
    got = passed(ends, script, steps.Script)
    assert all(same(step.array, each) for step, each in zip(got.steps, arrays, strict=True))


def array_message(dtype="<i8", shape=(1,), held=b"\0" * 8):
    return msgspec.msgpack.encode({"step": "Put", "name": "a", "array": [dtype, shape, held]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1garbage",
        msgspec.msgpack.encode({"step": "Other"}),
        msgspec.msgpack.encode({"step": "Put", "name": "a", "array": 3}),
        array_message(dtype="O"),
        array_message(dtype="<i7"),
        array_message(dtype="<f99"),
        array_message(shape=(2,)),
        array_message(shape=(-1, -1)),
        array_message(shape=(2**62, 0)),
        array_message(shape=(0,) * 80, held=b""),
        array_message(held=0),
        array_message(held=-1),
        b"\x91" * 100_000 + b"\x90",
    ],
    ids=lambda data: str(data[:60]),
)
def test_what_is_no_message_is_refused(ends, data):
    ends[2].sendall(struct.pack("<QI", len(data), 0) + data)
    with pytest.raises(GarbledError):
        ends[1].receive(steps.Put, seconds=20)


@pytest.mark.parametrize("header", [(2**60, 0), (8, 2**30)])
def test_an_absurd_header_is_refused_at_once(ends, header):
    ends[2].sendall(struct.pack("<QI", *header))
    with pytest.raises(GarbledError):
        ends[1].receive(steps.Put, seconds=20)


def test_a_file_that_can_still_be_cut_short_is_read_and_not_mapped(ends):
    if not hasattr(os, "memfd_create"):
        pytest.skip("no files in memory here")
    file = os.memfd_create("open")
    os.write(file, np.arange(4).tobytes())
    data = array_message(shape=(4,), held=0)
    socket.send_fds(ends[2], [struct.pack("<QI", len(data), 1)], [file])
    ends[2].sendall(data)
    got = ends[1].receive(steps.Put, seconds=20).array
    os.ftruncate(file, 0)
    os.close(file)
    assert got.tolist() == [0, 1, 2, 3]


def test_a_file_shorter_than_its_array_is_refused(ends):
    file = os.open(__file__, os.O_RDONLY)
    data = array_message(shape=(2**40,), held=0)
    socket.send_fds(ends[2], [struct.pack("<QI", len(data), 1)], [file])
    os.close(file)
    ends[2].sendall(data)
    with pytest.raises(GarbledError):
        ends[1].receive(steps.Put, seconds=20)


def test_silence_and_an_end_are_told_apart(ends):
    with pytest.raises(TimeoutError):
        ends[1].receive(steps.Put, seconds=0.1)
    with pytest.raises(EOFError):
        ends[1].receive(steps.Put, seconds=20, alive=lambda: False)
    ends[2].sendall(b"half a head")
    with pytest.raises(TimeoutError):
        ends[1].receive(steps.Put, seconds=0.1)
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive(steps.Put, seconds=20)
