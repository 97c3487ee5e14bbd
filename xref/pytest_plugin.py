"""The pytest door: `@xref.parametrize(kernel)` makes one test of each clause and condition.

pytest loads this module at every start, so it imports neither a framework nor the judge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import pytest

if TYPE_CHECKING:
    from xref.judging.options import OptionsDict
    from xref.judging.report import CheckVerdict, JudgeReport

__all__ = ["CheckTest", "parametrize"]

_JUDGED: list[str] = []
"""What is judged on which device, for the header."""


class CheckTest:
    """One check of one kernel; calling it fails, skips or passes the test."""

    def __init__(self, check: str, report: Callable[[], JudgeReport]) -> None:
        self.check, self._report = check, report

    def __call__(self) -> None:
        """Raise `AssertionError` where the check failed; skip, or mark as an expected failure, where it says so.

        The kernel is judged when the first of its checks is asked for; the others read the same report.
        """
        __tracebackhide__ = True  # the test's own line is shown
        report = self._report()
        [verdict] = [each for each in report.verdicts if each.check == self.check]
        self._outcome(verdict, report)

    def _outcome(self, verdict: CheckVerdict, report: JudgeReport) -> None:
        __tracebackhide__ = True
        lines = [*verdict.problems[:1], *(f"consistent with {each}" for each in verdict.explanations[:3])]
        how = f"framework={report.framework!r}, device={report.device!r}, only={verdict.rerun!r}"
        lines += [f"again: xref.judge(..., {how})"] if verdict.rerun else []
        where = f"{report.candidate} on {report.framework} {report.version}, {report.device}: {verdict.check}"
        if verdict.bad:
            raise AssertionError("\n".join([f"{where}: {verdict.outcome} {verdict.reason}".rstrip(), *lines]))
        if verdict.outcome == "xfail":
            pytest.xfail(verdict.reason)
        if verdict.outcome == "skip":
            pytest.skip(verdict.reason)
        if verdict.outcome != "pass":
            pytest.xfail("\n".join(["graded only", *lines]))


def parametrize(
    target: object, *, operator: str = "embedding", name: str | None = None, **options: Unpack[OptionsDict]
) -> pytest.MarkDecorator:
    """Return the decorator that calls a test once for each check of a kernel, as its argument `check`.

        @xref.parametrize(my_kernel, framework="torch")
        def test_my_kernel(check):
            check()

    What the project's `pyproject.toml` says under `[tool.xref]` counts as on the command line.

    Args:
        target: as `xref.judge` takes it.
        operator: as `xref.judge` takes it.
        name: as `xref.judge` takes it.
        options: whatever else `xref.judge` takes; a device that is absent fails every test.
    """
    from xref import operators

    @functools.cache
    def report() -> JudgeReport:
        from xref.judging.judge import judge
        from xref.judging.settings import with_settings

        return judge(target, operator=operator, name=name, **with_settings(operators.find(operator), options))

    shown = name or getattr(target, "__qualname__", type(target).__qualname__)
    _JUDGED.append(f"{shown} ({options.get('framework') or 'framework found out'}, {options.get('device', 'cpu')})")
    checks = [check.id for check in operators.find(operator).checks]
    return pytest.mark.parametrize("check", [pytest.param(CheckTest(check, report), id=check) for check in checks])


def pytest_report_collectionfinish() -> list[str]:
    """Say in the header what is judged on which device."""
    return [f"xref judges: {', '.join(_JUDGED)}"] if _JUDGED else []
