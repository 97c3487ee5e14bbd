"""The main job: `xref.verify` confirms the goldens, says on what that rests, and nothing that it did not compare."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import sys
import types
import warnings
import weakref

import msgspec
import numpy as np
import pytest
from support.checkpoints import checkpoint
from support.few import few as few_of_all

from xref import errors, operators, verify
from xref.bits import FORMATS
from xref.engine import frameworks
from xref.engine.candidate import Candidate
from xref.engine.outcomes import Outcome
from xref.engine.steps import NotMade, Replies
from xref.operators.embedding import answers, cases, clauses, gradient_cases, pinned, weights
from xref.operators.embedding.examine import conditions, conduct, forward
from xref.spec import Skip, Tier, declared
from xref.verifying.golden import Golden, golden_of, goldens_of
from xref.verifying.verify import confirmed

EMBEDDING = operators.find("embedding")
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
    monkeypatch.setattr(frameworks, "devices", lambda framework, call: devices[framework.name])


@pytest.fixture
def on_cpu(monkeypatch):
    pretend(monkeypatch, torch=("cpu",), jax=("cpu",))


@pytest.fixture
def few():
    return few_of_all()


def golden(name, **lies):
    """Return a golden on the CPU, some of whose verbs are others: each is a function of the honest one."""
    honest = golden_of(EMBEDDING, frameworks.load(name, "tests"), "cpu")._candidate
    verbs = {verb: lies[verb](run) if verb in lies else run for verb, run in honest.verbs.items()}
    return Golden(Candidate(name, honest.framework, "cpu", verbs))


def report_on(operator, *goldens, **how):
    return confirmed(operator, goldens, **{"tier": Tier.SMOKE, "dtypes": ("float8_e5m2",), **how})


# What is confirmed


@pytest.fixture(scope="module")
def both():
    """A run of both frameworks, and what the progress callback was told."""
    told = []
    report = verify(device=("cpu",), progress=lambda *step: told.append(step), **SMALL)
    return report, told


@pytest.mark.torch
@pytest.mark.jax
def test_two_right_goldens_are_confirmed_with_the_digest_that_every_machine_gets(both):
    report, _ = both
    assert failures_of(report) == {}
    assert report.ok
    assert report.digest == SMALL_DIGEST


@pytest.mark.torch
@pytest.mark.jax
def test_the_statement_says_what_was_confirmed_by_which_versions_on_how_many_elements(both):
    report, _ = both
    torch, jax = (frameworks.load(name, "tests").arrays.version() for name in ("torch", "jax"))
    assert report.statement == (
        f"Confirmed (smoke tier): torch {torch} on cpu and jax {jax} on cpu, each equal to the exact answer and to the"
        " other and to the digests pinned in the package, bit for bit, on 319,696 output elements."
        " Not compared: EMB-8, EMB-9, EMB-11."
    )
    assert report.environment == {
        "torch": {"version": torch, "cpu": "CPU"},
        "jax": {"version": jax, "cpu": "CPU"},
    }


@pytest.mark.torch
@pytest.mark.jax
def test_every_clause_of_a_forward_pass_has_its_verdicts(both):
    report, _ = both
    truths = {(f"EMB-{n}", "exact") for n in (1, 2, 3, 4)} | {("EMB-5", "inputs before"), ("EMB-6", "first call")}
    truths |= {("EMB-7", "exact"), ("EMB-7", "plain call"), ("EMB-10", "plain call"), ("EMB-12", "a limit")}
    expected = {(clause, name, against) for clause, against in truths for name in ("torch", "jax")}
    expected |= {("fixtures", "numpy", "pinned digests"), ("EMB-1", "jax", "torch/cpu"), ("EMB-2", "jax", "torch/cpu")}
    assert keys_of(report) == expected
    assert all(v.elements and v.device == "cpu" for v in report.verdicts)
    order = [v.clause for v in report.verdicts]
    assert order == sorted(order, key=["fixtures", *(clause.id for clause in clauses.CLAUSES)].index)


@pytest.mark.torch
@pytest.mark.jax
def test_the_verdicts_count_every_case_and_element(both):
    report, _ = both
    counts = {(v.clause, v.framework, v.against): (v.cases, v.elements) for v in report.verdicts}
    fixed = cases.cases(Tier.SMOKE, dtypes=SMALL["dtype"])
    rows = sum(case.call.tokens * case.call.hidden for case in fixed)
    for clause in ("EMB-1", "EMB-2"):
        assert counts[clause, "jax", "torch/cpu"] == (len(fixed), rows)
        for name in ("torch", "jax"):  # the plain calls of conditions are judged as well
            assert counts[clause, name, "exact"] > (len(fixed), rows)
    assert counts["fixtures", "numpy", "pinned digests"][0] == len(fixed)


@pytest.mark.torch
@pytest.mark.jax
def test_progress_is_told_before_each_call(both):
    _, told = both
    assert [done for _, done, _ in told] == list(range(told[0][2]))
    assert {of for _, _, of in told} == {len(told)}
    assert told[0][0].startswith("forward float8_e5m2 ")


@pytest.mark.parametrize("tier", DIGESTS)
def test_a_tiers_digest_follows_from_the_digests_that_the_package_pins(tier):
    lines = [
        f"{case.id} {verb} {digest}"
        for case in (*cases.cases(Tier(tier)), *gradient_cases.cases(Tier(tier)))
        for verb, digest in answers.pinned()[case.id].answers.items()
    ]
    assert digest_of(lines) == DIGESTS[tier]


@pytest.mark.parametrize("name", EACH_ALONE)
def test_one_framework_alone_is_held_to_the_pinned_digests_and_says_that_no_second_confirmed_it(name, few):
    report = report_on(few, golden(name))
    assert failures_of(report) == {}
    assert report.ok
    assert report.digest == FEW_DIGEST
    assert set(report.environment) == {name}
    assert {v.framework for v in report.verdicts} == {name, "numpy"}
    version = frameworks.load(name, "tests").arrays.version()
    assert report.statement == (
        f"Confirmed (smoke tier): {name} {version} on cpu, each equal to the exact answer and to the digests pinned in"
        f" the package, bit for bit, on 17,028 output elements."
        " Not compared: EMB-4, EMB-7, EMB-8, EMB-9, EMB-10, EMB-11, EMB-12."
        " No second framework confirmed it in this run."
    )


@needs_torch
def test_a_report_goes_through_json(few):
    report = report_on(few, golden("torch"))
    assert msgspec.json.decode(report.to_json(), type=type(report)) == report
    assert (report.operator, report.contract_version, report.subject) == ("embedding", 1, "smoke tier")
    assert report.seconds >= 0


@needs_torch
def test_float64_has_no_widened_verb_to_confirm(few):
    report = report_on(few, golden("torch"), dtypes=("float64",))
    assert report.ok
    assert [v.elements for v in report.verdicts if v.clause == "EMB-2"] == [15]  # such a table is refused


# What is not


def flipped(name):
    """Return what flips the lowest bit of the first element that a verb returns."""
    arrays = frameworks.load(name, "tests").arrays

    def lie(honest):
        def run(ids, table):
            out = honest(ids, table)
            if out.numel():
                arrays.bits_of(out).reshape(-1)[:1] ^= 1
            return out

        return run

    return lie


@needs_torch
def test_a_wrong_golden_is_not_confirmed(few):
    report = report_on(few, golden("torch", forward=flipped("torch")))
    assert not report.ok
    failed = failures_of(report)
    assert list(failed) == [("EMB-1", "torch", "exact")]
    vector, scalar = failed["EMB-1", "torch", "exact"]
    assert vector.startswith(
        "out[0, 0]: got 0x95, expected 0x94 (1 ulp; 1 of 8481 elements differ)"
        " [torch on cpu, forward float8_e5m2 300x33 tagged zipf 257 int64"
    )
    assert scalar.startswith(
        "out[0]: got 0xea, expected 0xeb (1 ulp; 1 of 33 elements differ)"
        " [torch on cpu, forward float8_e5m2 300x33 tagged equal scalar int64"
    )
    verdicts = len(report.verdicts)
    assert report.statement == (
        f"Not confirmed: 1 of {verdicts} verdicts did not pass: EMB-1 (torch/cpu against exact)."
    )
    assert report.digest != FEW_DIGEST


@pytest.mark.torch
@pytest.mark.jax
def test_a_wrong_golden_differs_from_the_other_framework_too(few):
    failed = failures_of(report_on(few, golden("torch", forward_fp32=flipped("torch")), golden("jax")))
    assert set(failed) == {("EMB-2", "torch", "exact"), ("EMB-2", "jax", "torch/cpu")}
    assert "[jax and torch forward_fp32, forward_fp32 float8_e5m2 " in failed["EMB-2", "jax", "torch/cpu"][0]


@needs_torch
def test_a_golden_that_always_raises_leaves_nothing_confirmed(few):
    def raising(honest):
        def run(ids, table):
            raise RuntimeError("no kernel")

        return run

    report = report_on(few, golden("torch", forward=raising, forward_fp32=raising))
    by_clause = {v.clause: v for v in report.verdicts if v.framework == "torch"}
    assert by_clause["EMB-1"].outcome is Outcome.ERROR
    assert by_clause["EMB-1"].problems[0].startswith("out: got RuntimeError: no kernel at test_verify.py:")
    assert {v.outcome for v in by_clause.values()} == {Outcome.ERROR}


def with_pins(monkeypatch, operator, **changed):
    """Return the operator with another module of pinned digests: some functions of it are others."""
    module = types.ModuleType("changed_pins")
    vars(module).update({name: getattr(pinned, name) for name in pinned.__all__}, **changed)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return dataclasses.replace(operator, modules={**operator.modules, "pinned": module.__name__})


@needs_torch
@pytest.mark.parametrize("part", ["ids", "table", "answers"])
def test_a_changed_fixture_is_not_confirmed(part, monkeypatch, few):
    pins = dict(answers.pinned())
    name = "float8_e5m2-tagged-300x33-zipf-257-int64"
    other = dict.fromkeys(pins[name].answers, "0" * 64) if part == "answers" else "0" * 64
    pins[name] = msgspec.structs.replace(pins[name], **{part: other})
    failed = failures_of(report_on(with_pins(monkeypatch, few, pinned=lambda: pins), golden("torch")))
    [problem] = failed.pop(("fixtures", "numpy", "pinned digests"))
    assert failed == {}
    assert problem.startswith(f"{name}: got ids ")
    assert "000000000000" in problem.partition("expected")[2]
    assert problem.endswith(f"[build {name}]")


@needs_torch
def test_a_case_that_nothing_is_pinned_for_is_not_confirmed(monkeypatch, few):
    failed = failures_of(report_on(with_pins(monkeypatch, few, pinned=dict), golden("torch")))
    problems = failed["fixtures", "numpy", "pinned digests"]
    assert len(problems) == 3
    assert all("expected nothing pinned [build " in problem for problem in problems)


@needs_torch
def test_a_case_that_is_weak_evidence_is_not_confirmed(monkeypatch, few):
    weak = with_pins(monkeypatch, few, weakness_of=lambda call: "weak")
    assert failures_of(report_on(weak, golden("torch"))) == {
        ("fixtures", "numpy", "pinned digests"): [
            f"weak [build float8_e5m2-tagged-300x33-{ids}-int64]" for ids in ("zipf-257", "equal-0", "equal-scalar")
        ]
    }


@pytest.mark.parametrize("values", ["equal-100x8", "negative-zero-100x8", "cancelling-40x8"])
def test_a_gradient_on_which_no_order_shows_may_not_stand_for_invariance(values, monkeypatch):
    name = f"bfloat16-to-bfloat16-{values}-zipf-256"
    [case] = [case for case in gradient_cases.cases() if case.id == name]
    monkeypatch.setattr(pinned, "_names", lambda: {name: True})
    weak = f"{name}: got 0 % of elements that another order changes, expected more"
    assert pinned.weakness_of(case.call) == ("" if values.startswith("cancelling") else weak)
    monkeypatch.setattr(pinned, "_names", lambda: {name: False})
    assert pinned.weakness_of(case.call) == ""


class Silent:
    """A golden of which nothing comes."""

    def __init__(self, honest):
        self.traits, self.concurrent = honest.traits, honest.concurrent

    def perform(self, script):
        return Replies(script, [NotMade(why="silent") for _ in script.steps])

    def forget(self):
        pass


@needs_torch
def test_a_run_in_which_nothing_is_made_is_not_confirmed(few):
    report = report_on(few, Silent(golden("torch")))
    assert not report.ok
    assert report.digest == digest_of([])


@needs_torch
@pytest.mark.parametrize("id", ["EMB-1", "EMB-4", "EMB-7/padding"])
def test_a_check_that_yields_neither_a_call_nor_a_reason_is_not_confirmed(id, few):
    [check] = [check for check in declared(forward, conditions, conduct) if check.id == id]
    empty = dataclasses.replace(check, calls=lambda exam: ())
    others = [each for each in few.checks if each.id != id]
    report = report_on(dataclasses.replace(few, checks=(*others, empty)), golden("torch"))
    assert failures_of(report) == {
        (check.clause, "torch", check.against): [f"{NONE_COMPARED} [{id}, against {check.against}]"]
    }
    excused = dataclasses.replace(check, calls=lambda exam: (Skip("for a reason"),))
    report = report_on(dataclasses.replace(few, checks=(*others, excused)), golden("torch"))
    assert failures_of(report) == {}
    assert f"{check.clause}" in report.statement.partition("Not compared: ")[2]


@needs_torch
def test_no_call_at_all_is_nothing_compared(few):
    nothing = tuple(dataclasses.replace(check, calls=lambda exam: ()) for check in few.checks)
    with pytest.raises(errors.NothingComparedError) as caught:
        report_on(dataclasses.replace(few, checks=nothing), golden("torch"))
    assert str(caught.value) == "cases: got none, expected one or more in the smoke tier [verify]"


# The process that it runs in


@needs_torch
def test_warnings_of_a_framework_of_itself_are_no_verdict_even_where_they_are_errors(few):
    def warning(honest):
        def run(ids, table):
            warnings.warn("of its insides", DeprecationWarning, stacklevel=1)
            return honest(ids, table)

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert failures_of(report_on(few, golden("torch", forward=warning))) == {}


@needs_torch
def test_no_way_of_calling_changes_the_filters_of_warnings_which_all_threads_share(monkeypatch):
    import torch

    before, seen = warnings.filters, []
    monkeypatch.setattr(torch, "compile", lambda call, **how: lambda *given: seen.append(warnings.filters))
    frameworks.load("torch", "tests").modes.transforms()["compile"](None)(None, None)
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
    framework.modes.traced(holder.call)(np.zeros(3, np.int32), np.zeros((2, 2), np.float32))
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
    [(framework, device)] = goldens_of(EMBEDDING, (name,), ("auto",))
    assert (framework.name, device) == (name, "cpu")


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
        return [(framework.name, device) for framework, device in goldens_of(EMBEDDING, (), devices)]

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

    monkeypatch.setattr(frameworks, "_loaded", broken)
    assert str(refused(framework=("torch",))) == (
        "torch: got an import error (libcudart.so.13: cannot open shared object file), expected it to import [verify]"
    )


@needs_torch
def test_devices_that_cannot_be_told_are_told(monkeypatch):
    def broken():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(frameworks.load("torch", "tests").arrays, "devices", broken)
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
    torch, jax = (frameworks.load(name, "tests").arrays.version() for name in ("torch", "jax"))
    subject = f"{file.name}:embedding.weight (float16 32000 x 256, 8192 ids)"
    assert report.statement == (
        f"Confirmed ({subject}): torch {torch} on cpu and jax {jax} on cpu, each equal to the exact answer and to the"
        " other, bit for bit, on 8,388,608 output elements."
        " Not compared: EMB-4, EMB-8, EMB-9, EMB-10, EMB-11, EMB-12."
    )
    assert told[0] == ("forward float16 32000x256 loaded loaded 8x1024 int64 3 times", 0, len(told))
    assert {v.clause for v in report.verdicts} == {f"EMB-{n}" for n in (1, 2, 3, 5, 6, 7)}
    stored = weights.find_table(file, None)
    dtype, table = stored.dtype, stored.read()
    exact = answers.exact_answers(weights.default_ids(32000, 256), table, dtype)
    assert report.digest == digest_of(
        f"{subject} {verb} {answers.answer_digest(verb, dtype, answer)}" for verb, answer in exact.items()
    )


@needs_torch
def test_ids_of_ones_own_are_looked_up_in_a_checkpoint(tmp_path, on_cpu):
    file = checkpoint(tmp_path / "m.safetensors", w=("F64", (50, 3)))
    np.save(tmp_path / "ids.npy", np.array([[0, 49], [7, 7]], dtype=">i2"))
    report = verify(weights_file=file, ids_file=tmp_path / "ids.npy", framework=("torch",))
    assert failures_of(report) == {}
    version = frameworks.load("torch", "tests").arrays.version()
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
        f"w: got shape {shape}, expected a table with elements [verify --weights]"
    )


@needs_torch
def test_a_wrong_golden_is_caught_on_a_checkpoint(tmp_path, monkeypatch, on_cpu):
    torch_embedding = frameworks.load("torch", "tests").arrays.golden
    monkeypatch.setattr(torch_embedding, "forward", flipped("torch")(torch_embedding.forward))
    file = checkpoint(tmp_path / "m.safetensors", w=("F32", (50, 3)))
    (tmp_path / "ids.txt").write_text("0 49 7 7")
    report = verify(weights_file=file, ids_file=tmp_path / "ids.txt", framework=("torch",))
    assert ("EMB-1", "torch", "exact") in failures_of(report)


@pytest.mark.jax
def test_alarms_at_nans_do_not_disturb_a_run_on_nans():
    import jax

    framework = frameworks.load("jax", "tests")
    with jax.debug_nans(True), jax.debug_infs(True), framework.arrays.precision("float32"):
        table = framework.arrays.put(np.array([[0x7F800001], [0x7F800000]], np.uint32), "float32", "cpu")
        out = framework.arrays.golden.forward(np.array([0, 1]), table)
        assert framework.arrays.bits_of(out).reshape(-1).tolist() == [0x7F800001, 0x7F800000]
