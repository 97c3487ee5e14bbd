"""The judge against kernels that are wrong in one way each, and against right ones that are unusual.

What runs here is one mutant of each fault and the quicker right kernels, on one dtype, in the smoke tier: minutes, not
hours; of JAX, where each shape is compiled anew, a few kinds. All of them in the default tier:
`python tools/judge_mutants.py`.
"""

from __future__ import annotations

import pytest
from mutants.embedding import JAX_MUTANTS, TORCH_MUTANTS
from mutants.embedding_right import RIGHT_JAX, RIGHT_TORCH

from xref.judging.judge import judge

ONE_OF_EACH = (
    "clamped_at_both_ends", "bad_ids_give_zeros", "unchecked_in_two_dimensions", "bools_taken",
    "narrowed_before_the_check",
    "null_pointer_read_on_bad_ids", "ids_modulo_256", "ids_modulo_65536", "ids_through_bfloat16", "padding_row_zeroed",
    "rows_past_four_equal_shards_lost", "uint8_read_as_int8", "negatives_wrapped", "the_row_before", "one_id_wrong",
    "nan_quieted", "nan_to_zero", "infinity_saturated", "rounded_through_bfloat16", "rounded_through_float16",
    "rounded_through_float8", "product_with_a_one_hot_matrix", "NotWidened", "flattened", "scalar_given_an_axis",
    "columns_past_whole_vectors_unwritten", "tokens_past_3072_unwritten", "last_row_of_an_odd_table_misread",
    "columns_rolled_by_one", "strides_of_the_table_ignored", "more_than_768_tokens_have_other_bits",
)  # fmt: skip
ONE_OF_SOME = (
    "traced_ids_clamped", "other_bits_under_a_trace", "TableDonated", "gradient_stopped",
)  # fmt: skip
UNUSUAL = ("torch_index_select", "torch_columns_first_in_memory", "torch_two_shards", "torch_in_order_of_ids")


def dtype_of(mutant):
    return "bfloat16" if not mutant.dtypes or "bfloat16" in mutant.dtypes else mutant.dtypes[0]


def check_caught(framework, name, mutant):
    report = judge(mutant.make(), framework=framework, tier="smoke", dtype=dtype_of(mutant), name=name)
    caught = [verdict for verdict in report.verdicts if verdict.bad and verdict.clause in mutant.clauses]
    assert caught
    assert not report.ok
    assert any(each.partition(":")[0] == mutant.fault for verdict in caught for each in verdict.explanations[:1])


@pytest.mark.torch
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_mutant_is_caught_by_the_clause_that_it_breaks_and_its_fault_is_named_first(name):
    check_caught("torch", name, TORCH_MUTANTS[name])


@pytest.mark.jax
@pytest.mark.parametrize("name", ONE_OF_SOME)
def test_a_jax_mutant_is_caught_by_the_clause_that_it_breaks_and_its_fault_is_named_first(name):
    check_caught("jax", name, JAX_MUTANTS[name])


@pytest.mark.torch
@pytest.mark.parametrize("name", UNUSUAL)
def test_a_right_kernel_passes_however_unusual(name):
    report = judge(RIGHT_TORCH[name].make(), framework="torch", tier="smoke", dtype="bfloat16", name=name)
    assert report.ok, report.statement


@pytest.mark.jax
@pytest.mark.parametrize("name", ["jax_plain"])
def test_a_right_jax_kernel_passes_however_unusual(name):
    report = judge(RIGHT_JAX[name].make(), framework="jax", tier="smoke", dtype="bfloat16", name=name)
    assert report.ok, report.statement
