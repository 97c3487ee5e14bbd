"""The command `xref bench`: what it prints and writes, its exit codes, and what it refuses before it measures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.bench_records import MEASURED, figure_of, quick, report_of  # noqa: F401  (quick makes laps short)
from support.commands import finished, stopped, xref

from xref import operators
from xref.benching import bench as benching
from xref.benching.report import read_report
from xref.engine import frameworks

KERNELS = """
import torch


def embedding(token_ids, weight):
    return weight[token_ids]


def lazy(token_ids, weight):
    if weight.shape[0] > 3:
        raise ValueError("not [today]")
    return weight[token_ids]


def whole(token_ids, weight):
    return weight


def spoils(token_ids, weight):
    weight.zero_()
    token_ids.fill_(10**6)
    return torch.zeros(*token_ids.shape, weight.shape[1], dtype=weight.dtype)
"""
SMALL = ("--vocab", 50, "--hidden", 8, "--tokens", 12, "--rounds", 2, "--dtype", "bfloat16")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("kernels.py").write_text(KERNELS)
    return tmp_path


@pytest.fixture
def idle(monkeypatch):
    """Fail where anything is measured."""
    monkeypatch.setattr(benching, "bench", lambda *args, **how: pytest.fail("it measured"))


@pytest.mark.torch
@pytest.mark.jax
def test_everybody_stands_in_one_table_record_and_plot():
    result = xref("bench", "kernels.py:embedding", *SMALL, "--json", "r.json", "--plot", "r.svg")
    assert result.exit_code == 0, result.output
    report = read_report(Path("r.json"))
    assert report.ok
    who = {(figure.framework, figure.kind) for figure in report.figures}
    assert who == {(name, kind) for name in ("torch", "jax") for kind in ("copy", "native", "golden")} | {
        ("torch", "candidate")
    }
    assert {(figure.direction, figure.dtype, figure.tokens) for figure in report.figures} == {
        ("forward", "bfloat16", 12),
        ("backward", "bfloat16", 12),
    }
    lines = result.stdout.splitlines()
    assert [line.rstrip() for line in lines if line.startswith(("forward", "backward"))] == [
        "forward, bfloat16",
        "backward, bfloat16",
    ]
    rows = [line.split() for line in lines if line.split()[-1:] == ["host"]]
    figures = sorted(report.figures, key=lambda figure: figure.direction, reverse=True)
    assert [row[:2] for row in rows] == [[str(figure.tokens), figure.framework] for figure in figures]
    for row, figure in zip(rows, figures, strict=True):
        assert " ".join(row[2:]).startswith(figure.title)
    assert lines[-1].startswith("[50, 8] table, medians of 2 rounds: torch ")
    assert Path("r.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.torch
def test_who_could_not_be_measured_is_an_error_in_the_table_and_exit_1():
    result = xref("bench", "kernels.py:lazy", "--framework", "torch", "--direction", "forward", *SMALL)
    assert result.exit_code == 1
    [row] = [line for line in result.stdout.splitlines() if " lazy " in line and line.startswith(" ")]
    assert row.split() == ["12", "torch", "lazy", "error"]
    assert "torch lazy, forward bfloat16, tokens 12: ValueError: not [today]" in result.stdout.splitlines()


@pytest.mark.torch
def test_a_kernel_that_does_something_else_has_no_time():
    result = xref("bench", "kernels.py:whole", "--framework", "torch", *SMALL)
    assert result.exit_code == 1
    told = "ValueError: out: got shape (50, 8), bfloat16, on cpu, expected shape (12, 8), bfloat16, on cpu [bench]"
    assert f"torch whole, forward bfloat16, tokens 12: {told}" in result.stdout.splitlines()


@pytest.mark.torch
def test_a_kernel_that_changes_its_inputs_takes_no_part_and_the_others_do():
    result = xref("bench", "kernels.py:spoils", "--framework", "torch", "--direction", "forward", *SMALL)
    assert result.exit_code == 1
    told = "ValueError: inputs: got other bits after a call, expected the same [bench]"
    assert f"torch spoils, forward bfloat16, tokens 12: {told}" in result.stdout.splitlines()
    assert [line for line in result.stdout.splitlines() if " error" in line and " spoils " not in line] == []


@pytest.mark.torch
def test_more_than_the_memory_holds_is_one_line():
    code, stdout, stderr = finished("", "bench", "--framework", "torch", "--vocab", 2**31 - 1, "--hidden", 2**31 - 1)
    assert (code, stdout) == (2, "")
    assert stderr == "xref: memory: got Cannot allocate memory, expected less to be asked for [xref]\n"


@pytest.mark.parametrize("option", ["--vocab", "--hidden", "--tokens"])
def test_a_size_that_no_framework_has_is_refused(option):
    assert f"{option}" in xref("bench", option, 2**31).stderr


@pytest.mark.torch
def test_what_a_framework_cannot_do_itself_is_told_and_no_failure():
    result = xref("bench", "--framework", "torch", "--direction", "backward", *SMALL[:-1], "float8_e5m2")
    assert "torch F.embedding's backward, backward float8_e5m2, tokens 12: " in result.stdout
    assert result.exit_code == 0


@pytest.mark.torch
def test_kernels_of_one_name_are_called_by_their_files(monkeypatch):
    Path("others.py").write_text(KERNELS)
    seen = []

    def bench(operator, options, candidates, progress):
        seen.extend(candidate.name for candidate in candidates)
        return report_of(figure_of(**MEASURED))

    monkeypatch.setattr(benching, "bench", bench)
    names = ["kernels.py:embedding", "others.py:embedding", "others.py:lazy"]
    assert xref("bench", *names, names[0], "--framework", "torch").exit_code == 0
    assert seen == [*names[:2], "lazy"]


@pytest.mark.parametrize(
    ("args", "tokens"),
    [
        ((), [1, 64, 1024, 8192]),
        (("--device", "cuda"), [1, 64, 1024, 8192, 131072]),
        (("--plot", "r.svg"), [1 << power for power in range(14)]),
        (("--device", "cuda", "--plot", "r.svg"), [1 << power for power in range(18)]),
        (("--tokens", 3, "--tokens", 2), [3, 2]),
    ],
    ids=["cpu", "cuda", "plot", "cuda-plot", "named"],
)
def test_the_tokens_if_none_are_named(args, tokens, monkeypatch):
    seen = []

    def bench(operator, options, candidates, progress):
        seen.append(options)
        return report_of(figure_of(**MEASURED))

    monkeypatch.setattr(benching, "chosen", lambda names, device: ([], []))
    monkeypatch.setattr(benching, "bench", bench)
    assert xref("bench", *args).exit_code == 0
    [options] = seen
    assert list(options.tokens) == tokens
    assert list(options.dtype) == ["bfloat16", "float32"]
    assert list(options.direction) == ["forward", "backward"]


def test_interrupted_is_exit_130(monkeypatch):
    def interrupted(names, device):
        raise KeyboardInterrupt

    monkeypatch.setattr(benching, "chosen", interrupted)
    assert stopped(130, "bench") == "interrupted: nothing was kept"


# An earlier record


@pytest.fixture
def record():
    Path("r.json").write_text(report_of(figure_of(**MEASURED), figure_of(tokens=9, problem="E: no")).to_json())
    return Path("r.json")


def test_an_earlier_record_is_shown_and_drawn_without_measuring(record, idle):
    result = xref("bench", "--from", record, "--plot", "r.png", "--json", "again.json")
    assert result.exit_code == 1  # one of the two could not be measured
    assert "golden forward" in result.stdout
    assert "torch golden forward, forward bfloat16, tokens 9: E: no" in result.stdout
    assert result.stdout.splitlines()[-1] == (
        "[5, 4] table, medians of 3 rounds: torch 2.0 on Card; 2 cores of Chip, Python 3, NumPy 2."
    )
    assert Path("r.png").read_bytes().startswith(b"\x89PNG")
    assert read_report(Path("again.json")) == read_report(record)


def test_records_of_one_machine_are_shown_as_one(record, idle):
    other = report_of(figure_of(framework="jax", **MEASURED))
    other.machine.frameworks = {"jax": {"version": "1.0", "device": "Card"}}
    other.notes = ["a note"]
    Path("j.json").write_text(other.to_json())
    assert xref("bench", "--from", record, "--from", "j.json", "--json", "both.json").exit_code == 1
    both = read_report(Path("both.json"))
    assert [figure.framework for figure in both.figures] == ["torch", "torch", "jax"]
    assert list(both.machine.frameworks) == ["torch", "jax"]
    assert both.notes == ["a note"]


def test_records_that_are_not_of_one_run_are_refused(record, idle):
    assert stopped(2, "bench", "--from", record, "--from", record) == (
        "--from: got torch golden forward, forward bfloat16, 8 tokens twice, expected each figure once [bench]"
    )
    other = report_of(figure_of(framework="jax"))
    other.vocab = 6
    Path("j.json").write_text(other.to_json())
    assert stopped(2, "bench", "--from", record, "--from", "j.json") == (
        "--from: got sizes [6, 4], 3 rounds on cpu, expected sizes [5, 4], 3 rounds on cpu [bench]"
    )
    other.machine.python = "4"
    Path("j.json").write_text(other.to_json())
    assert stopped(2, "bench", "--from", record, "--from", "j.json") == (
        "--from: got machine 2 cores of Chip, OS, driver none, xref 1, Python 4, NumPy 2,"
        " expected machine 2 cores of Chip, OS, driver none, xref 1, Python 3, NumPy 2 [bench]"
    )


def test_records_of_two_versions_of_a_framework_are_refused(record, idle):
    other = report_of(figure_of(framework="torch", contender="another"))
    other.machine.frameworks["torch"]["version"] = "9.9"
    Path("other.json").write_text(other.to_json())
    version = read_report(record).machine.frameworks["torch"]["version"]
    assert stopped(2, "bench", "--from", record, "--from", "other.json") == (
        f"--from: got torch with version 9.9, expected torch with version {version} [bench]"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"xref": "1"}', "Object missing required field `device`"),
    ],
    ids=["absent", "cut", "list", "other"],
)
def test_a_bad_record_is_refused(content, why, idle):
    if content is not None:
        Path("bad.json").write_text(content)
    assert stopped(2, "bench", "--from", "bad.json") == (
        f"--from: got bad.json ({why}), expected a file of xref bench --json [bench]"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"framework": "tf"}, "Expected `str` matching regex '^(torch|jax)$' - at `$.figures[0].framework`"),
        ({"seconds": -1.0}, "Expected `float` >= 0.0 - at `$.figures[0].seconds`"),
        ({"tokens": 0}, "Expected `int` >= 1 - at `$.figures[0].tokens`"),
    ],
    ids=["framework", "seconds", "tokens"],
)
def test_a_record_that_no_run_writes_is_refused(change, why, idle):
    Path("bad.json").write_text(report_of(figure_of(**change)).to_json())
    assert stopped(2, "bench", "--from", "bad.json") == (
        f"--from: got bad.json ({why}), expected a file of xref bench --json [bench]"
    )


def test_a_record_without_a_version_is_refused(idle):
    other = report_of(figure_of())
    del other.machine.frameworks["torch"]["version"]
    Path("bad.json").write_text(other.to_json())
    assert stopped(2, "bench", "--from", "bad.json") == (
        "--from: got bad.json (no 'version'), expected a file of xref bench --json [bench]"
    )


@pytest.mark.parametrize(
    ("args", "got"), [(("--device", "cpu"), "--device"), (("k.py:k",), "a TARGET"), (("--memory",), "--memory")],
    ids=["option", "target", "flag"],
)  # fmt: skip
def test_with_an_earlier_record_nothing_is_asked_of_a_run(args, got, record, idle):
    assert stopped(2, "bench", "--from", record, *args) == (
        f"xref bench: got {got} with --from, expected --json and --plot alone: nothing is measured [bench]"
    )


# What is refused before anything is measured


@pytest.mark.torch
def test_what_is_no_kernel_is_told_by_the_name_of_this_command(idle):
    Path("none.py").write_text(
        "class Kernel:\n    forward = 3\n    def __init__(self):\n        raise ValueError('no')\n"
    )
    assert stopped(2, "bench", "none.py:Kernel", "--framework", "torch") == (
        "Kernel: got ValueError: no, expected a class that is made without arguments [bench]"
    )
    assert stopped(2, "bench", "no.py:kernel") == "no.py: got no such file, expected a Python file [bench]"


def test_a_record_that_cannot_be_written_after_all_names_this_command(record, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    result = xref("bench", "--from", record, "--json", "out.json")
    assert result.stderr.endswith("which cannot be written (No space left on device), expected a file [bench]\n")


def test_another_operator_is_found_by_name(idle):
    known = ", ".join(operators.names())
    assert stopped(2, "bench", "--operator", "sum") == f"operator: got 'sum', expected one of {known} [bench]"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--plot", "r.pdf"), "--plot: got r.pdf, expected a file ending in .svg or .png [bench]"),
        (("--plot", "no/r.svg"), "--plot: got no/r.svg, expected a file in a folder that can be written [bench]"),
        (("--json", "no/r.json"), "--json: got no/r.json, expected a file in a folder that can be written [bench]"),
        (
            ("--json", "r.svg", "--plot", "r.svg"),
            "--plot: got r.svg, an input of this run, expected another file [bench]",
        ),
        (("k.py:k", "--json", "k.py"), "--json: got k.py, an input of this run, expected another file [bench]"),
    ],
    ids=["kind", "folder", "json", "twice", "kernel"],
)  # fmt: skip
def test_a_file_that_cannot_be_made_is_refused(args, line, idle):
    assert stopped(2, "bench", *args) == line
    assert [path.name for path in Path.cwd().iterdir() if path.is_file()] == ["kernels.py"]


def test_a_plot_without_matplotlib_is_refused(monkeypatch, idle):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert stopped(2, "bench", "--plot", "r.svg") == (
        "matplotlib: got not installed, expected it to be: pip install 'xref[plot]' [bench]"
    )


@pytest.mark.parametrize("missing", ["torch", "jax"])
def test_a_missing_framework_is_refused(missing, monkeypatch, idle):
    monkeypatch.setattr(frameworks, "installed", lambda name: name != missing)
    assert stopped(2, "bench", "--framework", missing) == (
        f"{missing}: got not installed, expected it to be: pip install 'xref[{missing}]' [bench]"
    )


@pytest.mark.torch
def test_an_absent_device_is_refused(idle):
    assert stopped(2, "bench", "--device", "tpu", "--framework", "torch").startswith(
        "--device: got tpu, expected a device that is here (torch has cpu"
    )


def test_the_shape_is_positive():
    for option in ("--tokens", "--vocab", "--hidden", "--rounds"):
        assert xref("bench", option, 0).exit_code == 2


def test_it_stands_among_the_commands():
    assert "bench" in xref("--help").output
