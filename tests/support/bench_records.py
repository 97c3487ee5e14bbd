"""Records of `xref bench` for tests, and laps that are short."""

from __future__ import annotations

import pytest

from xref.benching import bench
from xref.benching.report import BenchReport, Figure, Machine


def figure_of(**more):
    fields = {"framework": "torch", "contender": "forward", "kind": "golden", "direction": "forward"}
    return Figure(**{**fields, "dtype": "bfloat16", "tokens": 8, **more})


def report_of(*figures, device="cpu"):
    known = {"torch": {"version": "2.0", "device": "Card"}}
    machine = Machine(processor="Chip", cores=2, system="OS", python="3", numpy="2", driver="", frameworks=known)
    return BenchReport(
        xref="1", device=device, vocab=5, hidden=4, rounds=3, machine=machine, figures=list(figures)
    )  # fmt: skip


MEASURED = {"moved": 8, "seconds": 1e-9, "clock": "host", "quartiles": (1e-9, 2e-9), "of_copy": 1.0}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bench, "_COPIED", 4096)
    monkeypatch.setattr(bench, "_LAP", 1e-6)
