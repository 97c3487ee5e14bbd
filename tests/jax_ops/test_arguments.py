"""What the JAX golden's exact gradient demands of its arguments, and which ids it takes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support.gradient_cases import expected_table, normal

from xref.bits import as_bits, from_bits
from xref.jax_ops import _arguments
from xref.jax_ops.embedding import grad_rows, grad_weight

pytestmark = pytest.mark.jax

TOKENS, HIDDEN = 64, 48

ID_DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4"]


@pytest.mark.parametrize("name", ID_DTYPES)
def test_every_integer_dtype_of_ids(name):
    ids = np.resize([0, 7, 3, 3], TOKENS).astype(getattr(ml_dtypes, name, None) or name)
    bits = normal((TOKENS, HIDDEN), 1)
    expected = expected_table(ids.astype(np.int64), bits, 300, "float32")
    got = grad_weight(ids, from_bits(bits, "float32"), 300)
    np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)
    if not name.endswith("64"):
        got = grad_weight(jnp.asarray(ids), from_bits(bits, "float32"), 300)
        np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)


def test_what_cannot_raise_adds_nothing():
    ids, bits = np.array([0, 4, 5, -1, -5, -6, 2**31 - 1, -(2**31)], np.int32), normal((8, 5), 3)
    expected = expected_table(ids[:2], bits[:2], 5, "float32")
    table = functools.partial(grad_weight, vocab_size=5, padding_idx=3)
    for run in (functools.partial(table, validate=False), jax.jit(table)):
        got = run(ids, from_bits(bits, "float32"))
        np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)


@pytest.mark.parametrize("bad", [2**32 + 1, -(2**32) + 1, 2**63 - 1])
def test_wide_ids_are_never_narrowed(bad):
    ids, cotangent = np.array([1, bad] * 4), np.ones((8, 5), np.float32)
    with pytest.raises(IndexError, match=f"got 4 of 8 .* value {bad}, expected"):
        grad_weight(ids, cotangent, 5)
    assert grad_weight(ids, cotangent, 5, validate=False)[:, 0].tolist() == [0, 4, 0, 0, 0]


def test_constants_of_a_trace_are_checked_and_traced():
    ids, cotangent = np.array([1, 2**32 + 1] * 4), np.ones((8, 5), np.float32)
    with pytest.raises(IndexError):
        jax.eval_shape(lambda: grad_weight(ids, cotangent, 5))
    assert jax.eval_shape(lambda: grad_weight(ids, cotangent, 5, validate=False)).shape == (5, 5)
    assert jax.eval_shape(lambda: grad_rows(ids, cotangent, vocab_size=7, validate=False))[1].shape == (7, 5)
    assert jax.jit(lambda: _arguments.narrow(ids, 5))().tolist() == [1, -1] * 4


IDS, ONES = np.array([[0, 4]]), np.ones((1, 2, 3), np.float32)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (
            IndexError,
            (
                "token_ids: got 2 of 3 ids out of range, the first at position (0, 1) with value 5, "
                "expected 0 <= id < V=5 [grad_weight]"
            ),
            lambda: grad_weight(np.array([[4, 5, -1]], np.int8), np.ones((1, 3, 2), np.float32), 5),
        ),
        (
            IndexError,
            (
                "token_ids: got 1 of 1 ids out of range, the first at position () with value -1, "
                "expected 0 <= id < V=2147483647 [grad_rows]"
            ),
            lambda: grad_rows(jnp.asarray(-1), np.ones(2, np.float32)),
        ),
        (
            IndexError,
            (
                "token_ids: got 1 of 2 ids out of range, the first at position (1,) with value 18446744073709551615, "
                "expected 0 <= id < V=5 [grad_weight]"
            ),
            lambda: grad_weight(np.array([0, 2**64 - 1], np.uint64), ONES[0], 5),
        ),
        (
            TypeError,
            "token_ids: got dtype bool, expected an integer dtype [grad_weight]",
            lambda: grad_weight(IDS > 0, ONES, 5),
        ),
        (
            TypeError,
            "token_ids: got dtype float32, expected an integer dtype [grad_rows]",
            lambda: grad_rows(jnp.zeros((1, 2)), ONES),
        ),
        (
            TypeError,
            "token_ids: got dtype complex64, expected an integer dtype [grad_weight]",
            lambda: grad_weight(IDS.astype(np.complex64), ONES, 5),
        ),
        (
            TypeError,
            "token_ids: got list, expected jax.Array or numpy.ndarray [grad_weight]",
            lambda: grad_weight([[0, 4]], ONES, 5),
        ),
        (
            TypeError,
            "cotangent: got list, expected jax.Array or numpy.ndarray [grad_weight]",
            lambda: grad_weight(IDS, [1.0], 5),
        ),
        (
            TypeError,
            (
                "cotangent: got dtype int32, expected one of float64, float32, bfloat16, float16, float8_e4m3fn, "
                "float8_e5m2 [grad_weight]"
            ),
            lambda: grad_weight(IDS, ONES.astype(np.int32), 5),
        ),
        (
            TypeError,
            "cotangent: got dtype float64, expected jax_enable_x64, or JAX would narrow it to float32 [grad_weight]",
            lambda: grad_weight(IDS, ONES.astype(np.float64), 5),
        ),
        (
            TypeError,
            "cotangent: got dtype >f4, expected the machine's own byte order [grad_weight]",
            lambda: grad_weight(IDS, ONES.astype(">f4"), 5),
        ),
        (
            TypeError,
            "dtype: got float64, expected jax_enable_x64, or JAX would narrow it to float32 [grad_rows]",
            lambda: grad_rows(IDS, ONES, dtype=np.float64),
        ),
        (
            TypeError,
            (
                "dtype: got int32, expected one of float64, float32, bfloat16, float16, float8_e4m3fn, "
                "float8_e5m2 [grad_weight]"
            ),
            lambda: grad_weight(IDS, ONES, 5, dtype=jnp.int32),
        ),
        (
            ValueError,
            "cotangent: got shape (1, 2, 3), expected shape (2, 1, H) [grad_weight]",
            lambda: grad_weight(IDS.T, ONES, 5),
        ),
        (
            ValueError,
            "cotangent: got shape (), expected shape (H,) [grad_rows]",
            lambda: grad_rows(np.int32(1), np.float32(1)),
        ),
        (
            ValueError,
            "padding_idx: got 5, expected 0 <= padding_idx < V=5 [grad_weight]",
            lambda: grad_weight(IDS, ONES, 5, padding_idx=5),
        ),
        (
            ValueError,
            "padding_idx: got -1, expected 0 <= padding_idx < V=5 [grad_weight]",
            lambda: grad_weight(IDS, ONES, 5, padding_idx=-1),
        ),
        (
            ValueError,
            "padding_idx: got 5, expected 0 <= padding_idx < V=5 [grad_rows]",
            lambda: grad_rows(IDS, ONES, vocab_size=5, padding_idx=5),
        ),
        (
            TypeError,
            "padding_idx: got 1.0 of type float, expected an integer or None [grad_weight]",
            lambda: grad_weight(IDS, ONES, 5, padding_idx=1.0),
        ),
        (ValueError, "vocab_size: got -1, expected at least 0 [grad_weight]", lambda: grad_weight(IDS, ONES, -1)),
        (
            ValueError,
            "vocab_size: got 2147483648, expected at most 2147483647 [grad_weight]",
            lambda: grad_weight(IDS, ONES, 2**31),
        ),
        (
            TypeError,
            "vocab_size: got True of type bool, expected an integer [grad_weight]",
            lambda: grad_weight(IDS, ONES, True),
        ),
        (
            ValueError,
            "token_ids: got 536870912 ids, expected at most 536870911 in one call [grad_weight]",
            lambda: grad_weight(np.broadcast_to(np.int8(0), 2**29), np.broadcast_to(np.float32(0), (2**29, 1)), 5),
        ),
    ],
)
def test_messages(error, message, call):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == message


def test_an_id_with_no_row_to_name():
    with pytest.raises(IndexError, match="V=0"):
        grad_weight(np.array([0]), np.ones((1, 2), np.float32), 0)
    assert jax.jit(lambda i: grad_weight(i, np.ones((1, 2), np.float32), 0))(np.array([0], np.int32)).shape == (0, 2)
