"""Contenders take turns, and the host's clock."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from xref import errors
from xref.engine.timing import Call, Clock, Contender, Timing

__all__ = ["HostClock", "Runner", "take_turns"]


class HostClock:
    """The host's clock around calls that are waited for."""

    NAME = "host"

    def __init__(self, timing: Timing, device: str) -> None:
        self._timing, self._device = timing, device
        self._laps: dict[str, list[float]] = {}

    def __enter__(self) -> HostClock:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def lap(self, key: str, call: Call, repeats: int) -> None:
        """Make the calls and note what one took."""
        begun = time.perf_counter()
        self._timing.run(call, repeats, self._device)
        self._laps.setdefault(key, []).append((time.perf_counter() - begun) / repeats)

    def seconds(self) -> dict[str, list[float]]:
        """Return what one call took, by key, lap after lap."""
        return self._laps


@dataclasses.dataclass
class Runner:
    """A contender at work."""

    contender: Contender
    call: Call | None = None
    repeats: int = 1
    problem: str = ""

    @property
    def key(self) -> str:
        """What a clock knows the contender by: a kernel may have a golden's name."""
        return f"{self.contender.kind} {self.contender.name}"

    def drop(self, error: BaseException) -> None:
        """Take the contender out, and what it holds with it."""
        self.problem, self.call = errors.described(error), None


def take_turns(runners: Sequence[Runner], rounds: int, clock: Clock) -> None:
    """Let everybody have a lap, round after round and one round more, which warms up; who raises is out."""
    with clock:
        for _ in range(rounds + 1):
            for runner in runners:
                if runner.call is not None:
                    try:
                        clock.lap(runner.key, runner.call, runner.repeats)
                    except (Exception, SystemExit) as error:  # anybody's kernel
                        runner.drop(error)
