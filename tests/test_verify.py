"""The main job: `xref.verify` confirms the goldens, says on what that rests, and nothing that it did not compare."""

from __future__ import annotations

import gc
import hashlib
import warnings
import weakref

import msgspec
import numpy as np
import pytest
from support.checkpoints import checkpoint

from xref import errors, verify
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient
from xref.judge import frameworks, run
from xref.judge import verify as verifying
from xref.judge.verdict import Outcome
from xref.operators.embedding import weights
from xref.spec import Tier

needs_torch = pytest.mark.torch
EACH_ALONE = [pytest.param("torch", marks=needs_torch), pytest.param("jax", marks=pytest.mark.jax)]

SMALL = {"tier": "smoke", "dtype": ("float8_e5m2",)}
# SHA-256 over the lines `case verb digest` of all outputs: what every machine must print.
SMALL_DIGEST = "d8512e2132748217d69d24fdbc6118435ad9add75bd156163919c7841c6e7d2e"
DIGESTS = {
    "smoke": "0efc1da45d4413a424c258d82b87370c496bab858565a4b0ea6e149d11e28293",
    "standard": "0e18c9444cdc211d695380cafd66eb77cb03e57fcdea49c999a215ab8f9681f9",
}
FEW_DIGEST = "2591f97e3b375d423d4c71889a2640ec3c0b72377f746e4c7e6eb34b0746dc16"  # of the three cases of `few`
NONE_COMPARED = "elements: got none compared, expected at least one"


def refused(**how):
    with pytest.raises(errors.XrefError) as caught:
        verify(**how)
    assert "\n" not in str(caught.value)
    return caught.value


def digest_of(lines):
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def keys_of(report):
    return {(v.clause, v.framework, v.against) for v in report.verdicts}


def failures_of(report):
    return {(v.clause, v.framework, v.against): v.problems for v in report.verdicts if v.outcome is not Outcome.PASS}


def pretend(monkeypatch, **devices):
    """Have the frameworks named, and no other, installed, with these devices: the machine's own do not matter."""
    monkeypatch.setattr(frameworks, "installed", lambda name: name in devices)
    monkeypatch.setattr(frameworks, "devices", lambda framework, call: devices[framework.NAME])


@pytest.fixture
def on_cpu(monkeypatch):
    pretend(monkeypatch, torch=("cpu",), jax=("cpu",))


@pytest.fixture
def few(monkeypatch, on_cpu):
    """The cases cut down to three, without conditions: one of 257 ids, one of none, one 0-dimensional."""
    chosen = [case for case in contract.cases(Tier.SMOKE, dtypes=SMALL["dtype"]) if case.vocab == 300]
    monkeypatch.setattr(contract, "cases", lambda tier, dtypes: tuple(chosen))
    return chosen


# What is confirmed


@pytest.fixture(scope="module")
def confirmed():
    """A run of both frameworks, and what the progress callback was told."""
    told = []
    report = verify(device=("cpu",), progress=lambda *step: told.append(step), **SMALL)
    return report, told


@pytest.mark.torch
@pytest.mark.jax
def test_two_right_goldens_are_confirmed_with_the_digest_that_every_machine_gets(confirmed):
    report, _ = confirmed
    assert failures_of(report) == {}
    assert report.ok
    assert report.digest == SMALL_DIGEST


@pytest.mark.torch
@pytest.mark.jax
def test_the_statement_says_what_was_confirmed_by_which_versions_on_how_many_elements(confirmed):
    report, _ = confirmed
    torch, jax = (frameworks.load(name, "tests").version() for name in ("torch", "jax"))
    assert report.statement == (
        f"Confirmed (smoke tier): torch {torch} on cpu and jax {jax} on cpu, each equal to the exact answer and to the"
        " other and to the digests pinned in the package, bit for bit, on 319,696 output elements."
        " Not compared: EMB-8, EMB-9, EMB-10, EMB-11, EMB-12."
    )
    assert report.environment == {
        "torch": {"version": torch, "cpu": "CPU"},
        "jax": {"version": jax, "cpu": "CPU"},
    }


@pytest.mark.torch
@pytest.mark.jax
def test_every_clause_of_a_forward_pass_has_its_verdicts(confirmed):
    report, _ = confirmed
    truths = {
        "EMB-1": "exact",
        "EMB-2": "exact",
        "EMB-3": "exact",
        "EMB-4": "exact",
        "EMB-5": "inputs before",
        "EMB-6": "first call",
        "EMB-7": "plain call",
    }
    expected = {(clause, name, against) for clause, against in truths.items() for name in ("torch", "jax")}
    expected |= {("fixtures", "numpy", "pinned digests"), ("EMB-1", "jax", "torch/cpu"), ("EMB-2", "jax", "torch/cpu")}
    assert keys_of(report) == expected
    assert all(v.elements and v.device == "cpu" for v in report.verdicts)
    order = [v.clause for v in report.verdicts]
    assert order == sorted(order, key=["fixtures", *(clause.id for clause in contract.CLAUSES)].index)


@pytest.mark.torch
@pytest.mark.jax
def test_the_verdicts_count_every_case_and_element_once(confirmed):
    report, _ = confirmed
    counts = {(v.clause, v.framework, v.against): (v.cases, v.elements) for v in report.verdicts}
    cases = contract.cases(Tier.SMOKE, dtypes=SMALL["dtype"])
    rows = sum(int(np.prod(case.shape)) * case.hidden for case in cases)
    for key in [("torch", "exact"), ("jax", "exact"), ("jax", "torch/cpu")]:
        assert counts["EMB-1", *key] == (len(cases), rows)
        assert counts["EMB-2", *key] == (len(cases), rows)
    assert counts["EMB-3", "torch", "exact"] == (2 * len(cases), 2 * rows)
    assert counts["fixtures", "numpy", "pinned digests"][0] == len(cases)


@pytest.mark.torch
@pytest.mark.jax
def test_progress_is_told_before_each_step(confirmed):
    _, told = confirmed
    cases = contract.cases(Tier.SMOKE, dtypes=SMALL["dtype"])
    names = ["bad ids, float8_e5m2", *(case.id for case in cases)]
    assert told == [(name, done, len(names)) for done, name in enumerate(names)]


@pytest.mark.torch
@pytest.mark.jax
def test_every_form_and_condition_of_the_gradients_is_counted(monkeypatch, on_cpu):
    forward = [case for case in contract.cases(Tier.SMOKE, dtypes=("bfloat16",)) if case.vocab == 300]
    monkeypatch.setattr(contract, "cases", lambda tier, dtypes: tuple(forward))
    report = verify(dtype="bfloat16", tier="smoke")
    assert failures_of(report) == {}
    cases = embedding_gradient.cases(Tier.SMOKE, dtypes=("bfloat16",))
    assert [case.vocab * case.hidden for case in cases] == [320, 320]
    counts = {(v.clause, v.framework, v.against): (v.cases, v.elements) for v in report.verdicts}
    # The plain form, by rows, by accumulators, and through the one verb whose result is of the cotangents' dtype.
    for name in ("torch", "jax"):
        assert counts["EMB-8", name, "exact"] == (2 * 4, 2 * 4 * 320)
        assert counts["EMB-9", name, "exact"] == (2, 2 * 3 * 8)  # three rows of each are named by no token
    assert counts["EMB-8", "jax", "torch/cpu"] == (2, 2 * 320)
    # Repeat, three layouts, two ids for padding, six orders, two splits; and JAX's jit.
    assert counts["EMB-10", "torch", "plain call"] == (2 * 14, 2 * 14 * 320)
    assert counts["EMB-10", "jax", "plain call"] == (2 * 15, 2 * 15 * 320)


@pytest.mark.parametrize("tier", DIGESTS)
def test_a_tiers_digest_follows_from_the_digests_that_the_package_pins(tier):
    lines = [
        f"{case.id} {verb} {digest}"
        for case in (*contract.cases(Tier(tier)), *embedding_gradient.cases(Tier(tier)))
        for verb, digest in contract.pinned()[case.id].answers.items()
    ]
    assert digest_of(lines) == DIGESTS[tier]


@pytest.mark.parametrize("name", EACH_ALONE)
def test_one_framework_alone_is_held_to_the_pinned_digests_and_says_that_no_second_confirmed_it(name, few):
    report = verify(framework=(name, name), **SMALL)
    assert report.ok
    assert report.digest == FEW_DIGEST
    assert set(report.environment) == {name}
    assert {v.framework for v in report.verdicts} == {name, "numpy"}
    version = frameworks.load(name, "tests").version()
    assert report.statement == (
        f"Confirmed (smoke tier): {name} {version} on cpu, each equal to the exact answer and to the digests pinned in"
        f" the package, bit for bit, on 17,028 output elements."
        " Not compared: EMB-7, EMB-8, EMB-9, EMB-10, EMB-11, EMB-12. No second framework confirmed it in this run."
    )


@needs_torch
def test_a_report_goes_through_json(few):
    report = verify(framework=("torch",), **SMALL)
    assert msgspec.json.decode(report.to_json(), type=type(report)) == report
    assert (report.operator, report.contract_version, report.subject) == ("embedding", 1, "smoke tier")
    assert report.seconds >= 0


@needs_torch
def test_float64_has_no_widened_verb_to_confirm(monkeypatch, on_cpu):
    [case] = [case for case in contract.cases(dtypes=("float64",)) if case.ids == "equal" and case.shape == (2, 3)]
    monkeypatch.setattr(contract, "cases", lambda tier, dtypes: (case,))
    report = verify(framework=("torch",), dtype=("float64",))
    assert report.ok
    assert "EMB-2" not in {v.clause for v in report.verdicts}


# What is not


def lying(monkeypatch, name="torch", verb="forward"):
    """Flip the lowest bit of the first element that a golden returns."""
    framework = frameworks.load(name, "tests")
    honest = getattr(framework.golden, verb)

    def flipped(ids, table):
        out = honest(ids, table)
        if out.numel():
            framework.bits_of(out).reshape(-1)[:1] ^= 1
        return out

    monkeypatch.setattr(framework.golden, verb, flipped)


@needs_torch
def test_a_wrong_golden_is_not_confirmed(monkeypatch, few):
    lying(monkeypatch)
    report = verify(framework=("torch",), **SMALL)
    assert not report.ok
    failed = failures_of(report)
    assert list(failed) == [("EMB-1", "torch", "exact")]
    vector, scalar = failed["EMB-1", "torch", "exact"]
    assert vector == (
        "out[0, 0]: got 0x95, expected 0x94 (1 ulp; 1 of 8481 elements differ)"
        " [torch.forward on cpu, float8_e5m2-tagged-300x33-zipf-257-int64]"
    )
    assert scalar == (
        "out[0]: got 0xea, expected 0xeb (1 ulp; 1 of 33 elements differ)"
        " [torch.forward on cpu, float8_e5m2-tagged-300x33-equal-scalar-int64]"
    )
    verdicts = len(report.verdicts)
    assert report.statement == (
        f"Not confirmed: 1 of {verdicts} verdicts did not pass: EMB-1 (torch/cpu against exact)."
    )
    assert report.digest != SMALL_DIGEST


@pytest.mark.torch
@pytest.mark.jax
def test_a_wrong_golden_differs_from_the_other_framework_too(monkeypatch, few):
    lying(monkeypatch, verb="forward_fp32")
    failed = failures_of(verify(**SMALL))
    assert set(failed) == {("EMB-2", "torch", "exact"), ("EMB-2", "jax", "torch/cpu")}
    assert "[jax and torch forward_fp32, float8_e5m2-" in failed["EMB-2", "jax", "torch/cpu"][0]


@needs_torch
def test_a_changed_fixture_is_not_confirmed(monkeypatch, few):
    pinned = dict(contract.pinned())
    case = few[0]
    pinned[case.id] = msgspec.structs.replace(pinned[case.id], ids="0" * 64)
    monkeypatch.setattr(contract, "pinned", lambda: pinned)
    failed = failures_of(verify(framework=("torch",), **SMALL))
    [problem] = failed.pop(("fixtures", "numpy", "pinned digests"))
    assert failed == {}
    assert problem.startswith(f"{case.id}: got ids ")
    assert "expected ids 000000000000, table " in problem
    assert problem.endswith(f"[build {case.id}]")


@needs_torch
def test_a_case_that_nothing_is_pinned_for_is_not_confirmed(monkeypatch, few):
    monkeypatch.setattr(contract, "pinned", dict)
    failed = failures_of(verify(framework=("torch",), **SMALL))
    problems = failed["fixtures", "numpy", "pinned digests"]
    assert len(problems) == len(few)
    assert all("expected nothing pinned [build " in problem for problem in problems)


@pytest.mark.torch
@pytest.mark.jax
def test_a_comparison_of_the_two_that_is_left_out_is_not_confirmed(monkeypatch, few):
    monkeypatch.setattr(verifying, "compare_subjects", lambda *args: None)
    failed = failures_of(verify(**SMALL))
    assert failed == {
        ("EMB-1", "jax", "torch/cpu"): [f"{NONE_COMPARED} [against torch/cpu]"],
        ("EMB-2", "jax", "torch/cpu"): [f"{NONE_COMPARED} [against torch/cpu]"],
    }


@needs_torch
def test_a_run_that_examines_nothing_is_not_confirmed(monkeypatch, few):
    monkeypatch.setattr(verifying, "examine", lambda *args: {})
    report = verify(framework=("torch",), **SMALL)
    assert not report.ok
    assert {clause for clause, _, _ in failures_of(report)} == {f"EMB-{n}" for n in (1, 2, 3, 5, 6)}


@needs_torch
def test_a_run_that_refuses_no_bad_ids_is_not_confirmed(monkeypatch, few):
    monkeypatch.setattr(verifying, "examine_bad_ids", lambda *args: None)
    assert set(failures_of(verify(framework=("torch",), **SMALL))) == {("EMB-4", "torch", "exact")}


@needs_torch
def test_a_run_whose_conditions_are_left_out_is_not_confirmed(monkeypatch, few):
    few[0] = msgspec.structs.replace(few[0], conditions=True)
    monkeypatch.setattr(run, "CONDITIONS", {})
    monkeypatch.setattr(frameworks.load("torch", "tests"), "modes", dict)
    assert failures_of(verify(framework=("torch",), **SMALL)) == {
        ("EMB-7", "torch", "plain call"): [f"{NONE_COMPARED} [against plain call]"]
    }


@needs_torch
def test_no_case_at_all_is_nothing_compared(monkeypatch, on_cpu):
    monkeypatch.setattr(contract, "cases", lambda tier, dtypes: ())
    told = refused(framework=("torch",))
    assert isinstance(told, errors.NothingComparedError)
    assert str(told) == "cases: got none, expected one or more in the standard tier [verify]"


# The process that it runs in


@needs_torch
def test_warnings_of_a_framework_of_itself_are_no_verdict_even_where_they_are_errors(monkeypatch, few):
    few[0] = msgspec.structs.replace(few[0], conditions=True)
    modes = frameworks.load("torch", "tests").modes()
    monkeypatch.setattr(frameworks.load("torch", "tests"), "modes", lambda: {"compile": modes["compile"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = verify(framework=("torch",), **SMALL)
    assert failures_of(report) == {}
    assert "EMB-7" in {v.clause for v in report.verdicts}


@needs_torch
def test_no_way_of_calling_changes_the_filters_of_warnings_which_all_threads_share(monkeypatch):
    import torch

    before, seen = warnings.filters, []
    monkeypatch.setattr(torch, "compile", lambda call, **how: lambda *given: seen.append(warnings.filters))
    frameworks.load("torch", "tests").modes()["compile"](None)(None, None)
    assert len(seen) == 1
    assert seen[0] is before


@pytest.mark.jax
def test_a_traced_call_is_not_kept_with_the_arrays_that_it_holds():
    framework = frameworks.load("jax", "tests")

    class Holder:
        def call(self, ids, table):
            return ids

    holder = Holder()
    watch = weakref.ref(holder)
    framework.traced(holder.call)(np.zeros(3, np.int32), np.zeros((2, 2), np.float32))
    del holder
    gc.collect()
    assert watch() is None


# Usage and environment


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"tier": "quick"}, "--tier: got 'quick', expected one of smoke, standard, exhaustive [verify]"),
        ({"framework": ("tf",)}, "--framework: got 'tf', expected one of torch, jax [verify]"),
        ({"device": ("gpu",)}, "--device: got 'gpu', expected one of auto, cpu, cuda, tpu [verify]"),
        ({"dtype": ("float4",)}, f"--dtype: got 'float4', expected one of {', '.join(FORMATS)} [verify]"),
        ({"tensor": "w"}, "--tensor or --ids: got no --weights, expected a safetensors file with them [verify]"),
        ({"ids_file": "i.npy"}, "--tensor or --ids: got no --weights, expected a safetensors file with them [verify]"),
        (
            {"weights_file": "w", "dtype": ("float16",)},
            "--dtype: got float16, expected the file's own dtype, with --weights [verify]",
        ),
    ],
    ids=["tier", "framework", "device", "dtype", "tensor", "ids", "dtype of weights"],
)
def test_what_cannot_be_done_as_asked_is_refused_before_a_framework_is_loaded(how, message, monkeypatch):
    pretend(monkeypatch, torch=("cpu",), jax=("cpu",))
    monkeypatch.setattr(frameworks, "load", lambda *args: {"torch": pytest.fail("loaded")})
    told = refused(**how)
    assert isinstance(told, errors.UsageError)
    assert str(told) == message


@pytest.mark.parametrize("missing", frameworks.FRAMEWORKS)
@pytest.mark.parametrize("how", [{}, {"framework": frameworks.FRAMEWORKS}], ids=["by default", "both asked for"])
def test_a_missing_framework_is_told_with_the_line_that_installs_it(missing, how, monkeypatch):
    monkeypatch.setattr(frameworks, "installed", lambda name: name != missing)
    monkeypatch.setattr(frameworks, "load", lambda *args: pytest.fail("loaded"))
    told = refused(**how)
    assert isinstance(told, errors.MissingFrameworkError)
    assert str(told) == f"{missing}: got not installed, expected it to be: pip install 'xref[{missing}]' [verify]"


@pytest.mark.parametrize("name", EACH_ALONE)
def test_a_framework_that_is_not_installed_is_no_matter_where_the_other_is_asked_for(name, monkeypatch):
    monkeypatch.setattr(frameworks, "installed", lambda other: other == name)
    monkeypatch.setattr(frameworks, "devices", lambda framework, call: ("cpu",))
    [subject] = verifying._subjects((name,), ("auto",))
    assert subject.where == (name, "cpu")


@needs_torch
@pytest.mark.parametrize("kind", ["cuda", "tpu"])
def test_a_device_that_was_asked_for_and_is_not_there_is_refused(kind, on_cpu):
    assert str(refused(framework=("torch",), device=(kind,))) == (
        f"--device: got {kind}, expected a device that torch has here: cpu [verify]"
    )


@pytest.mark.torch
@pytest.mark.jax
def test_an_absent_device_is_refused_though_the_other_framework_could_do_without(on_cpu):
    assert str(refused(device=("tpu",))) == "--device: got tpu, expected a device that jax has here: cpu [verify]"
    assert (
        str(refused(device=("cpu", "cuda")))
        == "--device: got cuda, expected a device that torch has here: cpu [verify]"
    )


@pytest.mark.torch
@pytest.mark.jax
def test_each_framework_runs_on_every_device_that_it_has(monkeypatch):
    def ran(*devices):
        return [subject.where for subject in verifying._subjects((), devices)]

    pretend(monkeypatch, torch=("cpu", "cuda"), jax=("cpu", "cuda"))
    assert ran("auto") == [("torch", "cpu"), ("torch", "cuda"), ("jax", "cpu"), ("jax", "cuda")]
    assert ran("cuda") == [("torch", "cuda"), ("jax", "cuda")]
    assert ran("cuda", "auto", "cuda") == [("torch", "cuda"), ("torch", "cpu"), ("jax", "cuda"), ("jax", "cpu")]
    pretend(monkeypatch, torch=("cpu",), jax=("cpu", "tpu"))
    assert ran("auto") == [("torch", "cpu"), ("jax", "cpu"), ("jax", "tpu")]
    assert ran("tpu") == [("torch", "cpu"), ("jax", "tpu")]


@pytest.mark.parametrize("call", [frameworks.load, frameworks.check_installed])
def test_a_framework_that_there_is_not_is_refused(call):
    with pytest.raises(errors.UsageError) as caught:
        call("tf", "here")
    assert str(caught.value) == "framework: got tf, expected one of torch, jax [here]"


@needs_torch
def test_a_framework_that_does_not_import_is_told(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(frameworks.importlib, "import_module", broken)
    assert str(refused(framework=("torch",))) == (
        "torch: got an import error (libcudart.so.13: cannot open shared object file), expected it to import [verify]"
    )


@needs_torch
def test_devices_that_cannot_be_told_are_told(monkeypatch):
    def broken():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(frameworks.load("torch", "tests"), "devices", broken)
    assert str(refused(framework=("torch",))) == (
        "torch devices: got an error (Unable to initialize backend 'cuda'), expected a list of them [verify]"
    )


# Checkpoints


@pytest.mark.torch
@pytest.mark.jax
def test_a_real_checkpoint_is_confirmed(real_table, on_cpu):
    file, told = real_table(), []
    report = verify(weights_file=file, tensor="embedding.weight", progress=lambda *step: told.append(step))
    assert failures_of(report) == {}
    torch, jax = (frameworks.load(name, "tests").version() for name in ("torch", "jax"))
    subject = f"{file.name}:embedding.weight (float16 32000 x 256, 8192 ids)"
    assert report.statement == (
        f"Confirmed ({subject}): torch {torch} on cpu and jax {jax} on cpu, each equal to the exact answer and to the"
        " other, bit for bit, on 8,388,608 output elements."
        " Not compared: EMB-4, EMB-8, EMB-9, EMB-10, EMB-11, EMB-12."
    )
    assert told == [(subject, 0, 1)]
    assert {v.clause for v in report.verdicts} == {f"EMB-{n}" for n in (1, 2, 3, 5, 6, 7)}
    stored = weights.find_table(file, None)
    dtype, table = stored.dtype, stored.read()
    answers = contract.exact_answers(weights.default_ids(32000, 256), table, dtype)
    assert report.digest == digest_of(
        f"{subject} {verb} {contract.answer_digest(verb, dtype, answer)}" for verb, answer in answers.items()
    )


@needs_torch
def test_ids_of_ones_own_are_looked_up_in_a_checkpoint(tmp_path, on_cpu):
    file = checkpoint(tmp_path / "m.safetensors", w=("F64", (50, 3)))
    np.save(tmp_path / "ids.npy", np.array([[0, 49], [7, 7]], dtype=">i2"))
    report = verify(weights_file=file, ids_file=tmp_path / "ids.npy", framework=("torch",))
    assert failures_of(report) == {}
    version = frameworks.load("torch", "tests").version()
    assert report.statement == (
        f"Confirmed (m.safetensors:w (float64 50 x 3, 4 ids)): torch {version} on cpu, each equal to the exact answer,"
        " bit for bit, on 12 output elements. Not compared: EMB-2, EMB-4, EMB-8, EMB-9, EMB-10, EMB-11, EMB-12."
        " No second framework confirmed it in this run."
    )


@needs_torch
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)], ids=["no rows", "no columns"])
def test_an_empty_table_is_refused(shape, tmp_path, on_cpu):
    file = checkpoint(tmp_path / "m.safetensors", w=("F32", shape))
    assert str(refused(weights_file=file, framework=("torch",))) == (
        f"w: got shape {shape}, expected a table with elements [verify]"
    )


@needs_torch
def test_a_wrong_golden_is_caught_on_a_checkpoint(tmp_path, monkeypatch, on_cpu):
    lying(monkeypatch)
    file = checkpoint(tmp_path / "m.safetensors", w=("F32", (50, 3)))
    (tmp_path / "ids.txt").write_text("0 49 7 7")
    report = verify(weights_file=file, ids_file=tmp_path / "ids.txt", framework=("torch",))
    assert ("EMB-1", "torch", "exact") in failures_of(report)


@pytest.mark.jax
def test_alarms_at_nans_do_not_disturb_a_run_on_nans():
    import jax

    framework = frameworks.load("jax", "tests")
    with jax.debug_nans(True), jax.debug_infs(True), framework.precision("float32"):
        table = framework.put(np.array([[0x7F800001], [0x7F800000]], np.uint32), "float32", "cpu")
        out = framework.golden.forward(np.array([0, 1]), table)
        assert framework.bits_of(out).reshape(-1).tolist() == [0x7F800001, 0x7F800000]
