"""A second operator is found, verified, judged, listed and explained, and nothing under xref is edited for it."""

from __future__ import annotations

import importlib.metadata
import json

import pytest
from support.commands import xref as command

import xref
from xref import operators
from xref.engine.outcomes import Outcome
from xref.verifying.verify import verify

CLAUSES = ["ROW-1", "ROW-2", "ROW-3", "ROW-4"]


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """Have an installed package offer it."""
    point = importlib.metadata.EntryPoint("row_scale", "support.row_scale:OPERATOR", operators.GROUP)
    others = importlib.metadata.entry_points

    def found(**how):
        return [point] if how.get("group") == operators.GROUP else others(**how)

    monkeypatch.setattr(importlib.metadata, "entry_points", found)


def test_it_is_found():
    assert operators.names() == ("embedding", "row_scale")
    assert operators.find("row_scale").verbs == ("row_scale",)


@pytest.mark.torch
@pytest.mark.jax
def test_its_goldens_are_verified():
    report = verify(operator="row_scale", device="cpu")
    assert report.ok, report.statement
    assert (report.operator, report.contract_version) == ("row_scale", 1)
    rows = {(v.clause, v.framework, v.against) for v in report.verdicts}
    assert {clause for clause, _, _ in rows} == set(CLAUSES)
    assert ("ROW-1", "jax", "torch/cpu") in rows
    products = 2 * 2 * (5 + 33 * 17)  # of two dtypes in two frameworks
    assert f"on {products:,} output elements." in report.statement


@pytest.mark.torch
def test_a_right_kernel_of_it_passes():
    from support.row_scale_torch import row_scale

    report = xref.judge(row_scale, operator="row_scale")
    assert report.ok, report.to_json()
    assert [verdict.check for verdict in report.verdicts] == CLAUSES


@pytest.mark.torch
def test_a_wrong_kernel_of_it_is_caught_and_its_fault_is_named():
    from support.row_scale_torch import rounded_to_zero

    report = xref.judge(rounded_to_zero, operator="row_scale", dtype="float32")
    [failed] = report.failed
    assert (failed.check, failed.outcome) == ("ROW-1", Outcome.FAIL)
    assert failed.explanations == ["rounded-to-zero: every wrong element is one step nearer to zero"]
    assert json.loads(failed.rerun)["call"] == "row-scale"
    again = xref.judge(rounded_to_zero, operator="row_scale", only=failed.rerun)
    assert [verdict.check for verdict in again.failed] == ["ROW-1"]


def test_it_is_listed_and_explained():
    clauses = command("list", "clauses").stdout
    assert "EMB-1" in clauses
    assert "ROW-1" in clauses
    assert "rounded-to-zero" in command("list", "faults").stdout
    assert "ROW-1 scale: out[t, h] is x[t, h] * w[h]" in command("explain", "ROW-1").stdout
