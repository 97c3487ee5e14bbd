"""`xref compile` for TPUs that are not here, by their compiler, where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import MAIN
from support.processes import path_of_package

__all__ = ["for_tpus", "needs_tpu_compiler", "report_for_tpus"]

needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU's compiler is not installed: pip install 'xref[tpu]'"
)


def for_tpus(*args):
    """Run the command in a Python of its own: JAX reads the settings for it once, when it is imported."""
    command = [sys.executable, "-c", MAIN, "compile", *map(str, args)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path_of_package()},
        check=False,
        timeout=300,
    )


def report_for_tpus(*args):
    done = for_tpus(*args, "--json", "r.json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(Path("r.json").read_text())
