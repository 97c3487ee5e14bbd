"""The pytest door: `@xref.parametrize(kernel)` makes one test of each clause and condition.

pytest loads this module at every start, so it imports neither a framework nor the judge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xref.judge.judged import Judged, JudgeReport

__all__ = ["Verdict", "parametrize"]

_JUDGED: list[str] = []
"""What is judged on which device, for the header."""


class Verdict:
    """One check of one kernel; calling it fails, skips or passes the test."""

    def __init__(self, check: str, report: Callable[[], JudgeReport]) -> None:
        self.check, self._report = check, report

    def __call__(self) -> None:
        """Raise `AssertionError` where the check failed; skip, or mark as an expected failure, where it says so.

        The kernel is judged when the first of its checks is asked for; the others read the same report.
        """
        __tracebackhide__ = True  # the test's own line is shown
        report = self._report()
        if report.broken:
            broken = "; ".join(f"{part}: {why}" for part, why in report.broken.items())
            raise AssertionError(f"{report.candidate}: {broken}")
        [verdict] = [each for each in report.verdicts if each.check == self.check]
        self._outcome(verdict, report)

    def _outcome(self, verdict: Judged, report: JudgeReport) -> None:
        __tracebackhide__ = True
        told = [*verdict.problems[:1], *(f"consistent with {each}" for each in verdict.explanations[:3])]
        how = f"framework={report.framework!r}, device={report.device!r}, only={verdict.rerun!r}"
        told += [f"again: xref.judge(..., {how})"] if verdict.rerun else []
        where = f"{report.candidate} on {report.framework} {report.version}, {report.device}: {verdict.check}"
        if verdict.bad:
            raise AssertionError("\n".join([f"{where}: {verdict.outcome} {verdict.reason}".rstrip(), *told]))
        if verdict.outcome == "xfail":
            pytest.xfail(verdict.reason)
        if verdict.outcome == "skip":
            pytest.skip(verdict.reason)
        if verdict.outcome != "pass":
            pytest.xfail("\n".join(["graded only", *told]))


def parametrize(target: object, *, framework: str | None = None, device: str = "cpu", **options: Any) -> Any:
    """Return the decorator that calls a test once for each check of a kernel, as its argument `check`.

        @xref.parametrize(my_kernel, framework="torch")
        def test_my_kernel(check):
            check()

    Args:
        target: as `xref.judge` takes it.
        framework: as `xref.judge` takes it.
        device: as `xref.judge` takes it; one that is absent fails every test.
        options: whatever else `xref.judge` takes.
    """
    from xref.judge.checks import check_ids

    @functools.cache
    def report() -> JudgeReport:
        from xref.judge.judge import judge

        return judge(target, framework=framework, device=device, **options)

    name = options.get("name") or getattr(target, "__qualname__", type(target).__qualname__)
    _JUDGED.append(f"{name} ({framework or 'framework found out'}, {device})")
    return pytest.mark.parametrize("check", [pytest.param(Verdict(check, report), id=check) for check in check_ids()])


def pytest_report_collectionfinish() -> list[str]:
    """Say in the header what is judged on which device."""
    return [f"xref judges: {', '.join(_JUDGED)}"] if _JUDGED else []
