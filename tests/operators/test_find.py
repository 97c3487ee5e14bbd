"""Operators by name: those of the package, and those that other packages offer by entry point."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace

import pytest
from support.helpers import raises

from xref import errors, operators

EMBEDDING = operators.find("embedding")


@pytest.fixture
def offered(monkeypatch):
    """Offer operators by entry point: the value is what a module of that name has as OPERATOR."""

    def offer(**values):
        points = []
        for name, value in values.items():
            module = ModuleType(f"pkg_{name}")
            module.OPERATOR = value
            monkeypatch.setitem(sys.modules, module.__name__, module)
            points.append(importlib.metadata.EntryPoint(name, f"pkg_{name}:OPERATOR", operators.GROUP))
        known = SimpleNamespace(entry_points=lambda group: points if group == operators.GROUP else [])
        monkeypatch.setattr(operators.importlib, "metadata", known)

    return offer


def test_the_embedding_is_a_folder():
    assert "embedding" in operators.names()
    assert EMBEDDING.name == "embedding"


def test_an_operator_of_another_package_is_found_and_replaces_none_of_a_folder(offered):
    other = dataclasses.replace(EMBEDDING, name="row_scale")
    offered(row_scale=other, embedding=other)
    assert operators.names() == ("embedding", "row_scale")
    assert operators.find("row_scale") is other
    assert operators.find("embedding") is EMBEDDING


def test_an_unknown_name_is_refused_with_those_that_there_are(offered):
    offered(row_scale=EMBEDDING)
    message = "operator: got 'sum', expected one of embedding, row_scale [judge]"
    with raises(errors.UsageError, message), errors.called("judge"):
        operators.find("sum")


def test_what_is_no_operator_is_refused(offered):
    offered(row_scale=3)
    with raises(errors.UsageError, "pkg_row_scale:OPERATOR: got int, expected an xref.spec.Operator"):
        operators.find("row_scale")


def test_a_package_that_does_not_import_is_refused(offered, monkeypatch):
    offered(row_scale=EMBEDDING)
    monkeypatch.setitem(sys.modules, "pkg_row_scale", None)
    with pytest.raises(errors.UsageError, match=r"^pkg_row_scale:OPERATOR: got .* while importing it, expected an op"):
        operators.find("row_scale")
