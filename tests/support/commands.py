"""The command line as tests run it: in this process, or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from xref.cli import app

MAIN = "from xref.cli import main; main()"


def xref(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="xref")


def stopped(code, *args):
    """Return the one line that a command which could not run leaves on stderr."""
    result = xref(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    line, end, rest = result.stderr.partition("\n")
    assert (end, rest) == ("\n", "")
    assert line.startswith("xref: ")
    return line.removeprefix("xref: ")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def process(code, *args, **how):
    """Start the command in a Python of its own, `code` first."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how}
    return subprocess.Popen([sys.executable, "-W", "error", "-c", f"{code}\n{MAIN}", *map(str, args)], **how)


def into_a_full_disk(code, *args):
    """Return exit code and stderr of a command whose output cannot be written."""
    with Path("/dev/full").open("wb") as full:
        running = process(code, *args, stdout=full)
        _, stderr = running.communicate(timeout=120)
    return running.returncode, stderr


def finished(code, *args):
    running = process(code, *args)
    stdout, stderr = running.communicate(timeout=120)
    return running.returncode, stdout, stderr
