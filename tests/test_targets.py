"""Loading other people's code by name: what is found is the object itself, and each failure is one clear error."""

from __future__ import annotations

import inspect
import os
import pickle
import platform
import subprocess
import sys
import textwrap

import pytest
from support.helpers import forget_modules, raises

from xref import errors
from xref.targets import load_target

KERNEL = """
    from __future__ import annotations
    import dataclasses
    from math import floor

    TABLE = [1]

    def embedding(token_ids, weight):
        return weight[token_ids]

    class Op:
        @staticmethod
        def gather(token_ids, weight):
            return weight[token_ids]

        class Inner:
            call = len

    @dataclasses.dataclass
    class Settings:
        width: int = 3

    class WithForward:
        def forward(self, token_ids, weight):
            return weight[token_ids]

    module_like = WithForward()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder; the modules that a test adds are forgotten after it."""
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert sys.path == path
    forget_modules(tmp_path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).strip() + "\n")
    return path


def refused(spec, message):
    with raises(errors.UsageError, f"{message} [judge]"):
        load_target(spec, "judge")


# What is found


def test_a_name_of_an_installed_module_is_the_object_itself():
    assert load_target("os.path:join", "judge") is os.path.join
    assert load_target("xref.targets:load_target", "judge") is load_target


def test_a_name_may_go_through_a_class(folder):
    write(folder / "kernels.py", KERNEL)
    assert load_target("kernels.py:Op.gather", "judge")(1, [5, 6]) == 6
    assert load_target("kernels.py:Op.Inner.call", "judge") is len


def test_a_module_is_found_from_the_current_folder_which_does_not_stay_on_the_path(folder):
    write(folder / "reg_pkg" / "kernels.py", KERNEL)
    assert load_target("reg_pkg.kernels:embedding", "judge")(0, [7]) == 7
    assert str(folder) not in sys.path


def test_a_file_is_found_by_relative_and_by_absolute_path_and_is_one_module(folder):
    path = write(folder / "sub" / "my-kernel.v2.py", KERNEL)
    found = load_target("sub/my-kernel.v2.py:embedding", "judge")
    assert found is load_target(f"{path}:embedding", "judge")
    assert found is load_target("sub/../sub/my-kernel.v2.py:embedding", "judge")


def test_a_changed_file_is_loaded_anew_even_within_a_second_and_with_the_same_size(folder):
    path = write(folder / "kernels.py", "def f():\n    return 1")
    stamp = path.stat()
    first = load_target("kernels.py:f", "judge")
    write(path, "def f():\n    return 2")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    second = load_target("kernels.py:f", "judge")
    assert (first(), second()) == (1, 2)
    assert not (folder / "__pycache__").exists()


def test_files_of_the_same_name_are_two_modules(folder):
    for name in ("a", "b"):
        write(folder / name / "kernels.py", f"def f():\n    return {name!r}")
    assert [load_target(f"{name}/kernels.py:f", "judge")() for name in ("a", "b")] == ["a", "b"]


def test_code_of_a_file_can_do_what_code_of_a_module_can(folder):
    write(folder / "kernels.py", KERNEL)
    settings = load_target("kernels.py:Settings", "judge")
    assert pickle.loads(pickle.dumps(settings(4))) == settings(4)
    assert inspect.getsource(load_target("kernels.py:embedding", "judge")).startswith("def embedding(")


def test_a_file_imports_its_siblings(folder):
    write(folder / "sub" / "reg_sibling.py", "def helper():\n    return 3")
    write(folder / "sub" / "kernels.py", "from reg_sibling import helper\nimport reg_sibling as again")
    assert load_target("sub/kernels.py:helper", "judge")() == 3
    assert str(folder / "sub") not in sys.path


def test_a_file_may_load_another_and_ask_for_itself(folder):
    write(folder / "other.py", "def f():\n    return 5")
    write(
        folder / "kernels.py",
        """
        from xref.targets import load_target

        def own():
            return 6

        f = load_target("other.py:f", "judge")
        same = load_target("kernels.py:own", "judge")
        """,
    )
    assert load_target("kernels.py:f", "judge")() == 5
    assert load_target("kernels.py:same", "judge") is load_target("kernels.py:own", "judge")


def test_an_object_with_forward_needs_no_call(folder):
    write(folder / "kernels.py", KERNEL)
    found = load_target("kernels.py:module_like", "judge")
    assert not callable(found)
    assert found.forward(1, [5, 6]) == 6


def test_a_class_is_returned_uncalled(folder):
    write(folder / "kernels.py", KERNEL)
    assert isinstance(load_target("kernels.py:WithForward", "judge"), type)


# What is refused


@pytest.mark.parametrize(
    "spec", ["my_kernels", "", ":", ":f", "pkg.mod:", "pkg.mod:a..b", "..rel:f", "a.py:", "pkg.:f"]
)
def test_another_form_is_refused(spec):
    refused(spec, f"target: got {spec!r}, expected pkg.mod:name or path/to/file.py:name")


def test_a_missing_file_and_a_folder_are_told_apart(folder):
    (folder / "dir.py").mkdir()
    refused("no/such.py:f", "no/such.py: got no such file, expected a Python file")
    refused("no/such:f", "no/such: got no such file, expected a Python file")
    refused("dir.py:f", "dir.py: got a folder, expected a Python file")


def test_what_no_system_takes_for_a_file_name_is_refused(folder):
    with pytest.raises(
        errors.UsageError, match=r"^a\0\.py: got an error \(ValueError: .*\), expected a Python file \["
    ):
        load_target("a\0.py:f", "judge")


def test_a_file_of_another_kind_is_refused(folder):
    write(folder / "kernels.txt", "")
    write(folder / "kernels", "")
    expected = "expected a Python file, its name ending in .py"
    refused("./kernels.txt:f", f"./kernels.txt: got a file of kind .txt, {expected}")
    refused("./kernels:f", f"./kernels: got a file of kind none, {expected}")


def test_a_missing_module_is_named(folder):
    expected = "expected a module that can be imported, or a file: pkg.mod:name or path/to/file.py:name"
    refused("no_such_pkg.sub:f", f"no_such_pkg.sub: got no module named 'no_such_pkg', {expected}")
    write(folder / "reg_pkg" / "__init__.py", "")
    refused("reg_pkg.sub:f", f"reg_pkg.sub: got no module named 'reg_pkg.sub', {expected}")
    write(folder / "reg_single.py", "")
    told = "ModuleNotFoundError: No module named 'reg_single.sub'; 'reg_single' is not a package"
    refused("reg_single.sub:f", f"reg_single.sub: got no module named 'reg_single.sub' ({told}), {expected}")


@pytest.mark.parametrize(("spec", "where"), [("reg_inner:f", "reg_inner"), ("reg_inner.py:f", "reg_inner.py")])
def test_a_missing_import_inside_is_told_from_a_missing_module(folder, spec, where):
    write(folder / "reg_inner.py", "import no_such_library.fast")
    told = "ModuleNotFoundError: No module named 'no_such_library'"
    got = f"an import of 'no_such_library' in it, which is missing ({told})"
    refused(spec, f"{where}: got {got}, expected it to import")


def test_a_syntax_error_is_told_with_its_line(folder):
    write(folder / "kernels.py", "x = 1\ndef f(:\n    pass")
    expected = f"expected code that Python {platform.python_version()} can read"
    refused("kernels.py:f", f"kernels.py: got a syntax error in line 2 (invalid syntax), {expected}")
    write(folder / "reg_outer.py", "import kernels")
    for spec in ("reg_outer", "reg_outer.py"):
        got = f"a syntax error in line 2 of {folder / 'kernels.py'} (invalid syntax)"
        refused(f"{spec}:f", f"{spec}: got {got}, {expected}")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise RuntimeError('first\\nsecond')", "RuntimeError: first"),
        ("raise RuntimeError", "RuntimeError"),
        ("raise SystemExit(2)", "SystemExit: 2"),
        ("import pytest; pytest.skip('no GPU', allow_module_level=True)", "Skipped: no GPU"),
        ("import warnings; warnings.warn('old')", "UserWarning: old"),
        (
            "from xref.errors import no_such_name",
            f"ImportError: cannot import name 'no_such_name' from 'xref.errors' ({errors.__file__})",
        ),
    ],
    ids=["error", "two lines", "no message", "exit", "skip", "warning", "import error"],
)
@pytest.mark.parametrize("spec", ["reg_raises", "reg_raises.py"])
def test_whatever_an_import_raises_is_one_line(folder, spec, code, told):
    write(folder / "reg_raises.py", code)
    refused(f"{spec}:f", f"{spec}: got {told} while importing it, expected it to import")
    assert not [name for name in sys.modules if name.startswith("xref_target_reg_raises")]


def test_the_users_interrupt_goes_through(folder):
    write(folder / "kernels.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_target("kernels.py:f", "judge")


def test_a_missing_name_comes_with_those_that_are_there_the_likeliest_first(folder):
    write(folder / "kernels.py", KERNEL)
    refused(
        "kernels.py:embeding",
        "kernels.py: got no name 'embeding', expected one of embedding, Settings, WithForward, Op",
    )
    refused("kernels.py:Op.gathr", "kernels.py:Op: got no name 'gathr', expected one of gather, Inner")
    refused("kernels.py:Op.Inner.x", "kernels.py:Op.Inner: got no name 'x', expected one of call")


def test_no_more_than_ten_names_are_listed(folder):
    write(folder / "kernels.py", "\n".join(f"def f{i}(): pass" for i in range(13)))
    with pytest.raises(errors.UsageError) as caught:
        load_target("kernels.py:g", "judge")
    shown = str(caught.value).partition("one of ")[2]
    assert shown.count(",") == 9
    assert shown.endswith(" and 3 more [judge]")


def test_a_module_without_callables_says_so(folder):
    write(folder / "kernels.py", "TABLE = [1]")
    refused("kernels.py:f", "kernels.py: got no name 'f', expected a name of something callable, of which it has none")


def test_a_module_that_only_passes_names_on_lists_them(folder):
    write(folder / "kernels.py", "from math import floor")
    refused("kernels.py:f", "kernels.py: got no name 'f', expected one of floor")


def test_what_is_read_may_raise_anything(folder):
    write(folder / "kernels.py", "def __getattr__(name):\n    raise RuntimeError('no GPU')")
    refused("kernels.py:f", "kernels.py: got RuntimeError: no GPU while reading 'f', expected it to be there")


def test_what_is_not_callable_is_refused(folder):
    write(folder / "kernels.py", KERNEL)
    expected = "expected a callable or an object with forward"
    refused("kernels.py:TABLE", f"kernels.py:TABLE: got an object of type list, {expected}")
    refused("math:pi", f"math:pi: got an object of type float, {expected}")


def test_a_sibling_that_python_would_take_from_elsewhere_is_refused_not_judged(folder):
    for name in ("a", "b"):
        write(folder / name / "reg_sibling.py", f"def f():\n    return {name!r}")
        write(folder / name / "kernels.py", "from reg_sibling import f")
    assert load_target("a/kernels.py:f", "judge")() == "a"
    for _ in range(2):  # nothing half loaded stays
        got = f"an import of 'reg_sibling' in it, loaded before from {folder / 'a' / 'reg_sibling.py'}"
        expected = f"{folder / 'b' / 'reg_sibling.py'}: load it in a process of its own"
        refused("b/kernels.py:f", f"b/kernels.py: got {got}, expected {expected}")


def test_an_exception_without_a_message_is_told_by_its_type():
    assert errors.described(ValueError()) == "ValueError"
    assert errors.described(ValueError("\n one\ntwo")) == "ValueError: one"


def test_nothing_heavy_is_imported():
    code = "import sys, xref.targets; print(sorted({'torch', 'jax', 'numpy', 'msgspec'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
