"""Code and tests that run in a new interpreter, on the package that is tested here."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from pathlib import Path

import xref

__all__ = ["fresh", "path_of_package", "run_pytest"]

_REGISTERED = any(point.value == "xref.pytest_plugin" for point in importlib.metadata.entry_points(group="pytest11"))


def path_of_package() -> str:
    """Return a PYTHONPATH that has the package tested here, wherever it is: a source tree or an installed wheel."""
    root = str(Path(xref.__file__).parents[1])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])


def fresh(*parts: str, blocked: tuple[str, ...] = ()) -> str:
    """Run code in a new interpreter in which some packages cannot be imported, and return what it prints."""
    block = f"""
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {blocked!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}: blocked", name=name)

        sys.meta_path.insert(0, Blocker())

        def loaded(*names):
            return sorted(name for name in names if name in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(map(textwrap.dedent, (block, *parts)))],
        env=os.environ | {"PYTHONPATH": path_of_package(), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_pytest(folder, *args):
    """Run pytest in a folder and a process of its own; return it and what came of each test, by its name."""
    plugin = () if _REGISTERED else ("-p", "xref.pytest_plugin")
    env = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-rA", "--junit-xml=out.xml", *args],
        cwd=folder,
        env=env | {"PYTHONPATH": path_of_package(), "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    cases = {}
    if (folder / "out.xml").exists():
        for case in ET.parse(folder / "out.xml").iter("testcase"):
            outcome = case[0].tag if len(case) else "passed"
            if outcome == "skipped" and case[0].get("type") == "pytest.xfail":
                outcome = "xfailed"
            cases[case.get("name")] = (outcome, case[0].get("message") or "" if len(case) else "")
    return done, cases
