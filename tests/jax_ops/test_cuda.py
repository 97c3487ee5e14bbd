"""The gradient's kernels for NVIDIA GPUs, interpreted on a CPU, and compiled for a GPU as far as that goes without one.

On a GPU all tests of the JAX gradient run them as they are.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gradient_cases import expected_table, hard_columns, packed

from xref.bits import FORMATS, as_bits, from_bits
from xref.jax_ops.exact_limbs import cuda, gradient, segments

pytestmark = pytest.mark.jax

PAIRS = [
    *(("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")),
    *(("float16", "float16"), ("float16", "float32")),
]
INTERPRETED = functools.partial(cuda.gathered_sums, interpret=True)


@pytest.fixture
def small_cuts(monkeypatch):
    """Cut so that small inputs have several programs, tiles and kinds of segments."""
    cuts = cuda._Cut(8, 2, 16, 2), cuda._Cut(16, 4, 16, 7), cuda._Cut(32, 8, 8, 2**31 - 1)
    monkeypatch.setattr(cuda, "_CUTS", cuts)
    monkeypatch.setattr(cuda, "_ROW_BYTES", 64)


def check(ids, bits, vocab_size, source, target, *, padding_idx=-1):
    """Compare every bit of a gradient by the interpreted kernels with the exact one."""
    slots, first = segments.of_table(jnp.asarray(ids, jnp.int32), vocab_size, padding_idx)
    elements = jnp.asarray(from_bits(bits, source))
    assert cuda.takes(slots, elements, FORMATS[target])
    got = jax.jit(INTERPRETED, static_argnums=3)(slots, first, elements, FORMATS[target])
    assert (got.dtype.name, got.shape) == (target, (vocab_size, bits.shape[1]))
    counts = (ids >= 0) & (ids < vocab_size) & (ids != padding_idx)
    expected = expected_table(ids[counts], bits[counts], vocab_size, source, target)
    np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)


def any_bits(rng, shape, source):
    return rng.integers(0, 1 << FORMATS[source].width, shape, np.uint64).astype(FORMATS[source].uint)


@pytest.mark.usefixtures("small_cuts")
@pytest.mark.parametrize(("source", "target"), PAIRS[:2])
def test_hard_columns(source, target):
    columns = list(hard_columns(FORMATS[source], FORMATS[target]).values())
    for start in range(0, len(columns), 48):
        bits = packed(columns[start : start + 48], 64, 48, FORMATS[source], start)
        check(np.full(64, 5), bits, 7, source, target)


@pytest.mark.usefixtures("small_cuts")
@pytest.mark.parametrize(("source", "target"), PAIRS[2:])
def test_segments_of_every_length(source, target):
    rng = np.random.default_rng(5)
    ids = rng.permutation(np.repeat(np.arange(14), np.arange(14)))
    bits = any_bits(rng, (ids.size, 41), source)
    finite = (bits & FORMATS[source].uint.type(FORMATS[source].sign - 1)) <= FORMATS[source].largest_finite
    for each in (bits, np.where(finite, bits, FORMATS[source].uint.type(1))):
        check(ids, each, 17, source, target, padding_idx=3)


@pytest.mark.usefixtures("small_cuts")
@pytest.mark.parametrize(
    ("ids", "vocab_size", "hidden"),
    [
        ([0], 1, 1),
        ([1, -1, 5, 4, 1, 99, -(2**31)], 5, 17),
        ([7, -2], 5, 3),
        ([0] * 33, 1, 1185),
    ],
    ids=["one", "out of range", "none in range", "one row"],
)
def test_shapes(ids, vocab_size, hidden):
    bits = any_bits(np.random.default_rng(8), (len(ids), hidden), "float32")
    check(np.array(ids), bits, vocab_size, "float32", "float32")


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_cuts_as_they_are(source):
    rng = np.random.default_rng(9)
    ids = np.concatenate([np.repeat(np.arange(90), np.arange(90) // 12), np.full(150, 95), np.full(80, 96)])
    check(rng.permutation(ids), any_bits(rng, (ids.size, 300), source), 99, source, source)


@pytest.mark.usefixtures("small_cuts")
def test_x64_and_vmap():
    rng = np.random.default_rng(10)
    ids, bits = rng.integers(0, 6, 40), any_bits(rng, (40, 9), "float32")
    with jax.enable_x64(True):
        check(ids, bits, 7, "float32", "float32")
    slots, first = segments.of_table(jnp.asarray(ids, jnp.int32), 7, -1)
    batch = np.stack([bits, bits[::-1]])
    one = functools.partial(INTERPRETED, target=FORMATS["float32"])
    got = jax.vmap(one, (None, None, 0))(slots, first, jnp.asarray(from_bits(batch, "float32")))
    for each, table in zip(batch, got, strict=True):
        np.testing.assert_array_equal(as_bits(np.asarray(table)), expected_table(ids, each, 7, "float32", "float32"))


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("hidden", [1, 1185])
def test_kernels_are_lowered_for_a_gpu(source, target, hidden):
    shapes = ((100,), jnp.int32), ((8192,), jnp.int32), ((8192, hidden), source)
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    kernels = jax.jit(functools.partial(cuda.gathered_sums, target=FORMATS[target]))
    text = kernels.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("triton") >= 5
    assert "atomic" not in text


def test_what_the_kernels_do_not_take():
    def takes(rows, tokens, hidden, source, target):
        slots, elements = jax.ShapeDtypeStruct((rows,), jnp.int32), jax.ShapeDtypeStruct((tokens, hidden), source)
        return cuda.takes(slots, elements, FORMATS[target])

    assert all(takes(5, 6, 7, *pair) for pair in PAIRS)
    assert not any(takes(*shape, "float32", "float32") for shape in ((0, 3, 5), (3, 0, 5), (3, 5, 0)))
    assert not takes(3, 4, 5, "bfloat16", "float8_e5m2")
    assert not takes(3, 4, 5, "float8_e4m3fn", "float32")
    with jax.enable_x64(True):
        assert not takes(3, 4, 5, "float64", "float32")
        assert not takes(3, 4, 5, "float32", "float64")


def test_the_golden_takes_them_where_there_is_a_gpu(monkeypatch):
    """A CPU is among the platforms that the program is for, and it takes the other way to the same bits."""
    monkeypatch.setattr(gradient, "_cuda_kernels", lambda: cuda)
    shapes = ((20,), jnp.int32), ((20, 6), jnp.float32)
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    traced = jax.jit(lambda ids, cotangent: gradient.grad_weight(ids, cotangent, 10)).trace(*arguments)
    assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" not in traced.lower(lowering_platforms=("cpu",)).as_text()
    rng = np.random.default_rng(12)
    ids, bits = rng.integers(0, 10, 20), any_bits(rng, (20, 6), "float32")
    got = jax.jit(lambda ids, cotangent: gradient.grad_weight(ids, cotangent, 10))(ids, from_bits(bits, "float32"))
    np.testing.assert_array_equal(as_bits(np.asarray(got)), expected_table(ids, bits, 10, "float32", "float32"))


def as_if_cuda(monkeypatch):
    """Let the CPU pass for a GPU."""
    devices = jax.local_devices(backend="cpu")
    monkeypatch.setattr(jax, "local_devices", lambda *, backend: devices)


def test_that_there_are_no_kernels_is_logged(monkeypatch, caplog):
    def fail(device):
        raise NotImplementedError("no such back end\nand a page of advice")

    as_if_cuda(monkeypatch)
    monkeypatch.setattr(cuda, "compile_smallest", fail)
    assert gradient._cuda_kernels.__wrapped__() is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "Pallas: got NotImplementedError: no such back end, "
        "expected kernels for cpu; without them it takes longer [exact gradient]"
    )


def test_the_kernels_are_chosen_in_the_middle_of_a_trace(monkeypatch):
    def lower(device):
        assert not isinstance(jnp.zeros(1), jax.core.Tracer)

    as_if_cuda(monkeypatch)
    monkeypatch.setattr(cuda, "compile_smallest", lower)
    chosen = []
    jax.jit(lambda x: chosen.append(gradient._cuda_kernels.__wrapped__()) or x)(1.0)
    assert chosen == [cuda]


def test_without_a_gpu_nothing_is_logged(monkeypatch, caplog):
    def absent(*, backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", absent)
    assert gradient._cuda_kernels.__wrapped__() is None
    assert not caplog.records
