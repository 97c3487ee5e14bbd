"""The engine is judged first: a golden that is wrong in one way turns its clause red and no other, an honest one none.

And the tests here are judged too: with an engine that is broken on purpose they must fail.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from jax_liars import LIARS as JAX_LIARS
from liars import TITLES, H, Liar, V, build, judged, reds, verdicts_of
from torch_liars import LIARS as TORCH_LIARS

from xref.contracts import embedding as contract
from xref.judge import frameworks, run
from xref.judge.run import compare_subjects, examine
from xref.judge.subject import Subject
from xref.judge.verdict import Ledger, Outcome

needs_torch = pytest.mark.torch
needs_jax = pytest.mark.jax


def check(liar, name):
    """Assert that the clauses which a liar breaks are red, that no other is, and that the first says what is wrong."""
    problems = reds(verdicts_of(liar, name))
    assert set(problems) - set(liar.may) == set(liar.red), problems
    assert liar.says in problems[liar.red[0]][0]
    assert all(problem.endswith("]") and "\n" not in problem for told in problems.values() for problem in told)


@needs_torch
@pytest.mark.parametrize("fault", TORCH_LIARS)
def test_a_torch_liar_is_caught_by_the_clause_it_breaks(fault):
    check(TORCH_LIARS[fault], "torch")


@needs_jax
@pytest.mark.parametrize("fault", JAX_LIARS)
def test_a_jax_liar_is_caught_by_the_clause_it_breaks(fault):
    check(JAX_LIARS[fault], "jax")


@pytest.mark.parametrize(
    ("name", "dtype", "tokens"),
    [
        pytest.param("torch", "bfloat16", "small", marks=needs_torch),
        pytest.param("torch", "float16", "small", marks=needs_torch),
        pytest.param("jax", "bfloat16", "few", marks=needs_jax),
    ],
)
def test_the_honest_golden_breaks_no_clause(name, dtype, tokens):
    works = [tokens, "empty", "scalar", "bytes", "identity", "tall"]
    verdicts = judged(Subject(frameworks.load(name, "tests"), "cpu"), [build(work, dtype) for work in works])
    assert reds(verdicts) == {}
    assert {verdict.clause for verdict in verdicts} == {f"EMB-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 12)}
    assert all(verdict.elements for verdict in verdicts)


def test_every_clause_of_a_forward_pass_has_a_liar():
    broken = {clause for liar in TORCH_LIARS.values() for clause in liar.red}
    assert broken == {f"EMB-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 12)}


@needs_torch
def test_every_condition_and_mode_has_a_liar_that_it_finds_first():
    said = " ".join(liar.says for liar in TORCH_LIARS.values())
    names = {*run.CONDITIONS, *(f"mode {mode}" for mode in frameworks.load("torch", "tests").modes())}
    assert {name for name in names if f"condition {name}]" in said} == names


@needs_torch
def test_a_golden_that_always_raises_leaves_nothing_confirmed():
    def broken(honest, ids, table, memory):
        raise RuntimeError("no kernel")

    liar = Liar(broken, ("EMB-1",), "", verbs=contract.VERBS)
    verdicts = verdicts_of(liar, "torch")
    problems = reds(verdicts)
    assert problems["EMB-1"] == [
        f"out: got RuntimeError: no kernel, expected a result [torch.forward on cpu, {work} bfloat16]"
        for work in liar.works
    ]
    none = "elements: got none compared, expected at least one"
    assert problems["EMB-3"] == [f"{none} [against exact]"]
    assert problems["EMB-6"] == [f"{none} [against first call]"]
    assert problems["EMB-7"] == [f"{none} [against plain call]"]
    assert problems["EMB-4"][0].startswith("error: got RuntimeError: no kernel, expected IndexError: ")
    assert {verdict.clause for verdict in verdicts if verdict.outcome is Outcome.PASS} == {"EMB-5"}


@needs_torch
def test_a_condition_that_raises_does_not_hide_what_the_others_find():
    def wrong_and_raising(honest, ids, table, memory):
        if ids.shape == (1,) and table.shape == (V, H):
            raise RuntimeError("one token")
        return TORCH_LIARS["decoding_step_wrong"].lie(honest, ids, table, memory)

    problems = reds(verdicts_of(Liar(wrong_and_raising, ("EMB-7",), "", works=("small",)), "torch"))
    assert set(problems) == {"EMB-7"}
    assert [problem.rpartition("condition ")[2] for problem in problems["EMB-7"]] == ["population]", "decode]"]
    assert problems["EMB-7"][0].startswith("out: got RuntimeError: one token, expected a result [torch.forward on cpu")


@needs_torch
def test_inputs_that_cannot_be_had_are_an_error_and_not_a_crash(monkeypatch):
    subject = Liar(lambda honest, ids, table, memory: honest(ids, table), (), "").subject("torch")

    def full(array, dtype, device):
        raise MemoryError("the card is full")

    monkeypatch.setattr(subject.framework, "put", full, raising=False)
    ledger = Ledger(TITLES)
    assert examine(subject, build("small"), ledger) == {}
    [verdict] = ledger.verdicts()
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problems == [
        "out: got MemoryError: the card is full, expected a result [inputs on cpu, small bfloat16]"
    ]


@needs_torch
@pytest.mark.parametrize("verb", contract.VERBS)
def test_two_goldens_that_differ_are_told_apart(verb):
    honest = Liar(lambda honest, ids, table, memory: honest(ids, table), (), "").subject("torch")
    liar = Liar(TORCH_LIARS["last_column_wrong"].lie, (), "", verbs=(verb,)).subject("torch")
    ledger = Ledger(TITLES)
    work = build("small")
    outputs = [(subject, examine(subject, work, ledger)) for subject in (honest, liar)]
    alone = Ledger(TITLES)
    compare_subjects(*outputs, work, alone)
    outcomes = {verdict.clause: verdict.outcome for verdict in alone.verdicts()}
    wrong = {"forward": "EMB-1", "forward_fp32": "EMB-2"}
    assert outcomes == {clause: Outcome.FAIL if name == verb else Outcome.PASS for name, clause in wrong.items()}
    [problem] = reds(alone.verdicts())[wrong[verb]]
    assert problem.startswith("out[0, 34]: got 0x")
    assert problem.endswith(f"(1 ulp; 96 of 3360 elements differ) [torch and torch {verb}, small bfloat16]")


REWRITING = [name for name, liar in TORCH_LIARS.items() if "got other bits after the calls" in liar.says]


@needs_torch
@pytest.mark.parametrize("fault", REWRITING)
def test_what_one_golden_writes_into_its_inputs_another_does_not_read(fault):
    liar, work = TORCH_LIARS[fault], build("small", "bfloat16")
    honest, ledger = Subject(frameworks.load("torch", "tests"), "cpu"), Ledger(TITLES)
    examine(liar.subject("torch"), work, ledger)
    assert "EMB-5" in reds(ledger.verdicts())
    ledger = Ledger(TITLES)
    examine(honest, work, ledger)
    assert reds(ledger.verdicts()) == {}


@needs_torch
@pytest.mark.parametrize(("limit", "sparse"), [(contract.LARGE, False), (0, False), (contract.LARGE, True)])
def test_only_a_table_that_is_large_is_handed_over_without_a_copy(limit, sparse, monkeypatch):
    work = dataclasses.replace(build("empty"), sparse=sparse)
    subject = Liar(lambda honest, ids, table, memory: honest(ids, table), (), "").subject("torch")
    put, given = subject.framework.put, []
    monkeypatch.setattr(subject.framework, "put", lambda *args: (given.append(args[0]), put(*args))[1], raising=False)
    monkeypatch.setattr(contract, "LARGE", limit)
    examine(subject, work, Ledger(TITLES))
    [table] = [array for array in given if array.shape == work.table.shape]
    assert (table is work.table) == (limit == 0 or sparse)


@needs_torch
def test_a_framework_that_is_not_concurrent_gets_no_threads(monkeypatch):
    monkeypatch.setattr(run, "ThreadPoolExecutor", lambda *args: pytest.fail("threads"))
    examine(Subject(frameworks.load("torch", "tests"), "cpu"), build("empty"), Ledger(TITLES))


# The tests above are tests only if they fail with a broken engine.


def _comparison_unused(monkeypatch):
    monkeypatch.setattr(run, "mismatch", lambda got, expected, fmt: None)


def _compared_with_itself(monkeypatch):
    original = run._Verb.accuracy

    def accuracy(self, ids, table):
        self.expected = np.array(self.framework.bits_of(self.run(ids, table)))
        return original(self, ids, table)

    monkeypatch.setattr(run._Verb, "accuracy", accuracy)


def _nothing_recorded(monkeypatch):
    monkeypatch.setattr(Ledger, "record", lambda *args, **kwargs: None)


def _first_elements_only(monkeypatch):
    compare = run.mismatch
    monkeypatch.setattr(run, "mismatch", lambda got, expected, fmt: compare(got[..., :1], expected[..., :1], fmt))


def _compared_as_floats(monkeypatch):
    def loose(got, expected, fmt):
        as_floats = [run.FORMATS["float32"].uint.type(0) + (part.astype("u4") << 16) for part in (got, expected)]
        one, other = (part.view("f4") for part in as_floats)
        return None if np.array_equal(one, other, equal_nan=True) else original(got, expected, fmt)

    original = run.mismatch
    monkeypatch.setattr(run, "mismatch", loose)


def _no_conditions(monkeypatch):
    monkeypatch.setattr(run, "CONDITIONS", {})


def _layouts_dense(monkeypatch):
    monkeypatch.setattr(run, "TABLE_LAYOUTS", dict.fromkeys(run.TABLE_LAYOUTS, np.ascontiguousarray))


def _form_unchecked(monkeypatch):
    monkeypatch.setattr(run, "formed", lambda framework, out, wanted: framework.bits_of(out))


def _overlap_unseen(monkeypatch):
    monkeypatch.setattr(run, "shared_memory", lambda framework, out, inputs: [])


def _inputs_unchecked(monkeypatch):
    monkeypatch.setattr(run, "_purity", lambda *args: None)


def _any_error_will_do(monkeypatch):
    def refusal(call, given, expected):
        try:
            call(*given)
        except Exception:
            return None
        return "error: got a result"

    monkeypatch.setattr(run, "_refusal", refusal)


def _limit_raised(monkeypatch):
    monkeypatch.setattr(run, "FIXED_OVERHEAD", 1 << 40)


BROKEN_ENGINES = {
    "comparison unused": (_comparison_unused, "last_column_wrong"),
    "compared with itself": (_compared_with_itself, "last_column_wrong"),
    "nothing recorded": (_nothing_recorded, "last_column_wrong"),
    "first elements only": (_first_elements_only, "last_column_wrong"),
    "compared as floats: zeros": (_compared_as_floats, "minus_zero_lost"),
    "compared as floats: NaNs": (_compared_as_floats, "nan_quieted"),
    "no conditions": (_no_conditions, "alone_in_its_batch_wrong"),
    "layouts all dense": (_layouts_dense, "strides_of_the_table_ignored"),
    "form unchecked": (_form_unchecked, "axis_of_one_more"),
    "overlap unseen": (_overlap_unseen, "view_of_the_table"),
    "inputs unchecked": (_inputs_unchecked, "one_element_of_the_table_rewritten"),
    "any error will do": (_any_error_will_do, "frameworks_own_message"),
    "limit raised": (_limit_raised, "whole_table_copied_first"),
}


@needs_torch
@pytest.mark.parametrize("name", BROKEN_ENGINES)
def test_with_a_broken_engine_the_test_of_a_liar_fails(name, monkeypatch):
    break_engine, fault = BROKEN_ENGINES[name]
    check(TORCH_LIARS[fault], "torch")
    break_engine(monkeypatch)
    with pytest.raises(AssertionError):
        check(TORCH_LIARS[fault], "torch")
