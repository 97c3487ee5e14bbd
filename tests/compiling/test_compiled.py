"""`xref compile`: what a compiled kernel shows of itself, on a CPU for real and for TPUs that are not here."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support.commands import stopped, xref
from support.tpus import for_tpus, needs_tpu_compiler, report_for_tpus

from xref import errors, operators
from xref.compiling.compile import Options, compile_kernel
from xref.compiling.report import GRADIENT, CompiledProgram, CompileReport

pytestmark = pytest.mark.jax

SIZES = {"vocab": 512, "hidden": 64, "tokens": 32}
SMALL_TABLE = (
    "--vocab, --hidden: got a table of 3 rows and 0.000768 MB, expected 4 rows or more, and for a TPU 536 MB: "
    "a smaller copy would not be counted"
)
NOWHERE = (
    "xref compile: got nothing to compile, expected a topology or a device, and a verb that takes one of the dtypes"
)
SMALL = ("--vocab", 512, "--hidden", 64, "--tokens", 32)
FORMS = """
import jax
import jax.numpy as jnp
from jax import lax


def clip(token_ids, weight):
    return jnp.take(weight, token_ids, axis=0, mode="clip")


def fill(token_ids, weight):
    return jnp.take(weight, token_ids, axis=0)


def one_hot(token_ids, weight):
    return jax.nn.one_hot(token_ids, weight.shape[0], dtype=weight.dtype) @ weight


def bits_first(token_ids, weight):
    rows = jnp.take(lax.bitcast_convert_type(weight, jnp.uint16), token_ids, axis=0, mode="clip")
    return lax.bitcast_convert_type(rows, weight.dtype)


def flattened(token_ids, weight):
    return clip(token_ids, weight).reshape(-1)


def ordered(token_ids, weight):
    return jnp.take(jnp.sort(weight, axis=0), token_ids, axis=0, mode="clip")


def concrete(token_ids, weight):
    return weight[int(token_ids[0])][None]
"""


@pytest.fixture
def forms(tmp_path, monkeypatch):
    (tmp_path / "forms.py").write_text(FORMS)
    monkeypatch.chdir(tmp_path)
    return "forms.py:"


@pytest.fixture(scope="module")
def compiled():
    """Return a function that compiles one verb of a kernel on the CPU, in float32."""
    space: dict[str, object] = {}
    exec(FORMS, space)

    def one(name, **more):
        options = Options(**{"device": ("cpu",), "dtype": ("float32",), **SIZES, **more})
        [program] = compile_kernel(operators.find("embedding"), space[name], options).programs
        return program

    return one


def test_a_plain_gather_is_proven(compiled):
    program = compiled("clip")
    assert (program.copies, program.reasons, program.problem) == ("proven", [], "")
    assert "gather" in program.operations
    assert program.output == 32 * 64 * 4
    assert program.ok


def test_arithmetic_is_not(compiled):
    program = compiled("one_hot")
    assert program.copies == "not proven"
    assert program.reasons
    assert not program.ok


def test_a_select_is_not_on_a_cpu(compiled):
    assert "select of f32" in compiled("fill").reasons


def test_a_temporary_of_the_tables_size_is_seen_by_how_it_grows(compiled):
    program = compiled("ordered")
    assert program.temporaries >= 512 * 64 * 4
    assert program.growth >= 64 * 4
    assert program.grows
    plain = compiled("clip")
    assert (plain.growth, plain.grows) == (0, False)


def test_the_limit_is_one_bit_an_element():
    assert CompiledProgram(verb="forward", dtype="bfloat16", where="cpu", growth=511.9, limit=4096 / 8).ok
    assert not CompiledProgram(verb="forward", dtype="bfloat16", where="cpu", growth=512.0, limit=4096 / 8).ok


def test_a_kernel_that_cannot_be_traced_has_no_program(compiled):
    program = compiled("concrete")
    assert program.problem.startswith("ConcretizationTypeError: ")
    assert (program.copies, program.ok) == ("", False)


def test_a_gradient_is_no_copy_and_need_not_be(compiled):
    program = compiled("clip", verb=(GRADIENT,))
    assert (program.verb, program.copies, program.operations) == (GRADIENT, "", [])
    assert program.output == 512 * 64 * 4
    assert program.ok


def test_an_output_of_another_form_is_no_copy(compiled):
    assert compiled("flattened").reasons == ["an output float32 (2048,), expected float32 (32, 64)"]
    assert compiled("flattened").copies == "not proven"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"verb": ("forward_fp32",)}, "--verb: got forward_fp32, expected one of forward, gradient"),
        ({"vocab": 3}, SMALL_TABLE),
        ({"device": ()}, NOWHERE),
        ({"device": ("tpu",)}, "--device: got tpu, expected a device that jax has here: cpu"),
    ],
    ids=["verb", "small", "nowhere", "device"],
)  # fmt: skip
def test_wrong_use_is_one_clear_error(compiled, more, message):
    with pytest.raises(errors.UsageError) as caught:
        compiled("clip", **more)
    assert str(caught.value) == message


def test_nothing_compiled_is_not_ok():
    report = CompileReport(xref="1", candidate="k", jax="0", compiler="", vocab=1, hidden=1, tokens=1, programs=[])
    assert not report.ok


def test_the_command_shows_a_table_the_operations_and_a_statement(forms, tmp_path):
    result = xref("compile", f"{forms}clip", "--device", "cpu", "--dtype", "float32", *SMALL, "--json", "r.json")
    assert result.exit_code == 0
    assert result.stdout.count("proven") == 1
    assert "forward float32 for cpu:\n  " in result.stdout
    assert result.stdout.splitlines()[-1].startswith(
        "forms.py:clip: copies, without a temporary of the table's size: [512, 64] table, 32 ids, jax "
    )
    record = json.loads(Path("r.json").read_text())
    assert (record["ok"], record["candidate"], record["compiler"]) == (True, "forms.py:clip", "")
    [program] = record["programs"]
    assert (program["copies"], program["ok"], program["verb"], program["growth"]) == ("proven", True, "forward", 0)


def test_a_kernel_that_is_not_as_it_must_be_ends_in_1(forms):
    result = xref("compile", f"{forms}ordered", "--device", "cpu", "--dtype", "float32", *SMALL)
    assert result.exit_code == 1
    assert "not proven: sort of " in result.stdout
    assert " yes " in result.stdout
    assert result.stdout.splitlines()[-1].startswith("forms.py:ordered: not all as they must be: ")
    result = xref("compile", f"{forms}concrete", "--device", "cpu", "--dtype", "float32", *SMALL)
    assert result.exit_code == 1
    assert "no program" in result.stdout
    assert "ConcretizationTypeError" in result.stdout


def test_wrong_use_of_the_command_ends_in_2(forms):
    expected = "xref compile: got nothing to compile for, expected --topology or --device [compile]"
    assert stopped(2, "compile", f"{forms}clip") == expected
    expected = "xref compile: got both --topology and --device, expected --topology or --device [compile]"
    assert stopped(2, "compile", f"{forms}clip", "--device", "cpu", "--topology", "v5e:2x2") == expected
    expected = "none.py: got no such file, expected a Python file [compile]"
    assert stopped(2, "compile", "none.py:clip", "--device", "cpu") == expected
    expected = "--verb: got backward, expected one of forward, gradient [compile]"
    assert stopped(2, "compile", f"{forms}clip", "--device", "cpu", "--verb", "backward") == expected
    expected = "--json: got ., a folder, expected a file [compile]"
    assert stopped(2, "compile", f"{forms}clip", "--device", "cpu", "--json", ".") == expected


def test_a_class_that_is_not_made_without_arguments_is_told_by_the_name_of_this_command(forms):
    Path("forms.py").write_text("class Kernel:\n    def __init__(self, table):\n        pass\n")
    told = stopped(2, "compile", f"{forms}Kernel", "--device", "cpu")
    assert told.startswith("forms.py:Kernel: got TypeError: ")
    assert told.endswith(", expected a class that is made without arguments [compile]")


def test_a_topology_without_its_compiler_says_what_to_install(forms, monkeypatch):
    from xref.jax_ops import compiling

    monkeypatch.setattr(compiling, "has_tpu_compiler", lambda: False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    expected = (
        "--topology: got v5e:2x2 without the libtpu package, "
        "expected the TPU's compiler: pip install 'xref[tpu]' [compile]"
    )
    assert stopped(2, "compile", f"{forms}clip", "--topology", "v5e:2x2") == expected


# ----- for TPUs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden_on_tpus(tmp_path_factory):
    """What the golden's programs for every generation are."""
    done = for_tpus("--topology", "all", "--json", path := tmp_path_factory.mktemp("tpus") / "r.json")
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@needs_tpu_compiler
def test_the_golden_is_a_proven_copy_on_every_tpu(golden_on_tpus):
    assert len({program["where"] for program in golden_on_tpus["programs"]}) == 5
    for program in golden_on_tpus["programs"]:
        assert (program["copies"], program["growth"]) == ("proven", 0), program
        assert program["temporaries"] <= 8192 * 4096 * 2 + 2**20  # the rows before they are widened, at most
        assert "gather" in program["operations"]


@needs_tpu_compiler
def test_the_page_shows_the_goldens_programs(golden_on_tpus):
    page = (Path(__file__).parents[2] / "docs" / "tpu.md").read_text(encoding="utf-8")
    shown = re.search(r"with JAX (\S+) and libtpu (\S+);", page).groups()
    if shown != (golden_on_tpus["jax"], golden_on_tpus["compiler"]):
        pytest.skip(f"the page is of JAX {shown[0]} and libtpu {shown[1]}: others may need other temporaries")
    rows = {}
    for program in golden_on_tpus["programs"]:
        rows.setdefault(f"`{program['verb']}` {program['dtype']}", []).append(f"{program['temporaries'] / 1e6:.1f}")
    for name, temporaries in rows.items():
        assert f"| {name} | {' | '.join(temporaries)} | none | proven |\n" in page


@needs_tpu_compiler
def test_a_row_that_is_no_multiple_of_128_wide_may_cost_a_copy_of_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shape = "--hidden", 64, "--vocab", 1 << 22
    code, report = report_for_tpus("--topology", "v5p:2x2x1", "--dtype", "float32", "--verb", "forward", *shape)
    [program] = report["programs"]
    assert (code, program["copies"], program["ok"]) == (1, "proven", False)
    assert program["growth"] >= 64 * 4


@needs_tpu_compiler
@pytest.mark.parametrize(("form", "copies"), [("one_hot", "not proven"), ("bits_first", "proven")])
def test_other_forms_are_shown_as_what_they_are(forms, form, copies):
    code, report = report_for_tpus(f"{forms}{form}", "--topology", "v5e:2x2", "--dtype", "bfloat16")
    [program] = report["programs"]
    assert (code, program["copies"], program["ok"]) == (1, copies, False)
    if form == "bits_first":  # a copy of the table, in bits
        assert program["temporaries"] >= 151936 * 4096 * 2
        assert program["growth"] == pytest.approx(4096 * 2, rel=0.01)


@needs_tpu_compiler
def test_a_topology_that_is_none_is_one_clear_error(forms):
    done = for_tpus(f"{forms}clip", "--topology", "v9:1")
    assert (done.returncode, done.stdout) == (2, "")
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("xref: --topology: got v9:1 (")
    assert line.endswith("expected a topology such as v4:2x2x1, v5e:2x2, v5p:2x2x1, v6e:2x2, tpu7x:2x2x1 [compile]")
