"""README.md shows what the code does: its generated parts are made anew, its examples run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", TEXT, re.DOTALL)


def tool():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_versions(text: str) -> str:
    return re.sub(r"(torch|jax) \d\S* on", r"\1 VERSION on", text)


@pytest.mark.torch
@pytest.mark.jax
def test_the_generated_parts_are_those_of_today():
    assert without_versions(tool().filled(TEXT)) == without_versions(TEXT)


def test_every_python_example_runs_somewhere():
    assert len(EXAMPLES) == TEXT.count("```python") > 0


@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "jax")]
)
def test_the_examples_run_in_order_and_print_what_they_say(framework):
    code = "\n".join(example for name, example in EXAMPLES if name == framework)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == re.findall(r"^# (token_ids: .*)$", code, re.MULTILINE)
