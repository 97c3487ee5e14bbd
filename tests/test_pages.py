"""README.md and the page of each contract show what the code does: what is generated is made anew, examples run.

An example names the frameworks that it needs, `<!-- run: torch jax -->`. The comments that end it are what it prints.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.processes import run_pytest

from xref import operators

ROOT = Path(__file__).parent.parent


def load_tool():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()
PAGES = {page: TOOL.read(page) for page in TOOL.PAGES}
EXAMPLES = {page: re.findall(r"<!-- run: ([\w ]+) -->\n```python\n(.*?)```", PAGES[page], re.DOTALL) for page in PAGES}
PROGRAMS = [(page, needs) for page in PAGES for needs in dict.fromkeys(needs for needs, _ in EXAMPLES[page])]


def comparable(text: str) -> str:
    """Leave out versions."""
    return re.sub(r"(torch|jax) \d\S* on", r"\1 VERSION on", text)


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("page", PAGES)
def test_the_generated_parts_are_those_of_today(page):
    assert comparable(TOOL.filled(PAGES[page])) == comparable(PAGES[page])


@pytest.mark.parametrize("page", PAGES)
def test_every_python_example_runs_somewhere(page):
    files = len(re.findall(r"<!-- file: [^>]+ -->\n```python\n", PAGES[page]))
    assert len(EXAMPLES[page]) == PAGES[page].count("```python") - files


def test_what_is_generated_stands_where_it_belongs():
    marks = {page: set(re.findall(r"<!-- (verify-output|clauses|checks|judged)\b", PAGES[page])) for page in PAGES}
    assert marks == {
        "README.md": {"judged"},
        "docs/contracts/embedding.md": {"clauses"},
        "docs/goldens.md": set(),
        "docs/judging-a-kernel.md": {"checks", "judged"},
        "docs/verifying.md": {"verify-output"},
    }


def test_the_readme_is_short_enough_to_be_read():
    lines = PAGES["README.md"].splitlines()
    assert len(lines) < 180


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_judge_is_run(page):
    assert PAGES[page].count("$ xref") == len(
        re.findall(r"<!-- judged: [^>]+ -->\n```console\n\$ xref judge", PAGES[page])
    )


def test_links_to_files_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    prose = {page: re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL) for page in pages}
    links = [page.parent / link for page in pages for link in re.findall(r"\]\(([\w./-]+)\)", prose[page])]
    assert ROOT / "docs/contracts/embedding.md" in links
    assert [link for link in links if not link.exists()] == []


def test_the_layers_that_contributors_read_are_those_that_the_linter_holds():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    [layers] = [each["layers"] for each in settings["contracts"] if each["type"] == "layers"]
    shown = " > ".join(f"`{layer}`" for layer in layers)
    assert f"- **Layers.** {shown}.\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "needs"),
    [
        pytest.param(page, needs, marks=[getattr(pytest.mark, name) for name in needs.split()], id=f"{page}-{needs}")
        for page, needs in PROGRAMS
    ],
)
def test_the_examples_run_in_order_and_print_what_they_say(page, needs):
    codes = [code for needed, code in EXAMPLES[page] if needed == needs]
    printed = [line for code in codes for line in re.search(r"(?:^# .*\n)*\Z", code, re.MULTILINE)[0].splitlines()]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(codes)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [line.removeprefix("# ") for line in printed]


@pytest.mark.torch
def test_the_tests_that_a_page_shows_pass(tmp_path):
    page = "docs/judging-a-kernel.md"
    shown = [found for found in TOOL.STEPS.finditer(PAGES[page]) if found["file"] and found["file"].endswith(".py")]
    for found in shown:
        with (tmp_path / found["file"]).open("a" if found["more"] else "w") as file:
            file.write(found["content"])
    assert [path.name for path in tmp_path.glob("test_*.py")] == ["test_my_kernels.py"]
    done, cases = run_pytest(tmp_path)
    assert (done.returncode, len(cases)) == (0, len(operators.find("embedding").checks))
    assert cases["test_embedding[EMB-7/padding]"][0] == "passed"
