"""The stand: whatever a kernel does to its process ends in a reply, and the next call finds another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from xref import errors
from xref.engine import stand as module
from xref.engine.stand import Stand
from xref.engine.steps import Died, Done, Drop, Output, Put, Raised, Read, Run, Script

pytestmark = [pytest.mark.torch, pytest.mark.skipif(os.name != "posix", reason="needs sockets that pass files")]

TABLE = np.arange(40, dtype=np.uint32).reshape(10, 4)


def call(*ids, table=TABLE, key="", **how):
    puts = (Put(name="ids", array=np.array(ids)), Put(name="weight", array=table, dtype="float32", key=key))
    steps = (*puts, Run(name="out", verb="forward", arguments=("ids", "weight")), Read(name="weight"))
    return Script("float32", steps, **how)


def written(folder: Path, body: str) -> str:
    path = folder / "kernels.py"
    path.write_text("import ctypes, os, sys, time, threading\nimport torch\n" + textwrap.dedent(body))
    return f"{path}:kernel"


@pytest.fixture
def stands(tmp_path):
    """Return a function that puts a kernel, given by its source, on a stand."""
    made = []

    def stand(body: str, **how) -> Stand:
        made.append(Stand(written(tmp_path, body), verbs=("forward",), trial={}, **how))
        return made[-1]

    yield stand
    for each in made:
        each.close()


def right(stand: Stand, *ids, **how) -> bool:
    reply = stand.perform(call(*ids, **how)).of("out")
    return isinstance(reply, Output) and np.array_equal(reply.array, TABLE[list(ids)])


def died(stand: Stand, *ids, **how) -> Died:
    replies = stand.perform(call(*ids, **how))
    assert isinstance(replies.death, Died), replies.replies
    assert replies.of("out") is replies.of("weight", Read) is replies.death
    assert isinstance(replies[0], Done)
    return replies.death


RIGHT = """
def kernel(ids, weight):
    return weight[ids]
"""


def faulty(fault: str) -> str:
    """Return a kernel that is right, and has a fault at id 7."""
    return f"""
def kernel(ids, weight):
    if 7 in ids.tolist():
{textwrap.indent(textwrap.dedent(fault).strip(), " " * 8)}
    return weight[ids]
"""


def test_a_right_kernel_is_right_and_its_traits_are_known(stands):
    stand = stands(RIGHT)
    assert (stand.traits.name, stand.traits.framework, stand.traits.verbs) == (
        "kernels.py:kernel",
        "torch",
        ("forward",),
    )
    replies = stand.perform(call(2, 0))
    assert np.array_equal(replies.of("out").array, TABLE[[2, 0]])
    assert replies.of("out").form == ((2, 4), "float32", "cpu")
    assert np.array_equal(replies.of("weight", Read).array, TABLE)
    assert replies.death is None
    assert stand.deaths == 0


def test_what_a_kernel_raises_is_a_reply_with_its_place(stands):
    stand = stands(faulty("raise IndexError('no row 7')"))
    reply = stand.perform(call(7)).of("out")
    assert isinstance(reply, Raised)
    assert (reply.line, reply.bases[:2], reply.where) == (
        "IndexError: no row 7", ("IndexError", "LookupError"), "kernels.py:6",
    )  # fmt: skip
    assert right(stand, 1)
    assert stand.deaths == 0


FORGED = """
import msgspec, struct
data = msgspec.msgpack.encode([2, {reply}])
for fd in range(3, 60):
    try: os.write(fd, struct.pack("<QI", len(data), 0) + data)
    except OSError: pass
"""
FAULTS = {
    "exit": ("os._exit(3)", "exit with code 3"),
    "exit 0": ("os._exit(0)", "exit with code 0"),
    "segfault": ("ctypes.string_at(0)", "death by SIGSEGV"),
    "abort": ("os.abort()", "death by SIGABRT"),
    "closed files, and asleep": ("os.closerange(3, 200); time.sleep(100)", "no connection to it any more"),
    "garbage": (
        "for fd in range(3, 60):\n    try: os.write(fd, b'{}' * 200)\n    except OSError: pass",
        "an answer that is none",
    ),
    "forged death": (FORGED.format(reply={"reply": "Died", "how": "fine"}), "an answer that is none"),
    "forged reply": (FORGED.format(reply={"reply": "Done"}), "an answer that is none"),
    "device-side assert": (
        "raise RuntimeError('CUDA error: device-side assert triggered')",
        "abort on the device (device-side assert)",
    ),
    "loop that swallows everything": (
        "while True:\n    try:\n        while True: time.sleep(0.01)\n    except BaseException: pass",
        "no answer within 1 s",
    ),
    "sleep": ("time.sleep(1000)", "no answer within 1 s"),
    "last words": (
        "print('\\x1b[31mlast words'); os.write(2, b'and more'); sys.stdout.flush(); os._exit(4)",
        "exit with code 4",
    ),
}
ALL_FAULTS = (
    "".join(
        f"def fault_{n}():\n{textwrap.indent(fault.strip(), '    ')}\n" for n, (fault, _) in enumerate(FAULTS.values())
    )
    + """
def kernel(ids, weight):
    print("noise")
    first = int(ids[0])
    if first >= 100:
        globals()[f"fault_{first - 100}"]()
    return weight[ids]
"""
)


@pytest.fixture(scope="module")
def frail(tmp_path_factory):
    """Return a stand with a kernel that is right, and has the n-th of the faults at id 100 + n."""
    with Stand(written(tmp_path_factory.mktemp("frail"), ALL_FAULTS), verbs=("forward",), trial={}) as stand:
        yield stand


@pytest.mark.parametrize("name", FAULTS)
def test_how_a_process_ends_is_told_and_the_next_call_finds_another(frail, monkeypatch, capfd, name):
    monkeypatch.setattr("xref.engine.process._CLOSED_FOR", 1.0)
    place, (_, how) = list(FAULTS).index(name), FAULTS[name]
    before, begun = frail.deaths, time.monotonic()
    late = how.startswith("no answer")
    replies = frail.perform(call(100 + place, seconds=1.0 if late else 0.0))
    assert frail.deaths == before + 1
    death = replies.death
    assert (death.how, death.late) == (how, late)
    assert time.monotonic() - begun < 15
    if name == "last words":
        assert death.stderr.endswith(" [31mlast words\nand more")
    assert isinstance(replies[0], Done)
    if name != "forged reply":  # which is the call's for once, and the next one is none
        assert replies.of("out") is replies.of("weight", Read) is death
    assert not isinstance(replies.of("out"), Output)
    assert right(frail, 2)
    assert capfd.readouterr() == ("", "")


def test_a_kernel_cannot_answer_for_the_judge(stands):
    """Every function of the package that its process has is replaced, and a forged message is written."""
    stand = stands("""
import numpy as np

def kernel(ids, weight):
    import xref.engine.results, xref.engine.compare, xref.bits
    xref.engine.compare.mismatch = lambda *args: None
    xref.bits.as_bits = lambda array: array
    return weight[ids] * 0
""")
    reply = stand.perform(call(2, 3)).of("out")
    assert not reply.array.any()


def test_threads_that_outlive_a_call_are_no_matter(stands):
    stand = stands(faulty("threading.Thread(target=time.sleep, args=(100,)).start()"))
    assert right(stand, 7)
    assert right(stand, 7)
    begun = time.monotonic()
    stand.close()
    assert time.monotonic() - begun < 5


def test_what_a_kernel_has_started_ends_with_it(stands, tmp_path):
    stand = stands(
        faulty(f"""
        import subprocess
        child = subprocess.Popen(["sleep", "100"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    """)
    )
    assert right(stand, 7)
    pid = int((tmp_path / "pid").read_text())
    stand.close()
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("it runs on")


def test_the_process_is_without_answers_and_this_one_without_the_kernel(stands):
    stand = stands("""
def kernel(ids, weight):
    names = [n for n in sys.modules if n.startswith("xref.")]
    forbidden = ("operators", "judge", "judging", "verifying", "engine.compare", "engine.calls", "engine.findings")
    seen = [n for n in names if n[5:].startswith(forbidden)]
    if seen:
        raise RuntimeError(str(seen))
    return weight[ids]
""")
    assert right(stand, 1)
    assert "kernels" not in sys.modules


# Arrays that are kept


@pytest.fixture
def sent(monkeypatch):
    """Return a list of the messages to stands."""
    messages = []
    original = module.Channel.send
    monkeypatch.setattr(
        module.Channel,
        "send",
        lambda self, message, **how: (messages.append(message), original(self, message, **how))[1],
    )
    return messages


def test_a_table_with_a_key_is_sent_once(stands, sent):
    stand = stands(RIGHT)
    for ids in ((1,), (2,), (3, 4)):
        assert right(stand, *ids, key="table")
    kinds = [[type(step).__name__ for step in each.steps if step.name == "weight"] for each in sent[1:]]
    assert kinds == [["Put", "Read"], ["Reuse", "Read"], ["Reuse", "Read"]]
    stand.forget()
    assert right(stand, 5, key="table")
    assert type(sent[-1].steps[1]).__name__ == "Put"


def test_a_table_that_is_kept_is_sent_again_to_the_next_process(stands):
    stand = stands(faulty("os._exit(1)"))
    assert right(stand, 1, key="table")
    died(stand, 7, key="table")
    assert right(stand, 1, key="table")


def test_the_oldest_of_many_tables_are_given_back(stands, sent):
    stand = stands(RIGHT)
    for n in range(60):
        table = TABLE + np.uint32(n)
        reply = stand.perform(call(3, table=table, key=f"table {n}")).of("out")
        assert np.array_equal(reply.array, table[[3]])
    dropped = [step.name for each in sent[1:] for step in each.steps if isinstance(step, Drop)]
    assert dropped == [f"table {n}" for n in range(36)]


def test_a_table_larger_than_the_memory_costs_its_rows_alone(stands):
    stand = stands(RIGHT)
    rows = np.array([0, 39_999])
    filled = np.arange(2 * 16384, dtype=np.uint32).reshape(2, 16384)
    table = Put(name="weight", array=filled, rows=rows, vocab=40_000, dtype="float32")
    steps = (Put(name="ids", array=rows), table, Run(name="out", verb="forward", arguments=("ids", "weight")),
             Read(name="weight", rows=np.array([39_999, 5])))  # fmt: skip
    replies = stand.perform(Script("float32", steps))
    assert np.array_equal(replies.of("out").array, filled)
    assert np.array_equal(replies.of("weight", Read).array, np.stack([filled[1], np.zeros(16384, np.uint32)]))


def test_large_arrays_go_there_and_back(stands):
    stand = stands(RIGHT)
    table = np.arange(1 << 20, dtype=np.uint32).reshape(1 << 10, 1 << 10)
    ids = np.arange(1023, -1, -1)
    reply = stand.perform(call(*ids.tolist(), table=table)).of("out")
    assert np.array_equal(reply.array, table[ids])


# Time


def test_later_steps_have_less_time_than_the_first(stands, monkeypatch):
    monkeypatch.setattr(module, "_FIRST", 2)
    monkeypatch.setattr(module, "_LEAST_SECONDS", 1.0)
    monkeypatch.setattr(module, "_TIMES_LONGEST", 0)
    stand = stands(faulty("time.sleep(100)"))
    for _ in range(2):
        assert right(stand, 1)
    assert died(stand, 7).how == "no answer within 1 s"


# Targets that cannot be loaded


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("kernel = 3", "an object of type int"),
        ("raise RuntimeError('no driver')", "RuntimeError: no driver while importing it"),
        ("import os\nprint('last')\nsys.stdout.flush()\nos._exit(9)", "exit with code 9 while it was loaded (last)"),
        ("kernel = torch.nn.Embedding(3, 4)", "a module that holds its own parameters and takes one argument"),
    ],
    ids=["no kernel", "raises", "exits", "a module with its table"],
)  # fmt: skip
def test_a_target_that_cannot_be_loaded_is_a_usage_error(stands, body, says):
    with pytest.raises(errors.UsageError) as caught:
        stands(body)
    assert says in str(caught.value)
    assert caught.value.expected
    assert not caught.value.call


def test_a_process_that_can_no_longer_be_started_is_a_death(stands, tmp_path):
    stand = stands(faulty("os.unlink(__file__); os._exit(1)"))
    died(stand, 7)
    replies = stand.perform(call(1))
    assert replies.death.how.startswith("no other process after that (")
    assert "no such file" in replies.death.how


# Ctrl-C


def test_ctrl_c_ends_the_process_that_was_at_work(tmp_path):
    target = written(tmp_path, faulty(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"))
    script = f"""
import numpy as np
from xref.engine.stand import Stand
from xref.engine.steps import Put, Run, Script
stand = Stand({target!r}, verbs=("forward",), trial={{}})
steps = (Put(name="ids", array=np.array([7])), Put(name="w", array=np.zeros((9, 1), np.uint32), dtype="float32"),
         Run(name="out", verb="forward", arguments=("ids", "w")))
stand.perform(Script("float32", steps))
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    for _ in range(600):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.1)
    pid = int((tmp_path / "pid").read_text())
    parent.send_signal(signal.SIGINT)
    _, stderr = parent.communicate(timeout=20)
    assert b"KeyboardInterrupt" in stderr
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.jax
def test_a_kernel_of_jax_is_judged_whatever_it_sets(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(
        "import jax\njax.config.update('jax_debug_nans', True)\ndef kernel(ids, weight):\n    return weight[ids]"
    )
    table = TABLE.copy()
    table[3] = 0x7FC00001
    with Stand(f"{path}:kernel", verbs=("forward",), trial={}) as stand:
        assert stand.traits.framework == "jax"
        reply = stand.perform(call(3, 1, table=table)).of("out")
        assert np.array_equal(reply.array, table[[3, 1]])
