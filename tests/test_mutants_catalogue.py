"""The catalogue of faults, the mutants that have them, and the right kernels: they fit together; the right are right.

That the judge finds each mutant out, and passes each right kernel, is tested beside the judge.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mutants.embedding import JAX_MUTANTS, TORCH_MUTANTS
from mutants.embedding_right import RIGHT_JAX, RIGHT_TORCH
from support.helpers import FRAMEWORKS, answer, assert_same_bits, load, special_rows
from support.processes import fresh

from xref import bits
from xref.bits import FORMATS
from xref.inputs import make_ids, make_table
from xref.operators.embedding.calls import sums
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.clauses import CLAUSES, VERBS, verbs_of
from xref.operators.embedding.examine.conduct import BAD_IDS
from xref.operators.embedding.faults import FAULTS

MUTANTS = {"torch": TORCH_MUTANTS, "jax": JAX_MUTANTS}
ALL_MUTANTS = [mutant for found in MUTANTS.values() for mutant in found.values()]
RIGHT = {"torch": RIGHT_TORCH, "jax": RIGHT_JAX}


def of_each(found):
    """One parameter for each registered candidate, marked with its framework."""
    marks = {param.values[0]: param.marks for param in FRAMEWORKS}
    return [
        pytest.param(kernel, id=f"{framework}-{name}", marks=marks[framework])
        for framework in found
        for name, kernel in found[framework].items()
    ]


def call(candidate, verb="forward"):
    return getattr(candidate, verb, candidate if verb == "forward" else None)


def right_gradient(framework, right, ids, cotangent, vocab, dtype):
    """Return the bits of a kernel's gradient: its own, or its framework's of its forward."""
    candidate = right.make()
    ids, cotangent = framework.put(ids, None, "cpu"), framework.put(cotangent, dtype, "cpu")
    if hasattr(candidate, "backward"):
        return framework.bits_of(candidate.backward(ids, cotangent, vocab))
    table = make_table("gaussian", vocab, cotangent.shape[-1], FORMATS[dtype])
    gradient = load(right.framework, "modes").gradient
    return framework.bits_of(gradient(call(candidate), ids, framework.put(table, dtype, "cpu"), cotangent))


# Mutants


def test_there_are_mutants_enough_of_both_frameworks():
    assert len(TORCH_MUTANTS) >= 50
    assert len(JAX_MUTANTS) >= 20


def test_every_clause_is_broken_by_a_mutant_foremost():
    assert {mutant.clauses[0] for mutant in ALL_MUTANTS} == {clause.id for clause in CLAUSES}


@pytest.mark.parametrize("mutant", ALL_MUTANTS, ids=lambda mutant: f"{mutant.framework}-{mutant.name}")
def test_a_mutant_names_a_fault_of_the_catalogue_and_clauses_of_the_contract(mutant):
    assert mutant.fault in {fault.name for fault in FAULTS}
    assert {*mutant.clauses} <= {clause.id for clause in CLAUSES}
    assert mutant.verb in (*VERBS, "backward")
    assert {*mutant.dtypes} <= {*FORMATS}


@pytest.mark.parametrize("mutant", of_each(MUTANTS))
def test_a_mutant_is_made_afresh_if_it_has_a_memory(mutant):
    made = mutant.make()
    assert callable(call(made))
    assert made is not mutant.make() or not hasattr(made, "forward")


@pytest.mark.parametrize("absent", ["torch", "jax"])
def test_the_candidates_are_listed_without_either_framework(absent):
    code = "import mutants.embedding as m, mutants.embedding_right as r; print(len(m.TORCH_MUTANTS) + len(r.RIGHT_JAX))"
    tests = str(Path(__file__).parent)
    assert fresh(f"import sys; sys.path.append({tests!r})", code, blocked=(absent,)) == str(
        len(TORCH_MUTANTS) + len(RIGHT_JAX)
    )


# Right kernels


def test_there_are_right_kernels_enough():
    assert len(RIGHT_TORCH) + len(RIGHT_JAX) >= 24


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("right", of_each(RIGHT))
def test_a_right_kernel_gives_the_exact_bits(right, dtype):
    framework, fmt = load(right.framework), FORMATS[dtype]
    table = make_table("patterns", 211, 33, fmt)
    table[:8] = np.resize(special_rows(fmt, 33), (8, 33))
    with framework.precision(dtype):
        for shape, id_dtype in (((9, 29), "int64"), ((), "uint8"), ((2, 0), "int16")):
            ids = make_ids("covering" if shape == (9, 29) else "zipf", shape, 211, id_dtype)
            for verb in verbs_of(dtype):
                if run := call(right.make(), verb):
                    out = run(framework.put(ids, None, "cpu"), framework.put(table, dtype, "cpu"))
                    assert_same_bits(framework.bits_of(out), answer(verb, ids, table, dtype))


@pytest.mark.parametrize("right", of_each(RIGHT))
def test_a_right_kernel_refuses_every_bad_id(right):
    framework = load(right.framework)
    for bad in BAD_IDS:
        ids = np.array(bad.flat(), dtype=object).reshape(bad.shape).astype(bad.id_dtype)
        table = framework.put(make_table("tagged", bad.vocab, 3, FORMATS["float32"]), "float32", "cpu")
        with pytest.raises(type(bad.error())):
            call(right.make())(framework.put(ids, None, "cpu"), table)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("right", of_each(RIGHT))
def test_a_right_kernels_gradient_is_within_the_error_of_float32_sums_whatever_the_layout(right, dtype):
    framework, fmt = load(right.framework), FORMATS[dtype]
    case = Gradient(
        check="EMB-8",
        verb="backward",
        source=dtype,
        result=dtype,
        values="cancelling",
        vocab=40,
        hidden=5,
        shape=(6, 50),
    )
    ids, cotangent = case.arrays()
    got = right_gradient(framework, right, ids, cotangent, case.vocab, dtype)
    assert_same_bits(right_gradient(framework, right, ids.ravel(), cotangent.reshape(-1, 5), case.vocab, dtype), got)

    exact = bits.from_bits(sums.answer(case, ids, cotangent), dtype).astype(np.float64)
    magnitudes = np.zeros_like(exact)
    np.add.at(magnitudes, ids, abs(bits.from_bits(cotangent, dtype).astype(np.float64)))
    steps = np.maximum(np.bincount(ids.ravel(), minlength=case.vocab) - 1, 0)[:, None] * 2.0**-24
    summing = steps / (1 - steps) * magnitudes
    bound = summing + 2.0 ** -(fmt.mantissa_bits + 1) * (abs(exact) + summing)
    assert (abs(bits.from_bits(got, dtype).astype(np.float64) - exact) <= bound).all()
