"""Fill the generated parts of the pages: the output of `xref verify` and the table of clauses.

python tools/pages.py
"""

from __future__ import annotations

import io
import pathlib
import re

from rich.console import Console

from xref.contracts import embedding as contract
from xref.judge import report
from xref.judge.verify import verify

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("README.md", "docs/contracts/embedding.md")
_VERIFY = re.compile(r"(<!-- verify-output -->\n```text\n).*?(\n```)", re.DOTALL)
_CLAUSES = re.compile(r"(<!-- clauses -->\n).*?(\n\n)", re.DOTALL)


def verify_output() -> str:
    """Return what `xref verify --tier smoke --dtype bfloat16 --device cpu` prints into a pipe."""
    printed = io.StringIO()
    report.show(verify(tier="smoke", dtype=("bfloat16",), device=("cpu",)), Console(file=printed, width=120))
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())


def clause_table() -> str:
    """Return the clauses as a Markdown table."""
    rows = [f"| {clause.id} {clause.title} | {clause.statement} |" for clause in contract.CLAUSES]
    return "\n".join(["| clause | what must hold |", "|---|---|", *rows])


def read(page: str) -> str:
    """Return a page's text."""
    return (ROOT / page).read_text(encoding="utf-8")


def filled(text: str) -> str:
    """Return a page's text with its generated parts made anew."""
    text = _VERIFY.sub(lambda found: found[1] + verify_output() + found[2], text)
    return _CLAUSES.sub(lambda found: found[1] + clause_table() + found[2], text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(filled(read(page)), encoding="utf-8")
