"""What a failed check is explained by: its call fails again in that check, and two runs say the same."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from mutants.embedding_right import checked
from support.judged import judged, only_calls_of

from xref.engine.outcomes import Outcome

pytestmark = pytest.mark.torch


class Right:
    def forward(self, ids, weight):
        return F.embedding(checked(ids, weight.shape[0]), weight)

    def backward(self, ids, cotangent, vocab_size):
        flat = cotangent.reshape(-1, cotangent.shape[-1]).float()
        total = torch.zeros(vocab_size, cotangent.shape[-1])
        return total.index_add_(0, ids.reshape(-1).long(), flat).to(cotangent.dtype)


class StridesIgnored(Right):
    """Reads a table as if it were dense."""

    def forward(self, ids, weight):
        dense = torch.as_strided(weight, weight.shape, (weight.shape[1], 1), weight.storage_offset())
        return super().forward(ids, dense)


class Position(Right):
    """Wrong for the last token of rows of 19: sixteen and three of padding."""

    def forward(self, ids, weight):
        out = super().forward(ids, weight)
        if ids.ndim == 2 and ids.shape[1] == 19:
            out.view(torch.int16)[..., -1, :] ^= 1
        return out


class Cached(Right):
    """Keeps what it has returned, by the ids alone."""

    def __init__(self):
        self.kept = {}

    def forward(self, ids, weight):
        key = ids.shape, weight.shape, weight.dtype
        kept_ids, out = self.kept.get(key, (None, None))
        if kept_ids is None or not torch.equal(kept_ids, ids):
            kept_ids, out = self.kept[key] = ids.clone(), super().forward(ids, weight)
        return out.clone()


class Clamps(Right):
    def forward(self, ids, weight):
        try:
            return super().forward(ids, weight)
        except IndexError:
            if weight.shape[0] == 0 or ids.dtype == torch.uint64:
                raise
            return F.embedding(ids.long().clamp(0, weight.shape[0] - 1), weight)


class DropsSpecials(Right):
    """Takes NaN and infinities among the cotangents for zeros."""

    def backward(self, ids, cotangent, vocab_size):
        return super().backward(ids, torch.nan_to_num(cotangent, nan=0.0, posinf=0.0, neginf=0.0), vocab_size)


class CopiesTheTable(Right):
    def forward(self, ids, weight):
        return super().forward(ids, weight.clone() if weight.numel() > 1 << 22 else weight)


class Shares(Right):
    """Returns a view of the table where the ids are its rows in order."""

    def forward(self, ids, weight):
        ids = checked(ids, weight.shape[0])
        if ids.ndim == 1 and ids.numel() and torch.equal(ids, torch.arange(len(ids)) + ids[0]):
            return weight[ids[0] : ids[0] + len(ids)]
        return super().forward(ids, weight)


class Drifts(Right):
    """Another gradient at every second call."""

    calls = 0

    def backward(self, ids, cotangent, vocab_size):
        self.calls += 1
        out = super().backward(ids, cotangent, vocab_size)
        return torch.nextafter(out, out + 1) if self.calls % 2 and ids.shape == (256,) else out


def lost_for_float32(ids, weight):
    """Has a gradient for one dtype and not for another."""
    weight = weight.detach() if weight.dtype == torch.float32 else weight
    return weight.index_select(0, checked(ids, weight.shape[0]).reshape(-1)).reshape(*ids.shape, weight.shape[1])


class NumberOfTokens(Right):
    def forward(self, ids, weight):
        out = super().forward(ids, weight)
        return out + 1 if ids.numel() > 64 else out


KERNELS = {
    StridesIgnored: ("EMB-7/layout",),
    Position: ("EMB-7/padding",),
    Cached: ("EMB-7/history",),
    Clamps: ("EMB-4",),
    DropsSpecials: ("EMB-11",),
    CopiesTheTable: ("EMB-12",),
    Shares: ("EMB-5",),
    lost_for_float32: ("EMB-8",),
    Drifts: ("EMB-10/repeat", "EMB-10/split", "EMB-10/permuted"),
    NumberOfTokens: ("EMB-1",),
}
MADE_FOR = {"EMB-5": "EMB-1"}
EACH = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)


@functools.cache
def failures_of(kernel):
    operator = only_calls_of(*(MADE_FOR.get(check, check) for check in KERNELS[kernel]))
    report = judged(kernel, operator, dtype=("bfloat16", "float32"))
    return {each.check: each for each in report.verdicts if each.outcome is Outcome.FAIL}


@EACH
def test_a_failed_check_has_a_call_that_fails_again_in_that_check(kernel):
    failures = failures_of(kernel)
    assert failures.keys() >= set(KERNELS[kernel])
    for check, verdict in failures.items():
        again = judged(kernel, only=verdict.rerun)
        found = {each.check: each.outcome for each in again.verdicts}
        assert found.get(check) is Outcome.FAIL, f"{check}: {verdict.rerun}"
        assert not again.ok


@EACH
def test_a_right_kernel_passes_the_call_of_a_failure(kernel):
    for check, verdict in failures_of(kernel).items():
        if check not in ("EMB-10/split", "EMB-10/permuted"):  # they fail for whoever sums in float32
            assert judged(Right, only=verdict.rerun).ok, check


@pytest.mark.parametrize("kernel", [Clamps, DropsSpecials, NumberOfTokens], ids=lambda kernel: kernel.__name__)
def test_two_runs_say_the_same(kernel):
    first = failures_of(kernel)
    failures_of.cache_clear()
    second = failures_of(kernel)
    assert first == second
    assert all(verdict.smallest and verdict.explanations for verdict in first.values())


def test_the_smallest_call_is_small():
    [verdict] = [each for check, each in failures_of(NumberOfTokens).items() if check == "EMB-1"]
    assert " bfloat16 1x1 " in verdict.smallest
    assert " 65 int64" in verdict.smallest
