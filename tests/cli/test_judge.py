"""`xref judge`: from a kernel's file to exit code, output and files."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from support.commands import MAIN, names_in, stopped, xref
from support.judge_reports import report_of
from support.kernels import RIGHT, WRONG

import xref as package
from xref import operators
from xref.engine import stand
from xref.engine.outcomes import Outcome
from xref.judging.options import Options
from xref.judging.report import JudgeReport

needs_torch = pytest.mark.torch
SMOKE = ("--framework", "torch", "--tier", "smoke", "--dtype", "bfloat16")
CHECKS = [check.id for check in operators.find("embedding").checks]

ONE_CALL = '{"call":"forward","check":"EMB-1","dtype":"bfloat16","vocab":3,"hidden":2,"ids":[1],"shape":[1]}'
OTHER_DTYPE = ONE_CALL.replace("bfloat16", "float9")
OTHER_TAG = ONE_CALL.replace('"forward"', '"sideward"')


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Let children find the package that is tested, from a folder without a `pyproject.toml`."""
    root = str(Path(package.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def runs(monkeypatch):
    """Make a run of `xref judge` return a report at once, or raise; what it was asked for is kept."""
    asked = []

    def make(result):
        def judged(operator, target, options):
            asked.append(options)
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr("xref.cli.judge._judged", judged)
        return asked

    return make


def kernel_of(body, folder=None):
    path = (folder or Path()) / "k.py"
    path.write_text(body)
    return f"{path}:kernel"


# In a process of its own, as it is used


class Finished(NamedTuple):
    code: int
    stdout: str
    stderr: str


def finished(*args, cwd=None):
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@functools.cache
def judged(name, *options):
    """Judge a kernel once for all tests that look at it, in the folder of the first."""
    folder = Path.cwd()
    kernel_of({"right": RIGHT, "wrong": WRONG}[name])
    files = ("--json", "out.json", "--junit", "out.xml", "--markdown", "out.md")
    (folder / "out.md").write_text("before\n")
    done = finished("judge", "k.py:kernel", *SMOKE, *files, *options)
    return done, {path.name: path.read_text() for path in folder.glob("out.*")}


def lines_of(check, stdout):
    """Return what is told of a failed check."""
    lines = stdout.splitlines()
    start, *_ = own = [n for n, line in enumerate(lines) if re.match(rf"{re.escape(check)}( \(graded\))?: ", line)]
    rest = [n for n, line in enumerate(lines) if n > start and n not in own and not line.startswith("  ")]
    return lines[start : rest[0]]


def again(check, stdout):
    [line] = [line for line in lines_of(check, stdout) if line.startswith("  again: xref ")]
    return shlex.split(line.removeprefix("  again: xref "))


@needs_torch
def test_a_right_kernel_passes_with_exit_0_and_says_on_what():
    done, files = judged("right")
    assert (done.code, done.stderr) == (0, "")
    assert re.search(
        r"^k.py:kernel passes: torch \S+ on cpu \(.*\), smoke tier, [\d,]{8,} elements compared; 4 checks were skipped,"
        r" for the reasons above\.$",
        done.stdout.splitlines()[-1],
    )
    report = msgspec.json.decode(files["out.json"], type=JudgeReport)
    assert report.ok
    assert [verdict.check for verdict in report.verdicts] == CHECKS
    assert {v.check: v.outcome for v in report.verdicts if v.outcome != "pass"} == {
        "EMB-2": "skip",
        "EMB-7/mode": "skip",
        "EMB-4/traced": "skip",
        "EMB-12/strided": "skip",
        "EMB-10/permuted": "fail",
        "EMB-10/split": "fail",
    }
    assert files["out.md"].startswith("before\n### ✅ k.py:kernel passes: ")
    suite = ET.fromstring(files["out.xml"])
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": str(len(CHECKS)),
        "failures": "0",
        "errors": "0",
        "skipped": "6",
    }


@needs_torch
def test_a_wrong_kernel_is_exit_1_with_the_element_the_smallest_call_and_what_it_looks_like():
    done, files = judged("wrong")
    assert done.code == 1
    first, *rest = lines_of("EMB-1", done.stdout)
    assert re.match(
        r"EMB-1: out\[\d+, \d+\]: got 0x0000, expected 0x\w{4} .*elements differ\) \[k.py:kernel.forward", first
    )
    assert any(re.match(r"  smallest: k.py:kernel.forward bfloat16 1x1 \w+ .* 1 int64$", line) for line in rest)
    assert "  consistent with padding-id-zeroed: the row of id 0 came back as zeros" in rest
    assert "  consistent with ids-clamped: id 300 gave row 299, the last one" in lines_of("EMB-4", done.stdout)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("k.py:kernel does not pass: torch ")
    assert re.search(r", smoke tier: EMB-1, .*EMB-8, EMB-11, EMB-4\.$", last)
    assert "**EMB-1**" in files["out.md"]
    assert f"again: xref {shlex.join(again('EMB-1', done.stdout))}\n" in files["out.md"]
    failed = [case.get("name") for case in ET.fromstring(files["out.xml"]) if case.find("failure") is not None]
    assert [check for check in failed if not check.startswith("EMB-7/")] == ["EMB-1", "EMB-8", "EMB-11", "EMB-4"]


@needs_torch
def test_what_a_kernel_prints_is_not_among_the_report():
    done, _ = judged("wrong")
    assert "loaded" not in done.stdout + done.stderr
    assert "a beep" not in done.stdout + done.stderr


@needs_torch
@pytest.mark.parametrize("check", ["EMB-1", "EMB-8", "EMB-10/split", "EMB-4"])
def test_the_command_of_a_failure_makes_that_call_alone_and_it_fails_again(check, tmp_path):
    command = again(check, judged("wrong")[0].stdout)
    kernel_of(WRONG)
    done = finished(*command)
    assert done.code == 1
    assert again(check, done.stdout)[:-1] == command[:-1]
    assert done.stdout.splitlines()[-1].endswith(f": {check}.")
    assert " skip " not in done.stdout
    assert "(graded)" not in done.stdout


@needs_torch
def test_the_command_of_a_failure_passes_once_the_kernel_is_mended():
    command = again("EMB-1", judged("wrong")[0].stdout)
    kernel_of(RIGHT)
    done = finished(*command)
    assert done.code == 0
    assert "k.py:kernel passes: " in done.stdout


@needs_torch
def test_what_is_expected_to_fail_is_strict_both_ways():
    kernel_of(RIGHT.replace("raise TypeError", "token_ids = token_ids.real"))  # takes what is no integer
    Path("pyproject.toml").write_text('[tool.xref.expect-fail]\n"EMB-10/split" = "known"\n')
    done = finished("judge", "k.py:kernel", *SMOKE, "--expect-fail", "EMB-4= takes all ")
    assert done.code == 0
    assert re.search(r" EMB-4 +takes all +[\d,]+ +[\d,]+ +xfail *\n", done.stdout)
    assert re.search(r" EMB-10/split +known +[\d,]+ +[\d,]+ +xfail\b", done.stdout)
    kernel_of(RIGHT)
    done = finished("judge", "k.py:kernel", *SMOKE, "--expect-fail", "EMB-4= takes all ")
    assert done.code == 1
    assert "EMB-4: passed, expected to fail: takes all\n" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(", smoke tier: EMB-4.")


@needs_torch
def test_a_kernel_that_crashes_has_a_verdict():
    kernel_of("import ctypes\n\n\ndef kernel(token_ids, weight):\n    return ctypes.string_at(0)\n")
    done = finished("judge", "k.py:kernel", *SMOKE)
    assert done.code == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("k.py:kernel does not pass: ")
    assert ": EMB-1 (aborts), EMB-3, " in last
    assert "EMB-1: process: got death by SIGSEGV, expected a result [k.py:kernel.forward" in done.stdout
    assert re.search(r"^EMB-4: not made: the process ended \d+ times before$", done.stdout, re.MULTILINE)
    assert "Traceback" not in done.stdout + done.stderr


@needs_torch
def test_a_kernel_that_crashes_for_bad_ids_aborts_there_alone():
    kernel_of(RIGHT.replace("raise IndexError", "import os; os.abort()"))
    done = finished("judge", "k.py:kernel", *SMOKE)
    assert done.code == 1
    assert done.stdout.splitlines()[-1].endswith(", smoke tier: EMB-4 (aborts).")
    assert "EMB-4: process: got death by SIGABRT, expected an error [k.py:kernel.forward, " in done.stdout
    kernel_of(RIGHT.replace("raise IndexError", "import os; os.abort()"))
    assert finished("judge", "k.py:kernel", *SMOKE, "--expect-fail", "EMB-4=known").code == 0


@needs_torch
def test_a_kernel_that_never_ends_has_a_verdict(monkeypatch):
    monkeypatch.setattr(stand, "_FIRST_SECONDS", 3.0)
    result = xref("judge", kernel_of("def kernel(token_ids, weight):\n    while True:\n        pass\n"),
                  "--framework", "torch", "--only", ONE_CALL)  # fmt: skip
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].endswith(": EMB-1.")
    assert "EMB-1: process: got no answer within 3 s, expected a result [" in result.stdout


@needs_torch
def test_an_exception_in_a_kernel_is_told_with_file_and_line():
    kernel_of(RIGHT + "\n\ndef broken(token_ids, weight):\n    return weight[token_ids.unknown]\n")
    result = xref("judge", "k.py:broken", "--framework", "torch", "--only", ONE_CALL)
    line = len(RIGHT.splitlines()) + 4
    told = (
        f"EMB-1: out: got AttributeError: 'Tensor' object has no attribute 'unknown' at k.py:{line}, expected a result"
    )
    assert told in result.stdout


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import ctypes\nctypes.string_at(0)\n", "k.py:kernel: got death by SIGSEGV while it was loaded"),
        ("import os\nos._exit(7)\n", "k.py:kernel: got exit with code 7 while it was loaded, expected it to load"),
        ("raise SystemExit\n", "k.py: got SystemExit while importing it, expected it to import"),
        ("kernel = 3\n", "k.py:kernel: got an object of type int, expected a callable or an object with forward"),
    ],
    ids=["crash", "exit", "SystemExit", "no kernel"],
)
def test_a_kernel_that_cannot_be_loaded_is_exit_2(body, told):
    kernel_of(body)
    line = stopped(2, "judge", "k.py:kernel")
    assert line.startswith(told)
    assert line.endswith(" [judge]")


def started(*args):
    """Start the command in a Python of its own; its kernel has written the file `pid` when this returns."""
    running = subprocess.Popen(
        [sys.executable, "-c", MAIN, "judge", "k.py:kernel", "--json", "out.json", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline, pid = time.monotonic() + 100, ""
    while not pid.endswith(".") and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
        pid = Path("pid").read_text() if Path("pid").exists() else ""
    return running, int(pid.rstrip("."))


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_what_ends_the_command_while_it_loads_ends_the_kernel_too(number):
    kernel_of("import os, pathlib, time\npathlib.Path('pid').write_text(f'{os.getpid()}.')\ntime.sleep(100)\n")
    running, pid = started()
    os.killpg(running.pid, number)  # as a terminal sends it: to all
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout, stderr) == (130, "", "xref: interrupted: nothing was judged\n")
    assert gone(pid)
    assert names_in(Path()) == ["k.py", "pid"]


SLOW = """
import os, pathlib, time
calls = []


def slow(token_ids, weight):
    calls.append(1)
    if len(calls) == 80:
        pathlib.Path("pid").write_text(f"{os.getpid()}.")
        time.sleep(100)
    return kernel_of_a_sort(token_ids, weight)


kernel_of_a_sort, kernel = kernel, slow
"""


@needs_torch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_run_writes_what_it_has(number):
    kernel_of(WRONG + SLOW)
    running, pid = started(*SMOKE, "--junit", "out.xml", "--markdown", "out.md")
    os.kill(running.pid, number)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stderr) == (130, "")
    assert gone(pid)
    report = msgspec.json.decode(Path("out.json").read_text(), type=JudgeReport)
    assert report.interrupted
    assert not report.ok
    found = {verdict.check: verdict for verdict in report.verdicts}
    assert found["EMB-1"].outcome is Outcome.FAIL
    assert "EMB-4" not in found
    assert stdout.splitlines()[-1].endswith(", interrupted.")
    assert ET.fromstring(Path("out.xml").read_text()).get("errors") == "1"
    assert ", interrupted.\n" in Path("out.md").read_text()


# Usage


@needs_torch
@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["no.py:kernel"], "no.py: got no such file, expected a Python file"),
        (["k.py"], "target: got 'k.py', expected pkg.mod:name or path/to/file.py:name"),
        (["k.py:kernal"], "k.py: got no name 'kernal', expected one of kernel"),
        (["no_such_module:kernel"], "no_such_module: got no module named 'no_such_module', expected a module"),
        (["k.py:kernel", "--device", "tpu"], "--device: got tpu, expected a device that torch has here: cpu"),
        (["k.py:kernel", "--require", "EMB-13"], "--require: got 'EMB-13', expected a clause or one of EMB-1, EMB-2,"),
        (["k.py:kernel", "--expect-fail", "EMB-7/x=y"], "--expect-fail: got 'EMB-7/x', expected a clause or one of"),
        (["k.py:kernel", "--expect-fail", "EMB-7"], "--expect-fail: got 'EMB-7', expected CHECK=\"reason\""),
        (["k.py:kernel", "--expect-fail", "EMB-7= "], "--expect-fail: got 'EMB-7= ', expected CHECK=\"reason\""),
        (["k.py:kernel", "--only", "{"], "--only: got '{' ("),
        (["k.py:kernel", "--only", "{}"], "--only: got '{}' (Object missing required field"),
        (["k.py:kernel", "--only", OTHER_DTYPE], f"--only: got {OTHER_DTYPE!r} ("),
        (["k.py:kernel", "--only", OTHER_TAG], f"--only: got {OTHER_TAG!r} ("),
        (["k.py:kernel", "--out-of-range", "clip"], "--out-of-range: got 'clip', expected one of raise, poison, unch"),
        (["k.py:kernel", "--operator", "row"], "operator: got 'row', expected one of embedding"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_what_is_asked_for_and_is_not_there_is_exit_2(args, line):
    kernel_of(RIGHT)
    told = stopped(2, "judge", *args, "--framework", "torch")
    assert told.startswith(line)
    assert told.endswith(" [judge]")


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("k.py:kernel", "--framework", "numpy"),
        ("k.py:kernel", "--device", "auto"),
        ("k.py:kernel", "--tier", "none"),
        ("k.py:kernel", "--dtype", "int8"),
        ("k.py:kernel", "--accumulate", "int8"),
        ("k.py:kernel", "--no-such-option"),
    ],
    ids=" ".join,
)
def test_an_option_that_does_not_exist_is_exit_2(args, runs):
    runs(AssertionError("ran"))
    result = xref("judge", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: xref judge" in result.stderr


def test_a_project_without_settings_has_none(runs):
    for text in ("", "[project]\nname = 'x'\n", "tool = 3\n"):
        asked = runs(report_of())
        Path("pyproject.toml").write_text(text)
        assert xref("judge", "k.py:kernel").exit_code == 0
        assert asked[-1] == Options()


def test_options_add_to_the_settings_of_the_project(runs):
    asked = runs(report_of())
    Path("pyproject.toml").write_text(
        '[tool.xref]\nrequire = ["EMB-2"]\nout-of-range = "poison"\nexpect-fail = { EMB-8 = "one", EMB-9 = "two" }\n'
    )
    xref("judge", "k.py:kernel", "--require", "EMB-10", "--expect-fail", "EMB-9=three", "--dtype", "float32")
    xref("judge", "k.py:kernel", "--out-of-range", "raise", "--accumulate", "bfloat16", "--device", "cuda")
    first, second = asked
    assert first.require == ("EMB-2", *(check for check in CHECKS if check.startswith("EMB-10/")))
    assert (first.out_of_range, first.dtype) == ("poison", ("float32",))
    assert first.expect_fail == {"EMB-8": "one", "EMB-9": "three"}
    assert (second.out_of_range, second.accumulate, second.device) == ("raise", "bfloat16", "cuda")


# Verdicts, exit codes and files, of reports made by hand


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (report_of(), 0),
        (report_of(Outcome.FAIL), 1),
        (report_of(Outcome.FAIL, required=False), 0),
        (report_of(Outcome.XFAIL), 0),
        (report_of(Outcome.XPASS), 1),
        (report_of(Outcome.XPASS, required=False), 1),
        (report_of(Outcome.ERROR, 1), 1),
        (report_of(Outcome.SKIP, 1), 1),
        (report_of(Outcome.SKIP, 1, required=False), 0),
        (report_of(Outcome.ABORTS), 1),
        (report_of(Outcome.ERROR, 0, broken={"EMB-7/padding": "not made"}), 1),
        (report_of(interrupted=True), 130),
        (report_of(Outcome.FAIL, 0, failed=2), 1),
        (report_of(Outcome.SKIP, 0, required=False), 3),
        (report_of(elements=0), 3),
    ],
)
def test_the_exit_code_follows_from_the_report(result, code, runs):
    runs(result)
    assert xref("judge", "k.py:kernel").exit_code == code
    assert result.ok == (code == 0)


def test_interrupted_is_exit_130(runs):
    runs(KeyboardInterrupt())
    assert stopped(130, "judge", "k.py:kernel", "--json", "out.json") == "interrupted: nothing was judged"
    assert names_in(Path()) == []


def test_a_required_check_that_was_skipped_or_compared_nothing_is_told_of(runs):
    runs(report_of(Outcome.SKIP, 1, reason="torch has none"))
    result = xref("judge", "k.py:kernel", "--junit", "out.xml", "--markdown", "out.md")
    assert "EMB-7/padding: required, and skipped: torch has none\n" in result.stdout
    assert ET.fromstring(Path("out.xml").read_text())[0][0].tag == "failure"
    assert "torch has none\n```" in Path("out.md").read_text()
    runs(report_of(Outcome.ERROR, 0))
    assert "EMB-7/padding: nothing was compared\n" in xref("judge", "k.py:kernel").stdout


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({}, ""),
        ({"accumulate": "bfloat16"}, " --accumulate bfloat16"),
        ({"out_of_range": "poison"}, " --out-of-range poison"),
    ],
)
def test_the_command_of_a_failure_has_the_options_that_it_depends_on(more, options, runs):
    runs(report_of(Outcome.FAIL, problems=["out: wrong [k]"], rerun='{"shape":[1]}', explanations=["f: g"], **more))
    result = xref("judge", "my dir/k.py:kernel")
    assert lines_of("EMB-7/padding", result.stdout) == [
        "EMB-7/padding: out: wrong [k]",
        f"  again: xref judge 'my dir/k.py:kernel' --framework torch --device cpu{options} --only '{{\"shape\":[1]}}'",
        "  consistent with f: g",
    ]


def test_a_summary_is_added_to_and_the_other_files_are_replaced(runs):
    runs(report_of())
    for path in ("out.json", "out.xml", "out.md"):
        Path(path).write_text("before\n")
    assert xref("judge", "k", "--json", "out.json", "--junit", "out.xml", "--markdown", "out.md").exit_code == 0
    assert Path("out.json").read_text().startswith("{")
    assert Path("out.xml").read_text().startswith("<?xml")
    assert Path("out.md").read_text().startswith("before\n### ✅ k.py:kernel passes: ")
    assert xref("judge", "k", "--markdown", "new.md").exit_code == 0
    assert Path("new.md").read_text() == Path("out.md").read_text().removeprefix("before\n")
    assert names_in(Path()) == ["new.md", "out.json", "out.md", "out.xml"]


@pytest.mark.parametrize("option", ["--json", "--junit", "--markdown"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(option, runs):
    runs(AssertionError("ran"))
    Path("there").mkdir()
    assert stopped(2, "judge", "k", option, "there") == f"{option}: got there, a folder, expected a file [judge]"
    expected = "a file in a folder that can be written"
    assert stopped(2, "judge", "k", option, "no/out") == f"{option}: got no/out, expected {expected} [judge]"


def test_a_summary_that_cannot_be_added_to_ends_in_one_line_after_the_report(runs):
    runs(report_of())
    result = xref("judge", "k", "--markdown", "/dev/full")
    expected = "xref: --markdown: got /dev/full, which cannot be written (No space left on device), expected a file"
    assert (result.exit_code, result.stderr) == (2, f"{expected} [judge]\n")
    assert "k.py:kernel passes: " in result.stdout


def test_a_report_never_replaces_the_kernel_or_another_report(tmp_path):
    kernel = tmp_path / "k.py"
    kernel.write_text(RIGHT)
    for options, said in [
        (("--json", kernel), f"--json: got {kernel}, an input of this run, expected another file [judge]"),
        (("--markdown", kernel), f"--markdown: got {kernel}, an input of this run, expected another file [judge]"),
        (("--json", "a", "--junit", "a"), "--junit: got a, an input of this run, expected another file [judge]"),
    ]:
        assert stopped(2, "judge", "k.py:kernel", *SMOKE, *options) == said
    assert kernel.read_text() == RIGHT
