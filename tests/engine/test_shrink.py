"""The smallest call that still fails in the same way, in a budget of calls."""

from __future__ import annotations

import pytest
from support.toy import EXAM, Doubles, Subject

from xref.engine.shrink import smallest

LARGE = Doubles(check="T-1", count=257, rows=300, first=9, odd="strided")


def shrunk(wrong, call=LARGE, budget=60):
    """Return the smallest call that still fails, its failure, and how many calls that took."""
    subject = Subject(wrong)

    def make(other):
        script = other.script(EXAM)
        return other.judge(script, subject.perform(script), EXAM)

    [failure] = make(call).failures
    subject.made.clear()
    small, last = smallest(call, failure, make, budget)
    assert small == call or make(small).failures == [last]
    return small, len(subject.made) - (small != call)


def where(holds):
    return lambda call: "out[0]: wrong" if holds(call) else ""


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        (lambda call: True, Doubles(check="T-1")),
        (lambda call: call.count > 33, Doubles(check="T-1", count=34)),
        (lambda call: call.count * call.rows >= 512, Doubles(check="T-1", count=2, rows=256)),
        (lambda call: call.odd, Doubles(check="T-1", odd="strided")),
        (lambda call: call.first and call.rows > 2, Doubles(check="T-1", rows=3, first=9)),
        (lambda call: call == LARGE, LARGE),
    ],
    ids=["always", "more than 33", "a product", "unusual", "another start", "that call alone"],
)
def test_what_it_does_not_take_is_gone(holds, expected):
    found, _ = shrunk(where(holds))
    assert found == expected


def test_another_failure_is_not_taken_for_this_one():
    """It raises above 16, and gives wrong bits up to 4; where it dies, it does neither."""

    def wrong(call):
        if call.count > 16:
            raise RuntimeError(f"too many: {call.count}")
        if call.count > 8:
            raise MemoryError("death by SIGKILL")
        if call.count > 4:
            raise ValueError("odd")
        return "out[3]: wrong"

    assert shrunk(wrong)[0].count == 17
    assert shrunk(wrong, Doubles(check="T-1", count=12))[0].count == 9
    assert shrunk(wrong, Doubles(check="T-1", count=7))[0].count == 5


def test_wrong_bits_at_another_place_are_the_same_failure():
    assert shrunk(lambda call: f"out[{call.count}, {call.rows}]: got {call.first}, expected 2")[0] == Doubles(
        check="T-1"
    )


@pytest.mark.parametrize("budget", [0, 1, 5, 20])
def test_it_never_takes_more_calls_than_it_may(budget):
    found, calls = shrunk(where(lambda call: call.count > 100 and call.rows > 101), budget=budget)
    assert calls <= budget
    assert budget or found == LARGE


def test_two_searches_find_the_same():
    holds = where(lambda call: call.count % 7 > 2)
    assert shrunk(holds, budget=9) == shrunk(holds, budget=9)
