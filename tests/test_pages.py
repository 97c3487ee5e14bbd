"""README.md and the page of each contract show what the code does: what is generated is made anew, examples run.

An example names the frameworks that it needs, `<!-- run: torch jax -->`. The comments that end it are what it prints.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_pytest_plugin import run

from xref.judge.checks import check_ids

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
    """Leave out versions, and what a slow machine has less time for: less likely explanations, and a smaller call."""
    text = re.sub(
        r"((?:^  consistent with .*\n)+)", lambda found: found[1].partition("\n")[0] + "\n", text, flags=re.MULTILINE
    )
    text = re.sub(r"^(  (?:smallest|again): ).*", r"\1...", text, flags=re.MULTILINE)
    return re.sub(r"(torch|jax) \d\S* on", r"\1 VERSION on", text)


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("page", PAGES)
def test_the_generated_parts_are_those_of_today(page):
    assert "<!-- clauses -->\n" in PAGES[page] or "<!-- checks -->\n" in PAGES[page]
    assert comparable(TOOL.filled(PAGES[page])) == comparable(PAGES[page])


@pytest.mark.parametrize("page", PAGES)
def test_every_python_example_runs_somewhere(page):
    files = len(re.findall(r"<!-- file: [^>]+ -->\n```python\n", PAGES[page]))
    assert len(EXAMPLES[page]) == PAGES[page].count("```python") - files > 0


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_judge_is_run(page):
    assert PAGES[page].count("$ xref") == len(
        re.findall(r"<!-- judged: [^>]+ -->\n```console\n\$ xref judge", PAGES[page])
    )


def test_links_to_files_lead_somewhere():
    prose = {page: re.sub(r"```.*?```", "", text, flags=re.DOTALL) for page, text in PAGES.items()}
    links = [(ROOT / page).parent / link for page in PAGES for link in re.findall(r"\]\(([\w./-]+)\)", prose[page])]
    assert ROOT / "docs/contracts/embedding.md" in links
    assert [link for link in links if not link.exists()] == []


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
    done, cases = run(tmp_path)
    assert (done.returncode, len(cases)) == (0, len(check_ids()))
    assert cases["test_embedding[EMB-7/padding]"][0] == "passed"
