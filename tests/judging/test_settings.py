"""`[tool.xref]` of a project: what it may hold, and one line for what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import stopped

from xref import operators
from xref.judging.settings import settings, with_settings


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tool.xref", "pyproject.toml: got a file that cannot be read as TOML ("),
        ("tool.xref = 3", "[tool.xref]: got 3, expected a table"),
        ("[tool.xref]\nexpect = 1", "[tool.xref]: got 'expect', expected one of expect-fail, out-of-range, require"),
        ("[tool.xref]\nrequire = 'EMB-2'", "[tool.xref] require: got 'EMB-2', expected a list of checks or clauses"),
        ("[tool.xref]\nrequire = [2]", "[tool.xref] require: got [2], expected a list of checks or clauses"),
        ("[tool.xref]\nexpect-fail = ['EMB-2']", "[tool.xref] expect-fail: got ['EMB-2'], expected a table of reasons"),
        ("[tool.xref.expect-fail]\nx = ''", "[tool.xref] expect-fail: got {'x': ''}, expected a table of reasons"),
        ("[tool.xref]\nout-of-range = 1", "[tool.xref] out-of-range: got 1, expected one of raise, poison, unchecked"),
    ],
)
def test_settings_that_are_not_right_are_exit_2(text, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(text)
    assert stopped(2, "judge", "k.py:kernel").startswith(line)


def test_the_table_of_a_project_is_read(tmp_path):
    path = tmp_path / "pyproject.toml"
    assert settings(path) == {}
    path.write_text('[tool.xref]\nrequire = ["EMB-2"]\nout-of-range = "abort"\nexpect-fail = { EMB-8 = "one" }\n')
    found = settings(path)
    assert found == {"require": ["EMB-2"], "out-of-range": "abort", "expect-fail": {"EMB-8": "one"}}


def test_what_is_asked_for_counts_more_or_adds_to_it(tmp_path):
    path, operator = tmp_path / "pyproject.toml", operators.find("embedding")
    path.write_text('[tool.xref]\nrequire = ["EMB-2"]\nout-of-range = "poison"\nexpect-fail = { EMB-8 = "one" }\n')
    assert with_settings(operator, {"tier": "smoke"}, path) == {
        "tier": "smoke", "require": ("EMB-2",), "out_of_range": "poison", "expect_fail": {"EMB-8": "one"},
    }  # fmt: skip
    asked = {"require": ("EMB-10",), "out_of_range": "raise", "expect_fail": {"EMB-8": "two", "EMB-9": "three"}}
    assert with_settings(operator, asked, path) == {
        "require": ("EMB-2", "EMB-10"), "out_of_range": "raise", "expect_fail": {"EMB-8": "two", "EMB-9": "three"},
    }  # fmt: skip
    assert with_settings(operator, {}, tmp_path / "none.toml") == {"require": (), "expect_fail": {}}
