"""A judge in a process of its own: what kills a candidate is then a verdict, and the rest still runs.

The parent starts this module, writes the options to its stdin and reads messages from its stdout: `part NAME` before a
part of the examination begins, and at last `report JSON`. If the process dies, or is silent for too long, the part that
was running is left out of the next try.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from xref import errors
from xref.judge.judge import judge
from xref.judge.judged import JudgeReport
from xref.targets import load_target

__all__ = ["Options", "supervised"]

_SILENCE = 300.0  # seconds that a part may take
_TRIES = 4


class Options(msgspec.Struct, kw_only=True):
    """What `judge` takes, with the target as `pkg.mod:name` or `path/to/file.py:name`."""

    target: str
    framework: str | None = None
    device: str = "cpu"
    tier: str = "standard"
    dtype: tuple[str, ...] = ()
    accumulate: str = "float32"
    out_of_range: str = "raise"
    require: tuple[str, ...] = ()
    expect_fail: dict[str, str] = {}
    only: str | None = None
    without: dict[str, str] = {}


def supervised(options: Options, *, progress: Callable[[str, int, int], None] | None = None) -> JudgeReport:
    """Judge a target in a child process; a part that kills it is left out, and counts as failed.

    Raises:
        UsageError: as `judge` and `load_target` raise it.
        MissingFrameworkError: a framework is not installed.
    """
    without, died = dict(options.without), ""
    for _ in range(_TRIES):
        report, part, died = _tried(msgspec.structs.replace(options, without=without), progress)
        if report is not None:
            return report
        without[part] = died
    raise errors.UsageError(
        errors.message(options.target, f"{died} {_TRIES} times", "a kernel that can be called", "judge")
    )


def _tried(options: Options, progress: Callable[[str, int, int], None] | None) -> tuple[JudgeReport | None, str, str]:
    """Return the report, or the part that was running and how the process died."""
    child = subprocess.Popen(
        [sys.executable, "-m", "xref.judge.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if child.stdin is None or child.stdout is None:
        raise errors.UsageError(errors.message("process", "no pipes", "pipes to it", "judge"))
    child.stdin.write(msgspec.json.encode(options).decode())
    child.stdin.close()
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
    reader.start()
    part, died = "loading", ""
    try:
        while True:
            try:
                line = lines.get(timeout=_SILENCE)
            except queue.Empty:
                child.kill()
                died = f"no answer within {_SILENCE:g} s"
                break
            if line is None:
                break
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind == "part":
                part, done, total = rest.rsplit(" ", 2)
                if progress is not None:
                    progress(part, int(done), int(total))
            elif kind == "usage":
                raise errors.UsageError(msgspec.json.decode(rest))
            elif kind == "missing":
                raise errors.MissingFrameworkError(rest, "judge")
            elif kind == "report":
                return msgspec.json.decode(rest, type=JudgeReport), part, ""
    finally:
        child.kill() if child.poll() is None and died else None
        code = child.wait()
        reader.join()
        child.stdout.close()
    if not died:
        died = f"death by {signal.Signals(-code).name}" if code < 0 else f"exit with code {code}"
    return None, part, died


def _read(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def main() -> None:
    """Judge what stdin names, and say on stdout how it goes; a candidate's own output goes to stderr."""
    options = msgspec.json.decode(sys.stdin.read(), type=Options)
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as out:
        os.dup2(2, 1)

        def say(kind: str, rest: str) -> None:
            out.write(f"{kind} {rest}\n")

        try:
            target = load_target(options.target, "judge")
            rest = msgspec.structs.asdict(options)
            del rest["target"]
            report = judge(
                target,
                name=options.target.rpartition("/")[2],
                progress=lambda part, done, total: say("part", f"{part} {done} {total}"),
                **rest,
            )
        except errors.UsageError as error:
            say("usage", msgspec.json.encode(str(error)).decode())
        else:
            say("report", msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()
