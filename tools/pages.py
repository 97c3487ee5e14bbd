"""Fill the generated parts of the pages: what the commands print, and the tables of clauses and checks.

python tools/pages.py

A page may name a file, `<!-- file: my_kernels.py -->` (or `, more`), and show under it what is in it; and a command, in
the first line of a block, and the checks of which it shows what the command prints: `<!-- judged: EMB-1, EMB-4 -->`.
Their rows of the table are shown if `table` stands among them. `...` stands for what is left out.
"""

from __future__ import annotations

import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from rich.console import Console

from xref import operators
from xref.verifying.report import show
from xref.verifying.verify import verify

ROOT = pathlib.Path(__file__).parent.parent
PAGES = (
    "README.md",
    "docs/contracts/embedding.md",
    "docs/goldens.md",
    "docs/judging-a-kernel.md",
    "docs/verifying.md",
)
EMBEDDING = operators.find("embedding")
_VERIFY = re.compile(r"(<!-- verify-output -->\n```text\n).*?(\n```)", re.DOTALL)
_CLAUSES = re.compile(r"(<!-- clauses -->\n).*?(\n\n)", re.DOTALL)
_CHECKS = re.compile(r"(<!-- checks -->\n).*?(\n\n)", re.DOTALL)
STEPS = re.compile(
    r"<!-- file: (?P<file>[\w.]+)(?P<more>, more)? -->\n```\w+\n(?P<content>.*?)```"
    r"|(?P<head><!-- judged: (?P<checks>[^>]+) -->\n```console\n\$ xref (?P<command>[^\n]+)\n)(?:.*?\n)??```",
    re.DOTALL,
)


def verify_output() -> str:
    """Return what `xref verify --tier smoke --dtype bfloat16 --device cpu` prints into a pipe."""
    printed = io.StringIO()
    show(verify(tier="smoke", dtype=("bfloat16",), device=("cpu",)), Console(file=printed, width=120))
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())


def clause_table() -> str:
    """Return the clauses as a Markdown table."""
    rows = [f"| {clause.id} {clause.title} | {clause.statement} |" for clause in EMBEDDING.clauses]
    return "\n".join(["| clause | what must hold |", "|---|---|", *rows])


def check_table() -> str:
    """Return the checks of a judge as a Markdown table, a row for each judgment."""
    rows = []
    for judgment in dict.fromkeys(check.judgment for check in EMBEDDING.checks):
        some = [check for check in EMBEDDING.checks if check.judgment == judgment]
        required = ", ".join(check.id for check in some if check.required)
        rows.append(f"| {judgment} | {required} | {', '.join(check.id for check in some if not check.required)} |")
    return "\n".join(["| judgment | required | graded |", "|---|---|---|", *rows])


def judged(command: str, checks: list[str], folder: pathlib.Path) -> str:
    """Return what a command prints into a pipe, run in a folder: the rows and lines of some checks, and the end."""
    done = subprocess.run(
        [sys.executable, "-c", "from xref.cli import main; main()", *shlex.split(command)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"xref {command}: got exit {done.returncode}: {done.stderr}")
    *lines, statement = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    rule = next(n for n, line in enumerate(lines) if line.startswith(" ─")) + 1
    start = rule if "table" in checks else lines.index("", rule)
    shown, on = lines[rule - 2 : rule] if start == rule else [], False
    for line in lines[start:]:
        begins = re.match(r"(?: \w*)? +(EMB-[\d/a-z]+(?: sign)?)  |(EMB-[\d/a-z]+(?: sign)?)(?::| \()", line)
        if begins:
            on = (begins[1] or begins[2]) in checks
        if on or not line:
            shown.append(line)
        elif not shown or shown[-1] != "...":
            shown.append("...")
    return "\n".join([*shown, statement]).lstrip("\n").replace("...\n\n...\n", "...\n")


def in_order(text: str) -> str:
    """Return a page's text with the output of its commands made anew, each run beside the files shown before it."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def made(found: re.Match[str]) -> str:
            if found["file"]:
                with (folder / found["file"]).open("a" if found["more"] else "w", encoding="utf-8") as file:
                    file.write(found["content"])
                return found[0]
            return found["head"] + judged(found["command"], found["checks"].split(", "), folder) + "\n```"

        return STEPS.sub(made, text)


def read(page: str) -> str:
    """Return a page's text."""
    return (ROOT / page).read_text(encoding="utf-8")


def filled(text: str) -> str:
    """Return a page's text with its generated parts made anew."""
    text = _VERIFY.sub(lambda found: found[1] + verify_output() + found[2], text)
    text = _CLAUSES.sub(lambda found: found[1] + clause_table() + found[2], text)
    text = _CHECKS.sub(lambda found: found[1] + check_table() + found[2], text)
    return in_order(text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(filled(read(page)), encoding="utf-8")
