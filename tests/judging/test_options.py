"""What a judge is asked for: every wrong value is one clear error, before anything is loaded."""

from __future__ import annotations

import pytest
from support.helpers import raises
from support.processes import fresh

from xref import errors, operators
from xref.bits import FORMATS
from xref.judging.options import Options, checked, selected
from xref.operators.embedding.calls.forward import Forward
from xref.spec import Tier

OPERATOR = operators.find("embedding")
CHECKS = tuple(check.id for check in OPERATOR.checks)
CALL = Forward(check="EMB-1", dtype="bfloat16", vocab=3, hidden=2, ids=(1,), shape=(1,))


def test_what_is_not_asked_for_has_its_default():
    assert checked(OPERATOR, "judge", {}) == Options()
    assert Options().dtype == tuple(FORMATS)


def test_what_is_asked_for_is_there():
    asked = {
        "framework": "jax", "device": "cuda", "tier": "smoke", "dtype": ("float32", "bfloat16", "float32"),
        "accumulate": "bfloat16", "out_of_range": "poison", "require": ("EMB-2",), "expect_fail": {"EMB-4": "known"},
        "only": CALL.to_json(),
    }  # fmt: skip
    assert checked(OPERATOR, "judge", asked) == Options(
        framework="jax", device="cuda", tier=Tier.SMOKE, dtype=("float32", "bfloat16"), accumulate="bfloat16",
        out_of_range="poison", require=("EMB-2",), expect_fail={"EMB-4": "known"}, only=CALL,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "checks"),
    [
        ((), ()),
        (("EMB-1",), ("EMB-1",)),
        (("EMB-10/split",), ("EMB-10/split",)),
        (("EMB-11",), ("EMB-11",)),
        (("EMB-4", "EMB-12"), ("EMB-4", "EMB-12")),
        (("EMB-10",), tuple(name for name in CHECKS if name.startswith("EMB-10/"))),
    ],
)
def test_names_stand_for_checks(names, checks):
    assert selected(OPERATOR, "require", names, "judge") == checks


@pytest.mark.parametrize("name", ["EMB-99", "emb-1", "", "EMB-7/"])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    expected = f"a clause or one of {', '.join(CHECKS)}"
    with raises(errors.UsageError, f"--require: got {name!r}, expected {expected} [judge]"):
        selected(OPERATOR, "require", (name,), "judge")


def test_checks_have_ids_of_their_own():
    assert len(set(CHECKS)) == len(CHECKS)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"framework": "numpy"}, "--framework: got 'numpy', expected one of torch, jax"),
        ({"device": "auto"}, "--device: got 'auto', expected one of cpu, cuda, tpu"),
        ({"tier": "none"}, "--tier: got 'none', expected one of smoke, standard, exhaustive"),
        ({"dtype": "int8"}, "--dtype: got 'int8', expected one of "),
        ({"dtype": 3}, "--dtype: got 3, expected a name, or a tuple of names"),
        ({"require": None}, "--require: got None, expected a name, or a tuple of names"),
        ({"accumulate": "int8"}, "--accumulate: got 'int8', expected one of "),
        ({"out_of_range": "clip"}, "--out-of-range: got 'clip', expected one of raise, poison, unchecked"),
        ({"require": ("EMB-13",)}, "--require: got 'EMB-13', expected a clause or one of EMB-1, EMB-2, "),
        ({"expect_fail": {"EMB-13": "x"}}, "--expect-fail: got 'EMB-13', expected a clause or one of EMB-1, "),
        ({"speed": 3}, "option: got speed, expected one of framework, device, tier, "),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_value_that_there_is_not_is_refused_with_those_there_are(asked, line):
    with pytest.raises(errors.UsageError) as caught:
        checked(OPERATOR, "judge", asked)
    assert str(caught.value).startswith(line)
    assert str(caught.value).endswith(" [judge]")


JSON = CALL.to_json()


@pytest.mark.parametrize(
    "record",
    [
        "", "{", "[]", '"x"', 3, "[" * 100_000, '{"dtype":"bfloat16"}', JSON.replace("forward", "sideward"),
        JSON.replace("bfloat16", "bfloat16\",\"more\":\"x"), JSON.replace("[1]", '"[1]', 1),
        '{"call":"refusal"}', '{"call":"gradient","check":"EMB-8"}',
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_refused(record):
    with pytest.raises(errors.UsageError, match=r"(?s)^--only: got .*, expected the record of a call, .* \[judge\]$"):
        checked(OPERATOR, "judge", {"only": record})


@pytest.mark.torch
@pytest.mark.parametrize(
    "record",
    [
        JSON.replace("bfloat16", "int3"), JSON.replace("[1]", "[9]", 1), JSON.replace('"shape":[1]', '"shape":[2]'),
        JSON.replace("[1]", '"none"', 1), JSON.replace('"vocab":3', '"vocab":-1'), JSON.replace("EMB-1", "EMB-13"),
        JSON.replace("{", '{"table":"none",', 1), JSON.replace("{", '{"id_dtype":"int3",', 1),
        JSON.replace("[1]", "[300]", 1).replace("{", '{"id_dtype":"int8",', 1),
    ],
    ids=["dtype", "id", "shape", "ids", "vocab", "check", "table", "id dtype", "id of 8 bits"],
)  # fmt: skip
def test_a_record_of_no_call_that_can_be_made_is_wrong_use(record):
    import xref

    with pytest.raises(errors.UsageError, match=r"^--only: got .*, expected .* \[judge\]$"):
        xref.judge(lambda ids, weight: weight[ids], framework="torch", only=record)


@pytest.mark.torch
@pytest.mark.parametrize("varied", ["layout", "id_layout", "mode"])
def test_a_record_of_a_variation_that_there_is_not_is_no_pass(varied):
    import xref

    record = JSON.replace("{", f'{{"{varied}":"none",', 1)
    report = xref.judge(lambda ids, weight: weight[ids], framework="torch", only=record)
    assert not report.ok
    assert not any(each.failed for each in report.verdicts)


def test_a_wrong_option_is_said_before_any_framework_is_loaded():
    code = """
        import xref
        try:
            xref.judge(print, framework="torch", tier="none")
        except xref.errors.UsageError as error:
            print(error, loaded("torch", "jax"))
    """
    expected = "--tier: got 'none', expected one of smoke, standard, exhaustive [judge] []"
    assert fresh(code, blocked=("torch", "jax")) == expected
