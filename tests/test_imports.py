"""What loads what, each in its own process: a golden needs its framework and NumPy, `import xref` nothing."""

from __future__ import annotations

import functools

import pytest
from support.processes import fresh

import xref

HEAVY = ("torch", "jax", "numpy", "ml_dtypes", "msgspec", "typer", "rich", "safetensors")


def test_importing_xref_loads_nothing_but_itself_and_little_of_python():
    code = """
        before = set(sys.modules)
        import xref
        new = set(sys.modules) - before
        print(sorted(name for name in new if name.partition(".")[0] == "xref"))
        print(loaded(*{heavy!r}))
        print(len(new) < 60)
    """
    assert fresh(code.format(heavy=HEAVY)).splitlines() == ["['xref']", "[]", "True"]


def test_xref_can_be_imported_where_nothing_else_is_installed():
    assert fresh("import xref; print(xref.__version__)", blocked=HEAVY) == xref.__version__


def test_verify_is_found_on_first_use_and_loads_no_framework():
    code = """
        import xref
        from xref.verifying.verify import verify
        print(xref.verify is verify, xref.verify.__module__, loaded("torch", "jax", "typer"))
    """
    assert fresh(code, blocked=("torch", "jax")) == "True xref.verifying.verify []"


def test_judge_is_found_on_first_use_and_loads_no_framework():
    code = """
        import xref
        from xref.judging.judge import judge
        print(xref.judge is judge, xref.judge.__module__, loaded("torch", "jax", "typer", "rich"))
    """
    assert fresh(code, blocked=("torch", "jax")) == "True xref.judging.judge []"


def test_an_unknown_attribute_of_xref_is_pythons_own_error():
    with pytest.raises(AttributeError, match=r"^module 'xref' has no attribute 'verfy'$"):
        xref.verfy  # noqa: B018
    assert not hasattr(xref, "torch")


def test_all_that_xref_exports_is_there():
    assert xref.__all__ == ["__version__", "judge", "parametrize", "verify"]
    for name in xref.__all__:
        assert getattr(xref, name) is not None


# The golden alone: every verb runs, with and without what it does not need.

RUN = {
    "torch": """
        import torch
        import xref.torch_ops.embedding as golden
        ids, table = torch.tensor([2, 0]), torch.arange(6.0).reshape(3, 2).to(torch.bfloat16)
    """,
    "jax": """
        import numpy, jax.numpy as jnp
        import xref.jax_ops.embedding as golden
        ids, table = numpy.array([2, 0]), jnp.arange(6.0).reshape(3, 2).astype(jnp.bfloat16)
    """,
}
USE = """
    for verb in (golden.forward, golden.forward_fp32):
        assert verb(ids, table).tolist() == [[4.0, 5.0], [0.0, 1.0]]
        try:
            verb(ids + 1, table)
        except IndexError:
            continue
        raise SystemExit("no IndexError")
"""
FOREIGN = {
    "torch": ("jax", "jaxlib", "ml_dtypes", "msgspec", "typer", "rich", "safetensors"),
    "jax": ("torch", "msgspec", "typer", "rich", "safetensors"),
}
GOLDENS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in RUN]


@functools.cache
def loaded_by(framework: str) -> frozenset[str]:
    """What a process has loaded in which a golden ran, and nothing else of xref was asked for."""
    return frozenset(fresh(RUN[framework], USE, "print(*sys.modules)").split())


@pytest.mark.parametrize("framework", GOLDENS)
def test_a_golden_loads_neither_the_other_framework_nor_what_the_judge_needs(framework):
    assert loaded_by(framework) & set(FOREIGN[framework]) == set()


@pytest.mark.parametrize("framework", GOLDENS)
def test_a_golden_works_where_its_framework_and_numpy_alone_are_installed(framework):
    assert fresh(RUN[framework], USE, "print('works')", blocked=FOREIGN[framework]) == "works"


@pytest.mark.parametrize("framework", GOLDENS)
def test_a_golden_loads_of_xref_its_own_folder_and_bits_and_errors(framework):
    allowed = {"xref", "xref.bits", "xref.errors", f"xref.{framework}_ops"}
    found = {name for name in loaded_by(framework) if name.partition(".")[0] == "xref"}
    assert allowed < found
    assert all(name.startswith(f"xref.{framework}_ops.") for name in found - allowed)


@pytest.mark.parametrize("framework", GOLDENS)
def test_what_the_judge_needs_of_a_framework_loads_no_other(framework):
    other = ("jax", "jaxlib") if framework == "torch" else ("torch",)
    modules = ", ".join(f"xref.{framework}_ops.{part}" for part in ("arrays", "modes", "memory", "timing"))
    code = f"import {modules}; print(loaded(*{other!r}))"
    assert fresh(code, blocked=other) == "[]"


def test_the_contract_and_the_oracle_need_no_framework():
    code = """
        from xref import operators
        from xref.operators.embedding import answers, cases
        case = cases.cases()[1].call
        answers.exact_answers(case.token_ids(), case.weight()[0], case.dtype)
        assert answers.digests(case) == answers.pinned()[case.id]
        print(operators.find("embedding").name, loaded("torch", "jax", "typer", "rich", "safetensors"))
    """
    assert fresh(code, blocked=("torch", "jax", "typer", "rich", "safetensors")) == "embedding []"


# The two processes of a stand: what decides loads no framework, and what runs a kernel holds nothing that decides.

KERNEL = """
import sys
import {framework}

def embedding(token_ids, weight):
    rooms = {{name.split(".")[1] for name in sys.modules if name.startswith("xref.")}}
    raise RuntimeError(*rooms & {{"operators", "judging", "verifying", "cli", "exact"}})
"""


@pytest.mark.parametrize("framework", GOLDENS)
def test_a_stand_loads_the_framework_in_its_child_alone_and_the_operator_in_its_parent_alone(tmp_path, framework):
    (tmp_path / "k.py").write_text(KERNEL.format(framework=framework))
    code = f"""
        from xref import operators
        from xref.judging.judge import stand_for
        from xref.judging.options import checked
        operator = operators.find("embedding")
        with stand_for(operator, {str(tmp_path / "k.py:embedding")!r}, checked(operator, "judge", {{}})) as stand:
            replies = stand.perform(operator.trial()["forward"])
        print(stand.traits.framework, replies.replies[-1].type, replies.replies[-1].text, loaded("torch", "jax"))
    """
    assert fresh(code) == f"{framework} RuntimeError  []"
