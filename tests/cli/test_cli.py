"""The command line: what it prints where, and its exit codes: 0, 1, 2, 3 and 130, each with its meaning."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from support.checkpoints import checkpoint
from support.commands import finished, into_a_full_disk, names_in, process, stopped, xref
from support.few import few as few_of_all

from xref import __version__, errors, operators
from xref.cli import files
from xref.cli.files import OutputFile
from xref.cli.terminal import console
from xref.engine import frameworks
from xref.engine.outcomes import Outcome
from xref.verifying.report import Report, Verdict, show

SMALL = ("--tier", "smoke", "--dtype", "float8_e5m2")
SMALL_DIGEST = "d8512e2132748217d69d24fdbc6118435ad9add75bd156163919c7841c6e7d2e"
FEW_DIGEST = "2591f97e3b375d423d4c71889a2640ec3c0b72377f746e4c7e6eb34b0746dc16"  # of the three cases of `few`
needs_torch = pytest.mark.torch
EACH = [pytest.param("torch", marks=needs_torch), pytest.param("jax", marks=pytest.mark.jax)]


def report_of(outcome=Outcome.PASS, elements=1, problems=()):
    verdict = Verdict(
        clause="EMB-1",
        title="gather",
        framework="torch",
        device="cpu",
        against="exact",
        cases=1,
        elements=elements,
        outcome=outcome,
        problems=list(problems),
    )
    return Report(
        xref=__version__,
        operator="embedding",
        contract_version=1,
        subject="smoke tier",
        environment={},
        verdicts=[verdict],
        digest="00ff",
        seconds=0.1,
        statement="Said [so].",
    )


@pytest.fixture
def runs(monkeypatch):
    """Make a run of `xref verify` return a report at once, or raise."""

    def make(result):
        def run(**how):
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr("xref.cli.verify.run_verify", run)

    return make


@pytest.fixture
def few(monkeypatch):
    """Three cases without conditions, on the CPU."""
    chosen = few_of_all()
    monkeypatch.setattr(operators, "find", lambda name: chosen)
    monkeypatch.setattr(frameworks, "devices", lambda framework, call: ("cpu",))


# Before any command


def test_the_version_is_told():
    result = xref("--version")
    assert (result.exit_code, result.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize("args", [(), ("--help",)], ids=["nothing", "help"])
def test_help_names_the_commands(args):
    result = xref(*args)
    assert result.exit_code == (0 if args else 2)
    assert "verify" in result.output
    assert "doctor" in result.output


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--tier", "quick", "'smoke', 'standard', 'exhaustive'"),
        ("--framework", "tf", "'torch', 'jax'"),
        ("--device", "gpu", "'auto', 'cpu', 'cuda', 'tpu'"),
        ("--dtype", "int8", "'float64', 'float32', 'bfloat16', 'float16', 'float8_e4m3fn', 'float8_e5m2'"),
    ],
)
def test_an_unknown_choice_is_refused_with_those_there_are(option, value, allowed):
    result = xref("verify", option, value)
    assert result.exit_code == 2
    told = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stderr).split())
    assert f"Invalid value for '{option}'" in told
    assert f"'{value}' is not one of {allowed}." in told


@pytest.mark.parametrize("args", [("judge-me",), ("verify", "--fast"), ("verify", "a"), ("verify", "--json")])
def test_what_there_is_not_is_refused(args):
    assert xref(*args).exit_code == 2


# Exit codes and output


@needs_torch
@pytest.mark.jax
def test_confirmed_is_exit_0_with_a_table_a_statement_and_the_digest(monkeypatch):
    monkeypatch.setattr(frameworks, "devices", lambda framework, call: ("cpu",))
    result = xref("verify", *SMALL)
    assert result.exit_code == 0
    assert result.stderr == ""
    *table, statement, digest = result.stdout.splitlines()
    versions = [f"{name} {frameworks.load(name, 'tests').arrays.version()} on cpu" for name in frameworks.FRAMEWORKS]
    assert statement == (
        f"Confirmed (smoke tier): {' and '.join(versions)}, each equal to the exact answer and to the other and to the"
        " digests pinned in the package, bit for bit, on 319,696 output elements. Not compared: EMB-8, EMB-9,"
        " EMB-11."
    )
    assert digest == f"Digest of all outputs: {SMALL_DIGEST}"
    cells = [re.split(r" {2,}", line.strip()) for line in table if line.strip(" ─")]
    assert cells[0] == ["clause", "framework", "device", "compared with", "cases", "elements", "verdict"]
    assert cells[1] == ["fixtures inputs as pinned", "numpy", "cpu", "pinned digests", "5", "16,873,900", "pass"]
    assert ["EMB-1 gather", "jax", "cpu", "torch/cpu", "5", "79,924", "pass"] in cells
    assert {row[-1] for row in cells[1:]} == {"pass"}


@pytest.mark.parametrize("name", EACH)
def test_one_framework_alone_says_that_no_second_confirmed_it(name, few):
    result = xref("verify", "--framework", name, *SMALL)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2].endswith(
        ", each equal to the exact answer and to the digests pinned in the package, bit for bit, on 17,028 output"
        " elements. Not compared: EMB-4, EMB-7, EMB-8, EMB-9, EMB-10, EMB-11, EMB-12."
        " No second framework confirmed it in this run."
    )
    assert result.stdout.splitlines()[-1] == f"Digest of all outputs: {FEW_DIGEST}"


@needs_torch
def test_a_wrong_golden_is_exit_1_with_the_element_its_bits_and_those_expected(monkeypatch, few):
    arrays = frameworks.load("torch", "tests").arrays
    honest = arrays.golden.forward

    def wrong(ids, table):
        out = honest(ids, table)
        arrays.bits_of(out)[..., 0] ^= 1
        return out

    monkeypatch.setattr(arrays.golden, "forward", wrong)
    result = xref("verify", "--framework", "torch", *SMALL)
    assert (result.exit_code, result.stderr) == (1, "")
    assert (
        "EMB-1: out[0, 0]: got 0x95, expected 0x94 (1 ulp; 257 of 8481 elements differ)"
        " [torch on cpu, forward float8_e5m2 300x33 tagged zipf 257 int64 2 times]\n"
    ) in result.stdout
    assert "Not confirmed: 1 of 6 verdicts did not pass: EMB-1 (torch/cpu against exact).\n" in result.stdout


@needs_torch
def test_a_golden_that_raises_is_exit_1_with_one_line_a_problem(monkeypatch, few):
    def broken(ids, table):
        raise RuntimeError("no kernel\nand a page of advice")

    line = broken.__code__.co_firstlineno + 1
    monkeypatch.setattr(frameworks.load("torch", "tests").arrays.golden, "forward_fp32", broken)
    result = xref("verify", "--framework", "torch", *SMALL)
    assert result.exit_code == 1
    assert (
        f"EMB-2: out: got RuntimeError: no kernel at test_cli.py:{line}, expected a result"
        " [torch on cpu, forward_fp32 float8_e5m2 300x33 tagged zipf 257 int64 2 times]\n"
    ) in result.stdout
    assert "advice" not in result.stdout
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (report_of(), 0),
        (report_of(Outcome.FAIL), 1),
        (report_of(Outcome.ERROR), 1),
        (report_of(Outcome.SKIP), 1),
        (report_of(Outcome.ERROR, elements=0), 3),
        (report_of(elements=0), 3),
    ],
    ids=["passed", "failed", "error", "skipped", "nothing compared", "nothing compared and called a pass"],
)
def test_the_exit_code_follows_from_the_report(result, code, runs):
    runs(result)
    assert xref("verify").exit_code == code


def test_only_the_first_problems_are_shown_and_the_rest_counted(runs):
    runs(report_of(Outcome.FAIL, problems=[f"problem {n} [c]" for n in range(7)]))
    shown = [line for line in xref("verify").stdout.splitlines() if line.startswith("EMB-1: ")]
    assert shown == ["EMB-1: problem 0 [c]", "EMB-1: problem 1 [c]", "EMB-1: problem 2 [c]", "EMB-1: and 4 more"]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_narrow_terminal_cuts_no_number_and_no_verdict(width):
    given = report_of(Outcome.FAIL, elements=6_745_080_492)
    console = Console(file=io.StringIO(), width=width)
    show(given, console)
    shown = console.file.getvalue()
    assert "6,745,080,492   fail" in shown
    assert "…" not in shown


def test_what_stands_in_brackets_is_shown(runs):
    runs(report_of())
    assert "Said [so].\n" in xref("verify").stdout


@needs_torch
def test_nothing_compared_is_exit_3(monkeypatch, few):
    none = dataclasses.replace(operators.find("embedding"), checks=())
    monkeypatch.setattr(operators, "find", lambda name: none)
    assert stopped(3, "verify", "--framework", "torch", "--device", "cpu") == (
        "cases: got none, expected one or more in the standard tier [verify]"
    )


def test_interrupted_is_exit_130(runs):
    runs(KeyboardInterrupt())
    assert stopped(130, "verify") == "interrupted: nothing was confirmed"


@pytest.mark.parametrize("missing", frameworks.FRAMEWORKS)
def test_a_missing_framework_is_exit_2_with_the_line_that_installs_it(missing, monkeypatch):
    monkeypatch.setattr(frameworks, "installed", lambda name: name != missing)
    assert stopped(2, "verify") == (
        f"{missing}: got not installed, expected it to be: pip install 'xref[{missing}]' [verify]"
    )


@needs_torch
def test_an_absent_device_is_exit_2(few):
    assert stopped(2, "verify", "--framework", "torch", "--device", "cuda") == (
        "--device: got cuda, expected a device that torch has here: cpu [verify]"
    )


def test_an_unknown_operator_is_exit_2():
    known = ", ".join(operators.names())
    assert stopped(2, "verify", "--operator", "sum") == f"operator: got 'sum', expected one of {known} [verify]"


@pytest.mark.parametrize("option", ["--tensor", "--ids"])
def test_a_tensor_or_ids_without_weights_are_exit_2(option):
    assert stopped(2, "verify", option, "w") == (
        "--tensor or --ids: got no --weights, expected a safetensors file with them [verify]"
    )


def test_a_dtype_with_weights_is_exit_2():
    assert stopped(2, "verify", "--weights", "w", "--dtype", "float16") == (
        "--dtype: got float16, expected the file's own dtype, with --weights [verify]"
    )


@needs_torch
@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--weights", "no[t].safetensors"), "no[t].safetensors: got no such file, expected a safetensors file"),
        (("--weights", "."), ".: got a folder, expected a safetensors file"),
        (("--weights", "cut.safetensors"), "cut.safetensors: got a file that does not open (Error while deserializing"),
        (("--weights", "m.safetensors"), "--tensor: got none, expected one of a, b"),
        (("--weights", "m.safetensors", "--tensor", "c"), "--tensor: got c, expected one of a, b"),
        (("--weights", "m.safetensors", "--tensor", "norm"), "norm: got shape (4,), expected shape [V, H]"),
        (("--weights", "m.safetensors", "--tensor", "ids"), "ids: got dtype I64, expected one of F64, F32, BF16, F16,"),
        (
            ("--weights", "m.safetensors", "--tensor", "a", "--ids", "ids.txt"),
            "ids.txt: got 1 of 3 ids out of range, the first 7, expected 0 <= id < V=7",
        ),
        (
            ("--weights", "m.safetensors", "--tensor", "a", "--ids", "words.txt"),
            "words.txt, line 2: got 'seven', expected integers, apart by white space or commas",
        ),
        (
            ("--weights", "m.safetensors", "--tensor", "a", "--ids", "floats.npy"),
            "floats.npy: got dtype float64, expected an integer dtype",
        ),
    ],
    ids=["no file", "folder", "cut", "no name", "name", "1-D", "integers", "out of range", "word", "floats"],
)
def test_a_checkpoint_that_is_not_right_is_exit_2(args, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = checkpoint(
        tmp_path / "m.safetensors", a=("F32", (7, 3)), b=("F16", (2, 2)), norm=("F32", (4,)), ids=("I64", (2, 2))
    )
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:-1])
    (tmp_path / "ids.txt").write_text("0 6\n7")
    (tmp_path / "words.txt").write_text("0\nseven")
    np.save(tmp_path / "floats.npy", np.zeros(3))
    told = stopped(2, "verify", "--framework", "torch", "--device", "cpu", *args)
    assert told.startswith(line)
    assert told.endswith(" [verify --weights]")


# The report's file


def test_the_file_holds_the_report(runs, tmp_path):
    given = report_of(Outcome.FAIL, problems=["wrong [c]"])
    runs(given)
    assert xref("verify", "--json", tmp_path / "out.json").exit_code == 1
    text = (tmp_path / "out.json").read_text()
    assert text.endswith("}\n")
    assert msgspec.json.decode(text, type=Report) == given
    assert names_in(tmp_path) == ["out.json"]


def test_the_file_is_made_as_any_other_would_be(runs, tmp_path):
    runs(report_of())
    before = os.umask(0o027)
    try:
        xref("verify", "--json", tmp_path / "out.json")
    finally:
        after = os.umask(before)
    assert after == 0o027
    assert (tmp_path / "out.json").stat().st_mode & 0o777 == 0o640


def test_a_link_leads_to_the_file_that_is_written(runs, tmp_path):
    runs(report_of())
    (tmp_path / "there").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "there" / "out.json")
    assert xref("verify", "--json", tmp_path / "link.json").exit_code == 0
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "there" / "out.json").read_text().startswith("{")


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("there", "--json: got there, a folder, expected a file [verify]"),
        ("nowhere/out.json", "--json: got nowhere/out.json, expected a file in a folder that can be written [verify]"),
        ("file/out.json", "--json: got file/out.json, expected a file in a folder that can be written [verify]"),
        (os.devnull, f"--json: got {os.devnull}, a device or pipe, expected a file [verify]"),
    ],
    ids=["folder", "in no folder", "in a file", "device"],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run(target, line, runs, tmp_path, monkeypatch):
    runs(AssertionError("ran"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("kept")
    assert stopped(2, "verify", "--json", target) == line
    assert names_in(tmp_path) == ["file", "there"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"]
)
def test_a_write_that_fails_leaves_what_was_there_and_no_more(failure, runs, tmp_path, monkeypatch):
    runs(report_of())
    (tmp_path / "out.json").write_text("before")

    def fail(self, target):
        raise failure

    monkeypatch.setattr(files.Path, "replace", fail)
    result = xref("verify", "--json", tmp_path / "out.json")
    assert names_in(tmp_path) == ["out.json"]
    assert (tmp_path / "out.json").read_text() == "before"
    assert "Said [so].\n" in result.stdout  # the run was not in vain
    if isinstance(failure, OSError):
        got = f"{tmp_path / 'out.json'}, which cannot be written (No space left on device)"
        assert (result.exit_code, result.stderr) == (2, f"xref: --json: got {got}, expected a file [verify]\n")
    else:
        assert (result.exit_code, result.stderr) == (130, "xref: interrupted: nothing was confirmed\n")


def test_a_run_that_stops_leaves_no_file(runs, tmp_path):
    runs(errors.UsageError("no"))
    assert stopped(2, "verify", "--json", tmp_path / "out.json") == "no"
    assert names_in(tmp_path) == []


# In a process of its own

ALONE = """
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
"""
FEW = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.few import few
from xref import operators
chosen = few()
operators.find = lambda name: chosen
"""


@pytest.mark.parametrize("missing", ["torch", pytest.param("jax", marks=needs_torch)])  # the first missing one is told
def test_a_process_without_a_framework_confirms_nothing(missing):
    assert finished(ALONE.format(missing=missing), "verify") == (
        2,
        "",
        f"xref: {missing}: got not installed, expected it to be: pip install 'xref[{missing}]' [verify]\n",
    )


@pytest.mark.parametrize("name", EACH)
def test_a_machine_with_one_framework_gets_the_digest_of_one_with_both(name):
    [missing] = set(frameworks.FRAMEWORKS) - {name}
    code, stdout, stderr = finished(
        ALONE.format(missing=missing) + FEW, "verify", "--framework", name, "--device", "cpu", *SMALL
    )
    assert (code, stderr) == (0, "")
    assert stdout.endswith(f" No second framework confirmed it in this run.\nDigest of all outputs: {FEW_DIGEST}\n")


FULL = "xref: stdout: got No space left on device, expected an open file or pipe [xref]\n"
AT_ONCE = f"""
import sys, msgspec, xref.cli
from xref.verifying.report import Report
report = msgspec.json.decode({report_of().to_json()!r}, type=Report)
sys.modules["xref.cli.verify"].run_verify = lambda **how: report
"""


@pytest.mark.parametrize("command", ["--version", "--help", "doctor"])
def test_output_that_cannot_be_written_is_one_line_and_no_failed_clause(command):
    assert into_a_full_disk("", command) == (2, FULL)


def test_a_report_is_written_although_the_terminal_is_gone(tmp_path):
    assert into_a_full_disk(AT_ONCE, "verify", *SMALL, "--json", tmp_path / "out.json") == (2, FULL)
    assert names_in(tmp_path) == ["out.json"]


def test_a_report_may_have_the_longest_name_there_is(tmp_path):
    path = tmp_path / f"{'x' * 250}.json"
    OutputFile("--json", path).check([])
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 300, "loop"])
def test_a_name_that_no_file_can_have_is_refused_before_the_run(tmp_path, name):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(errors.UsageError) as refused:
        OutputFile("--json", tmp_path / name).check([])
    expected = f"--json: got {tmp_path / name}, expected a file in a folder that can be written"
    assert str(refused.value) == expected


def test_a_loop_of_links_is_refused_where_python_resolves_it_to_itself(tmp_path, monkeypatch):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    monkeypatch.setattr(files.Path, "resolve", lambda path: path)  # as Python 3.13 has it
    with pytest.raises(errors.UsageError, match=r"loop, expected a file in a folder that can be written$"):
        OutputFile("--json", loop).check([])
    assert loop.is_symlink()


@pytest.mark.parametrize("stderr", [False, True], ids=["stdout", "stderr"])
def test_a_console_prints_no_emoji_for_a_name_between_colons(stderr):
    made = console(stderr=stderr)
    made.file = io.StringIO()
    table = Table()
    table.add_column("t2.py:x: got")
    table.add_row("k.py:cat: [bold]fine[/bold]")
    made.print("t2.py:x: got", table)
    assert made.file.getvalue().count("t2.py:x: got") == 2
    assert "k.py:cat: fine" in made.file.getvalue()


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("no.safetensors",), "no.safetensors: got no such file, expected a safetensors file"),
        (("m.safetensors", "--tensor", "c"), "--tensor: got c, expected one of a"),
        (("m.safetensors", "--ids", "no.npy"), "no.npy: got no such file, expected a .npy or .txt file of token ids"),
    ],
    ids=["file", "tensor", "ids"],
)
def test_a_wrong_file_or_tensor_is_told_before_a_framework_is_loaded(args, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "m.safetensors", a=("F32", (7, 3)))
    after = "import atexit, sys\natexit.register(lambda: print(*{'torch', 'jax'} & set(sys.modules)))"
    assert finished(after, "verify", "--weights", *args) == (2, "\n", f"xref: {line} [verify --weights]\n")


def test_ctrl_c_in_the_middle_of_a_run_leaves_no_file(tmp_path):
    mark, target = tmp_path / "running", tmp_path / "out"
    target.mkdir()
    held = f"""
import pathlib, sys, time, xref.cli
def run(**how):
    pathlib.Path({str(mark)!r}).touch()
    time.sleep(100)
sys.modules["xref.cli.verify"].run_verify = run
"""
    running = process(held, "verify", *SMALL, "--json", target / "out.json")
    deadline = time.monotonic() + 60
    while not mark.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout, stderr) == (130, "", "xref: interrupted: nothing was confirmed\n")
    assert names_in(target) == []
