"""The examination: every check's calls are made, failures are followed up, and a process that ends costs no more."""

from __future__ import annotations

import pytest
from support.toy import EXAM, Doubles, Subject, check_of, operator_of

from xref.engine.examine import Examination
from xref.engine.findings import Findings, note
from xref.engine.outcomes import Outcome, outcome_of
from xref.spec import Failure, Seen


def call(count=1, **more):
    return Doubles(check="T-1", count=count, **more)


@pytest.fixture(params=[False, True], ids=["here", "elsewhere"])
def examined(request):
    """Return what examines a subject in this process, or one that is waited for in a thread."""

    def run(wrong, *checks, follow_up=lambda call, seen: (), progress=None):
        subject = Subject(wrong, elsewhere=request.param)
        found = Examination(operator_of(*checks, follow_up=follow_up), EXAM, subject)
        found.run(progress=progress)
        found.close()
        return found

    return run


def right(call):
    return ""


def outcomes(found):
    return {check: str(outcome_of(findings)) for check, findings in found.findings.items()}


def test_every_call_of_every_check_is_made_in_order_and_counted(examined):
    steps = []
    checks = check_of("T-1", call(2), call(3)), check_of("T-2", call(4))
    found = examined(right, *checks, progress=lambda *at: steps.append(at))
    assert [(made.check, made.count) for made in found.subject.made] == [("T-1", 2), ("T-1", 3), ("T-2", 4)]
    assert [(name, findings.cases, findings.elements) for name, findings in found.findings.items()] == [
        ("T-1", 2, 5), ("T-2", 1, 4), ("T-3", 3, 3),
    ]  # fmt: skip
    assert steps == [("T-1", 0, 2), ("T-2", 1, 2)]
    assert found.stopped == {}


def test_sweeps_that_yield_nothing_are_an_error(examined):
    assert outcomes(examined(right, check_of("T-1"), check_of("T-2", call()))) == {
        "T-1": "error", "T-2": "pass", "T-3": "pass",
    }  # fmt: skip


def test_a_check_that_says_why_it_is_not_made_is_skipped(examined):
    found = examined(right, check_of("T-1", "no such thing", "no such thing"), check_of("T-2", "not all", call()))
    assert outcomes(found) == {"T-1": "skip", "T-2": "pass", "T-3": "pass"}
    assert found.findings["T-1"].skipped == ["no such thing"]


def test_a_failure_stops_nothing_and_is_kept_with_its_call(examined):
    wrong = lambda made: "out[0]: wrong" if made.count == 2 else ""  # noqa: E731
    found = examined(wrong, check_of("T-1", call(1), call(2), call(3)))
    assert outcomes(found)["T-1"] == "fail"
    assert found.findings["T-1"].cases == 3
    assert [finding.call for finding in found.findings["T-1"].failures] == [call(2)]


def test_the_first_failures_of_a_check_are_followed_up(examined):
    found = examined(
        lambda made: "out[0]: wrong",
        check_of("T-1", *(call(n) for n in range(1, 6))),
        follow_up=lambda made, seen: [Doubles(check=made.check, count=made.count + 100)],
    )
    assert [made.count for made in found.subject.made] == [1, 2, 3, 4, 5, 101, 102, 103]
    assert found.findings["T-1"].failed == 8


def dies(made):
    raise MemoryError("death by SIGSEGV")


def test_a_check_whose_calls_end_the_process_is_not_made_to_its_end(examined):
    found = examined(
        lambda made: dies(made) if made.check == "T-1" else "", check_of("T-1", *[call()] * 20), check_of("T-2", call())
    )
    assert sum(made.check == "T-1" for made in found.subject.made) < 6
    assert list(found.stopped) == ["T-1"]
    assert found.stopped["T-1"].startswith("not made to its end: the process ended ")
    assert outcomes(found) == {"T-1": "aborts", "T-2": "pass", "T-3": "pass"}
    assert found.findings["T-1"].failures[0].failure.detail == "the last\n words\n"


def test_at_last_nothing_is_made_any_more(examined):
    found = examined(dies, *(check_of(f"T-1/{n}", *[call()] * 20) for n in range(5)))
    assert len(found.subject.made) < 12
    assert found.stopped["T-1/4"] == f"not made: the process ended {len(found.subject.made)} times before"
    assert outcomes(found)["T-1/4"] == "error"


@pytest.mark.parametrize(("required", "outcome"), [(True, "skip"), (False, "error")])
def test_what_is_compared_with_plain_calls_is_not_made_where_those_are_wrong(required, outcome, examined):
    class Varied(Doubles, frozen=True, kw_only=True, tag="varied"):
        def judge(self, script, replies, exam):
            seen = Seen()
            seen.fail("T-1", "out: wrong", 1, call=call())
            return seen

    found = examined(right, check_of("T-1", required=required), check_of("T-2", Varied(check="T-2")))
    assert outcomes(found) == {"T-1": "fail", "T-2": outcome, "T-3": "error"}
    assert found.findings["T-2"].skipped == ["the same calls made plainly are wrong: T-1"] * required
    assert found.findings["T-1"].failures[0].call == call()


# What is found


def test_a_finding_names_the_call_that_fails_with_the_check_that_it_fails():
    seen = Seen()
    seen.fail("T-2", "out: wrong", 4)
    seen.fail("T-3", "out: misformed", 2, call=call(7))
    seen.ok("T-2", 5)
    seen.ok("T-1", 3)
    seen.skipped["T-1"] = "in part"
    findings = {check: Findings() for check in ("T-1", "T-2", "T-3")}
    note(call(9), seen, findings)
    assert [(found.cases, found.elements, found.failed) for found in findings.values()] == [
        (1, 3, 0),
        (1, 4, 1),
        (1, 2, 1),
    ]
    assert findings["T-2"].failures[0].call == Doubles(check="T-2", count=9)
    assert findings["T-3"].failures[0].call == Doubles(check="T-3", count=7)
    assert findings["T-1"].skipped == ["in part"]


def test_so_many_failures_are_kept_and_all_are_counted():
    findings = {"T-1": Findings()}
    for n in range(100):
        note(call(n), Seen(failures=[Failure("T-1", "out: wrong")]), findings)
    assert (findings["T-1"].failed, len(findings["T-1"].failures)) == (100, 40)


def found_of(*, passed=0, failed=0, aborts=0, skipped=(), elements=10):
    findings = {"T-1": Findings(skipped=list(skipped))}
    for _ in range(passed):
        note(call(), Seen(passed={"T-1": elements}), findings)
    for n in range(failed + aborts):
        note(call(), Seen(failures=[Failure("T-1", "out: wrong", elements, aborts=n >= failed)]), findings)
    return findings["T-1"]


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (found_of(passed=2), Outcome.PASS),
        (found_of(passed=2, failed=1), Outcome.FAIL),
        (found_of(passed=2, aborts=1), Outcome.ABORTS),
        (found_of(failed=1, aborts=1), Outcome.FAIL),
        (found_of(), Outcome.ERROR),
        (found_of(passed=2, elements=0), Outcome.ERROR),
        (found_of(skipped=["no"]), Outcome.SKIP),
        (found_of(passed=1, skipped=["no"]), Outcome.PASS),
        (found_of(failed=1, skipped=["no"]), Outcome.FAIL),
    ],
)
def test_outcomes(found, outcome):
    assert outcome_of(found) is outcome
