"""The wording of every message that a golden raises: `where: got, expected [call]`, the same in both frameworks."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import pytest
from support.helpers import DTYPES, FRAMEWORKS, load, raises

from xref import errors
from xref.bits import FORMATS
from xref.operators.embedding.clauses import verbs_of
from xref.operators.embedding.examine.conduct import BAD_IDS
from xref.spec import Exam, Tier, Traits

KNOWN = "one of float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2"


# The wording itself


def test_a_message_reads_where_got_expected_call():
    assert errors.message("weight", "shape (3,)", "shape [V, H]", "forward") == (
        "weight: got shape (3,), expected shape [V, H] [forward]"
    )


@pytest.mark.parametrize(
    ("make", "kind"), [(errors.bad_type, TypeError), (errors.bad_value, ValueError)], ids=["bad_type", "bad_value"]
)
def test_a_bad_argument_is_pythons_own_exception_in_that_wording(make, kind):
    error = make("token_ids", "list", "torch.Tensor", "forward")
    assert type(error) is kind
    assert str(error) == "token_ids: got list, expected torch.Tensor [forward]"


@pytest.mark.parametrize(
    ("position", "told"), [((), "()"), ((3,), "(3,)"), ((1, 0, 2), "(1, 0, 2)")], ids=["0-dimensional", "1-D", "3-D"]
)
def test_ids_out_of_range_name_count_position_value_and_vocabulary(position, told):
    error = errors.ids_out_of_range(count=2, total=9, position=position, value=-7, vocab_size=5, call="forward")
    assert type(error) is IndexError
    assert str(error) == (
        f"token_ids: got 2 of 9 ids out of range, the first at position {told} with value -7,"
        " expected 0 <= id < V=5 [forward]"
    )


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_missing_framework_comes_with_the_line_that_installs_it(framework):
    error = errors.MissingFrameworkError(framework, "verify")
    assert str(error) == (
        f"{framework}: got not installed, expected it to be: pip install 'xref[{framework}]' [verify]"
    )
    assert isinstance(error, errors.UsageError)
    assert isinstance(error, ImportError)


def test_what_happens_around_operators_has_one_base():
    for kind in (errors.UsageError, errors.MissingFrameworkError, errors.NothingComparedError):
        assert issubclass(kind, errors.XrefError)
    assert not issubclass(errors.NothingComparedError, errors.UsageError)


def test_an_error_has_its_parts_and_the_call_is_added_where_it_is_not_named_yet():
    with pytest.raises(errors.UsageError) as caught, errors.called("bench"):
        raise errors.UsageError("--json", 3, "a file")
    assert str(caught.value) == "--json: got 3, expected a file [bench]"
    assert (caught.value.where, caught.value.got, caught.value.expected) == ("--json", 3, "a file")
    with pytest.raises(errors.MissingFrameworkError, match=r" \[doctor\]$") as caught, errors.called("bench"):
        raise errors.MissingFrameworkError("jax", "doctor")
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (type(caught.value), str(caught.value))


def test_a_message_may_be_one_text_and_then_nothing_is_added():
    with pytest.raises(errors.UsageError) as caught, errors.called("bench"):
        raise errors.UsageError("as it was said")
    assert str(caught.value) == "as it was said"


# What the goldens raise


def ids(values, dtype="int64"):
    return np.array(values, dtype)


class Refusal(NamedTuple):
    """Ids, and a table of zeros of a dtype and shape; what calling a golden with them raises."""

    ids: np.ndarray
    dtype: str
    shape: tuple[int, ...]
    error: type[Exception]
    message: str
    """Up to the call, which ends every message."""


NOT_INTEGERS = "token_ids: got dtype {}, expected an integer dtype"
NOT_A_TABLE = "weight: got dtype {}, expected " + KNOWN
NOT_TWO_DIMENSIONAL = "weight: got shape {}, expected shape [V, H]"
NO_SUCH_ROW = "token_ids: got {} ids out of range, the first at position {} with value {}, expected 0 <= id < V=5"

REFUSED = {
    "bool ids": Refusal(ids([True], "bool"), "float32", (5, 3), TypeError, NOT_INTEGERS.format("bool")),
    "float32 ids": Refusal(ids([1], "float32"), "float32", (5, 3), TypeError, NOT_INTEGERS.format("float32")),
    "float64 ids": Refusal(ids([1], "float64"), "bfloat16", (5, 3), TypeError, NOT_INTEGERS.format("float64")),
    "float16 ids": Refusal(ids([2909], "float16"), "float16", (5000, 3), TypeError, NOT_INTEGERS.format("float16")),
    "complex ids": Refusal(ids([1], "complex64"), "float32", (5, 3), TypeError, NOT_INTEGERS.format("complex64")),
    "empty float ids": Refusal(ids([], "float32"), "float32", (5, 3), TypeError, NOT_INTEGERS.format("float32")),
    "int32 table": Refusal(ids([1]), "int32", (5, 3), TypeError, NOT_A_TABLE.format("int32")),
    "uint16 table": Refusal(ids([1]), "uint16", (5, 3), TypeError, NOT_A_TABLE.format("uint16")),
    "bool table": Refusal(ids([1]), "bool", (5, 3), TypeError, NOT_A_TABLE.format("bool")),
    "complex table": Refusal(ids([1]), "complex64", (5, 3), TypeError, NOT_A_TABLE.format("complex64")),
    "1-D table": Refusal(ids([1]), "float32", (5,), ValueError, NOT_TWO_DIMENSIONAL.format("(5,)")),
    "0-D table": Refusal(ids([1]), "bfloat16", (), ValueError, NOT_TWO_DIMENSIONAL.format("()")),
    "3-D table": Refusal(ids([1]), "float8_e5m2", (2, 5, 3), ValueError, NOT_TWO_DIMENSIONAL.format("(2, 5, 3)")),
    "ids before the table": Refusal(ids([1], "float32"), "int32", (5,), TypeError, NOT_INTEGERS.format("float32")),
    "dtype before shape": Refusal(ids([9]), "int32", (5,), TypeError, NOT_A_TABLE.format("int32")),
    "shape before range": Refusal(ids([9]), "float32", (5,), ValueError, NOT_TWO_DIMENSIONAL.format("(5,)")),
    "one id": Refusal(ids([0, 4, 5]), "float32", (5, 3), IndexError, NO_SUCH_ROW.format("1 of 3", "(2,)", 5)),
    "2-D ids": Refusal(
        ids([[0, 4], [-1, 7]], "int8"), "bfloat16", (5, 3), IndexError, NO_SUCH_ROW.format("2 of 4", "(1, 0)", -1)
    ),
    "0-D id": Refusal(ids(5, "uint8"), "float16", (5, 3), IndexError, NO_SUCH_ROW.format("1 of 1", "()", 5)),
    "largest uint64": Refusal(
        ids([2**64 - 1], "uint64"), "float8_e4m3fn", (5, 3), IndexError, NO_SUCH_ROW.format("1 of 1", "(0,)", 2**64 - 1)
    ),
}


def table_of(framework, dtype, shape):
    """A table of zeros of any dtype that the framework has, inside the contract or not."""
    if dtype in DTYPES:
        elements = np.zeros(shape, FORMATS[dtype].uint)
        return framework.put(elements, dtype, "cpu")
    return framework.put(np.zeros(shape, dtype), None, "cpu")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("verb", ["forward", "forward_fp32"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_golden_refuses_in_these_words(name, verb, framework):
    refusal = REFUSED[name]
    framework = load(framework)
    given = framework.put(refusal.ids, None, "cpu"), table_of(framework, refusal.dtype, refusal.shape)
    with raises(refusal.error, f"{refusal.message} [{verb}]"):
        getattr(framework.golden, verb)(*given)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_other_formats_of_eight_bits_are_not_taken_for_those_of_the_contract(dtype, framework):
    framework = load(framework)
    if framework.NAME == "jax":
        table = np.zeros((5, 3), getattr(ml_dtypes, dtype))
    else:
        table = framework.put(np.zeros((5, 3), np.uint8), dtype, "cpu")
    with raises(TypeError, f"weight: got dtype {dtype}, expected {KNOWN} [forward]"):
        framework.golden.forward(framework.put(ids([1]), None, "cpu"), table)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("verb", ["forward", "forward_fp32"])
@pytest.mark.parametrize("given", [[0, 1], 3, None, "0 1"], ids=lambda value: type(value).__name__)
def test_what_is_no_array_at_all_is_refused_with_the_name_of_its_type(given, verb, framework):
    framework = load(framework)
    wanted = {"torch": "torch.Tensor", "jax": "jax.Array or numpy.ndarray"}[framework.NAME]
    tokens, table = framework.put(ids([1]), None, "cpu"), table_of(framework, "float32", (5, 3))
    kind = type(given).__name__
    with raises(TypeError, f"token_ids: got {kind}, expected {wanted} [{verb}]"):
        getattr(framework.golden, verb)(given, table)
    with raises(TypeError, f"weight: got {kind}, expected {wanted} [{verb}]"):
        getattr(framework.golden, verb)(tokens, given)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_float64_table_is_not_widened(framework):
    framework = load(framework)
    message = "weight: got dtype float64, expected a dtype that float32 can hold [forward_fp32]"
    with framework.precision("float64"), raises(TypeError, message):
        framework.golden.forward_fp32(
            framework.put(ids([1]), None, "cpu"), framework.put(np.zeros((5, 3), np.uint64), "float64", "cpu")
        )


@pytest.mark.jax
def test_a_float64_table_is_not_narrowed_either():
    framework = load("jax")
    message = "weight: got dtype float64, expected jax_enable_x64, or JAX would narrow it to float32 [forward]"
    with framework.precision("float32"), raises(TypeError, message):
        framework.golden.forward(ids([1]), np.zeros((5, 3)))


@pytest.mark.jax
def test_a_table_of_the_other_byte_order_is_not_taken_for_the_framework_s_own():
    dtype = np.dtype("f4").newbyteorder()
    with raises(TypeError, f"weight: got dtype {dtype}, expected the machine's own byte order [forward]"):
        load("jax").golden.forward(ids([1]), np.zeros((5, 3), dtype))


@pytest.mark.torch
@pytest.mark.parametrize("verb", ["forward", "forward_fp32"])
def test_sparse_tensors_are_refused(verb):
    framework = load("torch")
    call = getattr(framework.golden, verb)
    tokens, table = framework.put(ids([1]), None, "cpu"), table_of(framework, "float32", (5, 3))
    with raises(TypeError, f"token_ids: got layout torch.sparse_coo, expected a dense tensor [{verb}]"):
        call(tokens.to_sparse(), table)
    with raises(TypeError, f"weight: got layout torch.sparse_coo, expected a dense tensor [{verb}]"):
        call(tokens, table.to_sparse())


@pytest.mark.torch
@pytest.mark.parametrize("verb", ["forward", "forward_fp32"])
def test_ids_on_another_device_are_refused(verb):
    framework = load("torch")
    tokens, table = framework.put(ids([1]), None, "cpu"), table_of(framework, "float32", (5, 3))
    with raises(ValueError, f"token_ids: got device meta, expected the table's, cpu [{verb}]"):
        getattr(framework.golden, verb)(tokens.to("meta"), table)


# To the letter


EXAM = Exam(
    traits=Traits(name="golden", framework="", version="", device="cpu", device_name="", verbs=(), golden=True),
    tier=Tier.SMOKE,
    dtypes=DTYPES,
)
EACH_BAD = [pytest.param(bad, id=f"{bad.id_dtype} {n}") for n, bad in enumerate(BAD_IDS)]


def raised(framework, bad):
    """The exception of a golden for ids that must be refused."""
    script = bad.script(EXAM)
    with framework.precision(script.dtype):
        given = [framework.put(step.array, step.dtype, "cpu") for step in script.steps[:2]]
        with pytest.raises((IndexError, TypeError)) as caught:
            getattr(framework.golden, bad.verb)(*given)
    return caught.value


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", EACH_BAD)
def test_ids_from_real_reports_are_refused_as_the_contract_says(bad, dtype, framework):
    for verb in verbs_of(dtype):
        call = msgspec.structs.replace(bad, verb=verb, dtype=dtype)
        error, expected = raised(load(framework), call), call.error()
        assert (type(error), str(error)) == (type(expected), str(expected))


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("bad", EACH_BAD)
def test_both_frameworks_say_the_same_to_the_letter(bad):
    one, other = (raised(load(name), bad) for name in ("torch", "jax"))
    assert (type(one), str(one)) == (type(other), str(other))
