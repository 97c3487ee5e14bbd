"""A judge in a process of its own: what kills a candidate is then a verdict, and the rest still runs.

The parent starts this module, writes the options to its stdin and reads messages from its stdout: `part` and its name
when a part of the examination begins and while it goes on, and at last `report JSON`. If the process dies, or is silent
for too long, the part that was running is left out of the next try. Ctrl-C reaches both: the child ignores it, and the
parent ends the child.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from xref import errors
from xref.judge.isolate import die_with_parent, signal_name
from xref.judge.judge import judge
from xref.judge.judged import JudgeReport
from xref.targets import load_target

__all__ = ["Options", "supervised"]

_LOADED_WITHIN = 1200.0  # seconds: a module may compile its kernels first
_SILENCE = 330.0  # seconds without a word; a loop of Python is ended by the child itself, a little before
_CLOSING = 1.0
_LOADING = "loading"
_TRIES = 7  # one more than there are parts
_CHILD = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from xref.judge.worker import main; main()"


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
        UsageError: as `judge` and `load_target` raise it, or the target cannot even be loaded.
    """
    without, part, died = dict(options.without), "", ""
    for _ in range(_TRIES):
        report, part, died = _tried(msgspec.structs.replace(options, without=without), progress)
        if report is not None:
            return report
        if part == _LOADING or part in without:
            break
        without[part] = died
    raise errors.UsageError(errors.message(options.target, f"{died} in part {part!r}", "it to end", "judge"))


def _tried(options: Options, progress: Callable[[str, int, int], None] | None) -> tuple[JudgeReport | None, str, str]:
    """Return the report, or the part that was running and how the process died."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    if child.stdin is None or child.stdout is None:
        raise errors.UsageError(errors.message("process", "no pipes", "pipes to it", "judge"))
    child.stdin.write(msgspec.json.encode(options).decode())
    child.stdin.close()
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
    reader.start()
    part, died = _LOADING, ""
    try:
        while True:
            seconds = _LOADED_WITHIN if part == _LOADING else _SILENCE
            try:
                line = lines.get(timeout=seconds)
            except queue.Empty:
                died = f"no answer within {seconds:g} s"
                child.kill()
                break
            if line is None:
                break
            kind, _, rest = line.rstrip("\n").partition(" ")
            if kind == "part":
                done, total, part = rest.split(" ", 2)
                if progress is not None:
                    progress(part, int(done), int(total))
            elif kind == "usage":
                raise errors.UsageError(msgspec.json.decode(rest))
            elif kind == "report":
                child.kill()  # whatever the candidate still has running
                return msgspec.json.decode(rest, type=JudgeReport), part, ""
    except BaseException:  # Ctrl-C among them
        child.kill()
        raise
    finally:
        code = child.wait()
        reader.join(_CLOSING)  # a process that the candidate left behind may hold the other end
        if not reader.is_alive():
            child.stdout.close()
    if not died:
        died = f"death by {signal_name(-code)}" if code < 0 else f"exit with code {code}"
    return None, part, died


def _read(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def main() -> None:
    """Judge what stdin names, and say on stdout how it goes; a candidate's own output goes to stderr."""
    die_with_parent()
    options = msgspec.json.decode(sys.stdin.buffer.read(), type=Options)
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
                # The part's own name comes last, as it may have spaces.
                progress=lambda part, done, total: say("part", f"{done} {total} {part}"),
                **rest,
            )
        except errors.UsageError as error:
            say("usage", msgspec.json.encode(str(error)).decode())
        else:
            say("report", msgspec.json.encode(report).decode())
