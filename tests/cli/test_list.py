"""`xref list` and `xref explain`: every operator's clauses, checks and faults, in their own words."""

from __future__ import annotations

import re

import pytest
from support.commands import stopped, xref

from xref import operators

OPERATOR = operators.find("embedding")
STRIDED = "nor for a table in transposed memory"
MEMORY = "EMB-12 memory: No temporary the size of the table: extra memory grows with the tokens, not with V."
SPLIT = "summed in parts, and the parts added"


@pytest.mark.parametrize(
    ("what", "headings", "cells"),
    [
        ("clauses", ["clause", "title", "what must hold"], ["EMB-12", "memory"]),
        ("checks", ["check", "judgment", "required", "what"], ["EMB-10/split", "gradient_invariance", "graded"]),
        ("cases", ["case", "tier"], ["bfloat16-tagged-300x33-zipf-257-int64", "smoke"]),
        ("faults", ["fault", "looks", "report"], ["ids-clamped"]),
        ("operators", ["operator", "contract", "verbs", "goldens"], ["embedding", "1", "forward, forward_fp32"]),
        ("kernels", ["kernel", "operator", "framework", "devices", "priority", "from"],
         ["native", "embedding", "torch", "cuda, rocm, tpu, cpu", "0", "xref"]),
    ],
)  # fmt: skip
def test_a_list_has_a_row_for_each(what, headings, cells):
    result = xref("list", what)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines()]
    assert headings in rows
    assert [row for row in rows if row[: len(cells)] == cells]


def test_a_list_of_something_else_is_exit_2():
    assert xref("list", "things").exit_code == 2
    assert xref("list").exit_code == 2


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("EMB-10/split", ["EMB-10/split (gradient_invariance, graded, unless --require asks for it): " + SPLIT]),
        ("EMB-12/strided", ["EMB-12/strided (conduct, graded, unless --require asks for it): " + STRIDED]),
        ("memory", [MEMORY]),
    ],
)
def test_a_clause_and_a_check_are_explained_in_their_own_words(name, lines):
    result = xref("explain", name)
    assert (result.exit_code, result.stdout.splitlines(), result.stderr) == (0, lines, "")


def test_a_clause_is_explained_with_all_of_its_conditions():
    lines = xref("explain", "EMB-7").stdout.splitlines()
    assert lines[0].startswith("EMB-7 invariance: ")
    assert [line.partition(" ")[0] for line in lines[1:]] == [
        each for each in (check.id for check in OPERATOR.checks) if each.startswith("EMB-7/")
    ]


@pytest.mark.parametrize("fault", OPERATOR.faults, ids=lambda fault: fault.name)
def test_every_fault_is_explained(fault):
    lines = xref("explain", fault.name).stdout.splitlines()
    assert lines[:2] == [f"{fault.name}: {fault.looks}", fault.does]
    assert lines[2:] == ([f"Reported as {fault.report}."] if fault.report else [])


def test_what_nobody_knows_is_exit_2():
    expected = "a clause, a check or a fault, as `xref list clauses|checks|faults` has them"
    assert stopped(2, "explain", "EMB-[13]") == f"name: got 'EMB-[13]', expected {expected} [explain]"
