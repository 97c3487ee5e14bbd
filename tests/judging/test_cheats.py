"""Kernels that go for the judge instead of the answer: each fails, and an honest kernel in the same file passes.

What they reach is the process in which they run, and nothing is decided there.
"""

from __future__ import annotations

import json

import pytest
from support.commands import xref
from support.judge_reports import report, verdict
from support.judged import only_calls_of

from xref.engine.outcomes import Outcome
from xref.judging.judge import Judge, stand_for
from xref.judging.options import checked

pytestmark = pytest.mark.torch

HONEST = """
import torch


def honest(token_ids, weight):
    if token_ids.is_floating_point() or token_ids.is_complex() or token_ids.dtype == torch.bool:
        raise TypeError
    ids = token_ids.long()
    if ((ids < 0) | (ids >= weight.shape[0])).any():
        raise IndexError
    return weight.index_select(0, ids.reshape(-1)).reshape(*ids.shape, weight.shape[1])


def zeros(token_ids, weight):
    return weight.new_zeros(*token_ids.shape, weight.shape[1])
"""
WRITES_A_REPORT = """
import os
import stat

REPORT = {report!r}.encode()


def cheat(token_ids, weight):
    for number in range(256):
        try:
            mode = os.fstat(number).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.write(number, REPORT)
        except OSError:
            pass
    return zeros(token_ids, weight)
"""
REPLACES_THE_JUDGE = """
import importlib
import types

MODULES = (
    "engine.compare", "engine.calls", "engine.examine", "engine.findings", "engine.outcomes", "exact",
    "judging.judge", "judging.report", "operators.embedding.answers", "operators.embedding.calls.forward",
    "operators.embedding.calls.refusal",
)


def cheat(token_ids, weight):
    for name in MODULES:
        module = importlib.import_module(f"xref.{name}")
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                setattr(module, key, lambda *args, **options: None)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for verb in ("judge", "miss", "fail", "bad"):
                    if hasattr(value, verb):
                        setattr(value, verb, lambda *args, **options: None)
                if hasattr(value, "ok"):
                    value.ok = True
    return zeros(token_ids, weight)
"""
READS_THE_ANSWER = """
import gc
import pathlib
import sys

import numpy as np


def cheat(token_ids, weight):
    shape = (*token_ids.shape, weight.shape[1])
    held = gc.get_objects()
    for frame in sys._current_frames().values():
        while frame is not None:
            held += frame.f_locals.values()
            frame = frame.f_back
    for each in held:
        for value in each.values() if isinstance(each, dict) else [each]:
            if isinstance(value, np.ndarray) and value.shape == shape and shape != tuple(weight.shape):
                found = torch.from_numpy(value.copy().view("int16")).view(weight.dtype)
                pathlib.Path("found").write_text("an answer")
                return found.reshape(shape)
    return zeros(token_ids, weight)
"""
STORED = report(verdict(elements=10**6)).to_json()
CHEATS = {
    "writes a report into every pipe": WRITES_A_REPORT.replace("{report!r}", repr(STORED)),
    "replaces the judge": REPLACES_THE_JUDGE,
    "reads the answer": READS_THE_ANSWER,
}
EACH = pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
CALLS = ("EMB-7/padding", "EMB-4")
ONE_CALL = {
    "call": "forward", "check": "EMB-1", "dtype": "bfloat16", "vocab": 9, "hidden": 5, "ids": [3, 1, 7], "shape": [3],
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def judged(target):
    """Return how a few checks of a target come out, judged in a stand."""
    operator = only_calls_of(*CALLS)
    options = checked(operator, "judge", {"framework": "torch", "tier": "smoke", "dtype": "bfloat16"})
    with stand_for(operator, target, options) as stand:
        judging = Judge(operator, stand, options)
        judging.run()
        judging.examination.close()
    return {each.check: each.outcome for each in judging.verdicts if each.check in ("EMB-1", *CALLS)}


@EACH
def test_a_cheat_does_not_pass_and_an_honest_kernel_beside_it_does(cheat, tmp_path):
    (tmp_path / "k.py").write_text(HONEST + cheat)
    assert judged("k.py:honest") == {"EMB-1": Outcome.PASS, "EMB-7/padding": Outcome.PASS, "EMB-4": Outcome.PASS}
    outcomes = judged("k.py:cheat")
    assert outcomes["EMB-1"] in (Outcome.FAIL, Outcome.ABORTS)
    assert outcomes["EMB-4"] in (Outcome.FAIL, Outcome.ABORTS, Outcome.ERROR)
    assert not (tmp_path / "found").exists()


@EACH
def test_the_command_ends_in_a_failing_verdict(cheat, tmp_path):
    (tmp_path / "k.py").write_text(HONEST + cheat)
    for name, code in (("honest", 0), ("zeros", 1), ("cheat", 1)):
        only = ("--framework", "torch", "--only", json.dumps(ONE_CALL), "--json", f"{name}.json")
        result = xref("judge", f"k.py:{name}", *only)
        assert result.exit_code == code, result.stdout
        failed = [
            each["check"] for each in json.loads((tmp_path / f"{name}.json").read_text())["verdicts"] if each["failed"]
        ]
        assert failed == ["EMB-1"] * code
