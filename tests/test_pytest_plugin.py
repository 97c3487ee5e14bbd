"""`@xref.parametrize`: one test of each check, and no way for a failure to look like a pass."""

from __future__ import annotations

import functools
import inspect
import pydoc
import re
import tempfile
from pathlib import Path

import pytest
from support.judge_reports import report_of
from support.kernels import RIGHT, WRONG
from support.processes import fresh, run_pytest

import xref
from xref import operators, pytest_plugin
from xref.engine.outcomes import Outcome

needs_torch = pytest.mark.torch
CHECKS = [check.id for check in operators.find("embedding").checks]
TEST = """
import xref
from k import kernel


@xref.parametrize(kernel, framework="torch", tier="smoke", dtype="bfloat16"{more})
def test_kernel(check):
    check()
"""
GRADED = ("EMB-10/permuted", "EMB-10/split")


@functools.cache
def of_kernel(kernel, more=""):
    """Run a kernel's tests once for all that look at them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "k.py").write_text(kernel)
        (folder / "test_k.py").write_text(TEST.replace("{more}", more))
        return run_pytest(folder)


def of(check):
    return f"test_kernel[{check}]"


@needs_torch
def test_each_check_is_a_test_with_its_own_name():
    _, cases = of_kernel(RIGHT)
    assert list(cases) == [of(check) for check in CHECKS]


@needs_torch
def test_a_right_kernel_passes_skips_are_skips_and_what_is_graded_is_an_expected_failure():
    done, cases = of_kernel(RIGHT)
    assert done.returncode == 0
    others = {name: told for name, told in cases.items() if told[0] != "passed"}
    assert {name: told for name, told in others.items() if told[0] == "skipped"} == {
        of("EMB-2"): ("skipped", "the kernel has no forward_fp32"),
        of("EMB-7/mode"): ("skipped", "not in the smoke tier: seconds each"),
        of("EMB-4/traced"): ("skipped", "torch has no such trace"),
        of("EMB-12/strided"): ("skipped", "not in the smoke tier"),
    }
    graded = {name: told for name, told in others.items() if told[0] == "xfailed"}
    assert set(graded) == {of(check) for check in GRADED}
    assert all(told.startswith("graded only\ngradient[") for _, told in graded.values())
    assert len(others) == 6


@needs_torch
def test_the_header_says_what_is_judged_where():
    done, _ = of_kernel(RIGHT)
    assert "xref judges: kernel (torch, cpu)\n" in done.stdout


@needs_torch
def test_a_wrong_kernel_fails_with_the_call_its_likeness_and_how_to_make_it_again():
    done, cases = of_kernel(WRONG)
    assert done.returncode == 1
    failed = {name for name, (outcome, _) in cases.items() if outcome == "failure"}
    assert failed >= {of(check) for check in ("EMB-1", "EMB-8", "EMB-11", "EMB-4")}
    assert of("EMB-9") not in failed
    told = [line.removeprefix("E   ").strip() for line in done.stdout.splitlines() if line.startswith("E   ")]
    assert re.match(r"AssertionError: kernel on torch \S+, cpu: EMB-1: fail$", told[0])
    assert re.match(r"out\[\d+, \d+\]: got 0x0000, expected 0x.* \[kernel\.forward bfloat16 ", told[1])
    assert told[2] == "consistent with padding-id-zeroed: the row of id 0 came back as zeros"
    again = next(line for line in told if line.startswith("again: "))
    assert re.match(r"again: xref.judge\(\.\.\., framework='torch', device='cpu', only='\{.*\}'\)$", again)
    assert "pytest_plugin.py" not in done.stdout  # the traceback ends in the test itself


@needs_torch
def test_what_is_known_to_fail_is_an_xfail_and_fails_once_it_passes():
    _, cases = of_kernel(WRONG, ", expect_fail={'EMB-1': 'known', 'EMB-9': 'unknown'}, require=('EMB-10/split',)")
    assert cases[of("EMB-1")] == ("xfailed", "known")
    assert cases[of("EMB-9")][0] == "failure"
    assert cases[of("EMB-9")][1].endswith(": EMB-9: xpass unknown")
    assert cases[of("EMB-10/split")][0] == "failure"


@needs_torch
def test_a_device_that_is_not_there_fails_every_test():
    done, cases = of_kernel(RIGHT, ", device='tpu'")
    assert done.returncode == 1
    assert list(cases) == [of(check) for check in CHECKS]
    expected = "xref.errors.UsageError: --device: got tpu, expected a device that torch has here: cpu"
    assert {told for _, told in cases.values()} == {f"{expected} [judge]"}
    assert {outcome for outcome, _ in cases.values()} == {"failure"}
    assert "xref judges: kernel (torch, tpu)\n" in done.stdout


def test_a_name_that_does_not_exist_is_an_error_and_no_pass(tmp_path):
    (tmp_path / "k.py").write_text("kernel = None\n")
    (tmp_path / "test_k.py").write_text(TEST.replace("{more}", ", require=('EMB-13',)"))
    done, cases = run_pytest(tmp_path)
    assert done.returncode == 1
    assert {outcome for outcome, _ in cases.values()} == {"failure"}
    assert len(cases) == len(CHECKS)


def test_settings_of_the_project_and_the_tier_count(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.xref.expect-fail]\nEMB-13 = "none"\n')
    (tmp_path / "k.py").write_text("kernel = None\n")
    (tmp_path / "test_k.py").write_text(TEST.replace("{more}", ""))
    _, cases = run_pytest(tmp_path)
    assert all("--expect-fail: got 'EMB-13', expected a clause" in told for _, told in cases.values())
    (tmp_path / "pyproject.toml").write_text('[tool.xref]\nout-of-range = "clip"\n')
    _, cases = run_pytest(tmp_path)
    assert all("[tool.xref] out-of-range: got 'clip', expected one of raise" in told for _, told in cases.values())
    (tmp_path / "test_k.py").write_text(TEST.replace("{more}", "").replace('"smoke"', '"none"'))
    (tmp_path / "pyproject.toml").unlink()
    _, cases = run_pytest(tmp_path)
    assert all("--tier: got 'none', expected one of smoke, standard" in told for _, told in cases.values())


def test_the_public_names_are_shown_and_say_what_they_take():
    assert {"judge", "parametrize", "verify"} <= set(dir(xref))
    for name in ("judge", "parametrize", "verify"):
        function = getattr(xref, name)
        assert function.__doc__
        assert inspect.signature(function).parameters
    shown = pydoc.render_doc(xref, renderer=pydoc.plaintext)
    assert all(f"    {name}(" in shown for name in ("judge", "parametrize", "verify"))


def test_tests_without_a_kernel_have_no_header(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    done, cases = run_pytest(tmp_path)
    assert (done.returncode, cases) == (0, {"test_it": ("passed", "")})
    assert "xref judges" not in done.stdout


def test_the_plugin_is_declared_and_loads_neither_a_framework_nor_the_judge():
    code = """
        import xref.pytest_plugin
        print(loaded("torch", "jax", "numpy", "ml_dtypes", "msgspec", "rich", "typer", "xref.judging"))
    """
    assert fresh(code, blocked=("torch", "jax", "numpy")) == "[]"


def test_decorating_a_test_loads_no_framework():
    code = """
        import xref
        mark = xref.parametrize(print, framework="torch")
        print(loaded("torch", "jax"), len(mark.args[1]))
    """
    assert fresh(code, blocked=("torch", "jax")) == f"[] {len(CHECKS)}"


# Outcomes, of reports made by hand


def outcome(report):
    """What a check of a report does to its test."""
    try:
        pytest_plugin.CheckTest("EMB-7/padding", lambda: report)()
    except AssertionError as error:
        return f"fails: {error}"
    except pytest.xfail.Exception as error:
        return f"xfail: {error}"
    except pytest.skip.Exception as error:
        return f"skip: {error}"
    return "passes"


WHERE = "fails: k.py:kernel on torch 2, cpu: EMB-7/padding: "


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (report_of(), "passes"),
        (report_of(required=False), "passes"),
        (report_of(Outcome.FAIL, problems=["out: wrong [k]"]), f"{WHERE}fail\nout: wrong [k]"),
        (report_of(Outcome.FAIL, required=False, problems=["out: wrong [k]"]), "xfail: graded only\nout: wrong [k]"),
        (report_of(Outcome.ERROR), f"{WHERE}error"),
        (report_of(Outcome.ERROR, required=False), "xfail: graded only"),
        (report_of(Outcome.SKIP, reason="none"), f"{WHERE}skip none"),
        (report_of(Outcome.SKIP, required=False, reason="none"), "skip: none"),
        (report_of(Outcome.XFAIL, reason="known"), "xfail: known"),
        (report_of(Outcome.XPASS, reason="known"), f"{WHERE}xpass known"),
        (report_of(Outcome.XPASS, required=False, reason="known"), f"{WHERE}xpass known"),
        (
            report_of(Outcome.ABORTS, problems=["process: got death by SIGSEGV [k]"]),
            f"{WHERE}aborts\nprocess: got death by SIGSEGV [k]",
        ),
    ],
)
def test_an_outcome_of_a_check_is_that_of_its_test(report, told):
    assert outcome(report) == told


def test_a_check_that_the_report_does_not_have_is_no_pass():
    with pytest.raises(ValueError, match="not enough values"):
        pytest_plugin.CheckTest("EMB-13", report_of)()
