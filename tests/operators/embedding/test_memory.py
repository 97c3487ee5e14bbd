"""The memory of a call: its output passes, a copy of the table does not."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
import torch.nn.functional as F
from support.examined import examined

from xref.engine.steps import Count, Died, Done, NotMade, Raised, Replies
from xref.operators.embedding import OPERATOR, faults
from xref.operators.embedding.calls.memory import PeakMemory
from xref.operators.embedding.examine.conduct import memory, memory_of_strided
from xref.spec import Exam, Tier, Traits

pytestmark = pytest.mark.torch


def right(ids, weight):
    return F.embedding(ids.long(), weight)


def whole_table(ids, weight):
    return weight.double()[ids].to(weight.dtype)


class CachedOnce:
    """Copies the first table that it sees, and looks it up there until another comes."""

    def __init__(self):
        self.place, self.copy = 0, None

    def forward(self, ids, weight):
        if self.place != weight.data_ptr():
            self.place, self.copy = weight.data_ptr(), weight.clone()
        return self.copy[ids]


def memory_of(kernel, check=memory, tier=Tier.SMOKE, **how):
    return examined(kernel, check, tier=tier, **how)[check.id]


def test_a_plain_gather_takes_its_output():
    found = memory_of(right)
    assert (found.failed, found.skipped, found.elements) == (0, [], 64)


@pytest.mark.parametrize("kernel", [whole_table, CachedOnce, lambda ids, weight: weight.clone()[ids]])
def test_a_copy_of_the_table_is_found(kernel):
    [finding] = memory_of(kernel).failures
    how = r"peak extra memory: got \d{8} bytes, expected at most 4204134 \(the table has 19447808\)"
    assert re.fullmatch(how, finding.failure.message)
    assert [suspect.fault for suspect in finding.failure.suspects] == [faults.WHOLE_TABLE_COPIED.name]
    assert str(finding.call) == "forward, bfloat16 table of 151936 x 64, 64 ids"
    assert OPERATOR.call(finding.call.to_json()) == finding.call


def test_a_table_that_is_made_dense_is_only_graded():
    def dense(ids, weight):
        return F.embedding(ids, weight.contiguous())

    assert memory_of(dense, tier=Tier.STANDARD).failed == 0
    [finding] = memory_of(dense, memory_of_strided, Tier.STANDARD).failures
    assert (finding.call.check, finding.call.layout) == ("EMB-12/strided", "transposed")
    assert memory_of(right, memory_of_strided, Tier.STANDARD).failed == 0
    assert memory_of(right, memory_of_strided).skipped == ["not in the smoke tier"]
    assert not memory_of_strided.required


def test_a_table_that_wants_a_gradient_is_tried_too():
    def copying(ids, weight):
        return (weight.clone() if weight.requires_grad else weight)[ids]

    [finding] = memory_of(copying, tier=Tier.STANDARD).failures
    assert finding.call.mode == "requires_grad"


def test_memory_that_cannot_be_measured_is_said():
    def fails(ids, weight):
        raise RuntimeError("no")

    found = memory_of(fails)
    assert (found.skipped, found.cases) == (["forward's memory cannot be measured: RuntimeError: no"], 0)


def exam(*, golden=False):
    traits = Traits(
        name="it", framework="torch", version="", device="cpu", device_name="CPU", verbs=("forward",), golden=golden
    )
    return Exam(traits=traits, tier=Tier.SMOKE, dtypes=("float32",))


@pytest.mark.parametrize(
    ("reply", "golden", "message"),
    [
        (Died(how="death by SIGKILL"), False, "process: got death by SIGKILL, expected a result"),
        (Raised(type="E", line="E: no"), True, "peak extra memory: got E: no, expected a number"),
        (Count(value=4_456_448), True, ""),
        (
            Count(value=4_456_449),
            True,
            "peak extra memory: got 4456449 bytes, expected at most 4456448 (the table has 19447808)",
        ),
        (NotMade(why="weight was not made"), False, None),
    ],
)
def test_what_comes_of_a_measurement(reply, golden, message):
    call = PeakMemory(check="EMB-12", verb="grad_rows", dtype="float32")
    script = call.script(exam(golden=golden))
    seen = call.judge(script, Replies(script, [Done()] * 3 + [reply]), exam(golden=golden))
    if message is None:
        assert seen.skipped == {"EMB-12": "grad_rows's memory cannot be measured: weight was not made"}
    else:
        assert [failure.message for failure in seen.failures] == ([message] if message else [])
        assert bool(seen.passed) == (not message)


@pytest.mark.parametrize(
    "text", ['"verb":"forward_fp32","dtype":"float64"', '"dtype":"int8"', '"dtype":"float32","layout":"x"']
)
def test_what_no_report_holds_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        OPERATOR.call('{"call":"peak-memory","check":"EMB-12",' + text + "}")
