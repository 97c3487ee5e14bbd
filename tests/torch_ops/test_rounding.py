"""The one rounding of the torch golden's sums, at every point where a result changes."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
from support.gradient_cases import WIDE
from support.helpers import assert_same_bits

from xref import bits, exact
from xref.bits import FORMATS

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops.arrays import bits_of
    from xref.torch_ops.embedding import grad_rows, grad_weight
    from xref.torch_ops.exact_sums import rounding


@pytest.mark.parametrize("target", [name for name in FORMATS if name not in WIDE])
@pytest.mark.parametrize("source", WIDE)
def test_every_rounding_point_of_the_narrow_formats(source, target):
    """An element stays; half-way to the next goes to even; the nearest values to half-way go each to its side."""
    fmt, dtype = FORMATS[target], np.dtype(source)
    codes = np.arange(fmt.largest_finite + 1)
    values = np.array([math.ldexp(*exact.decode(int(code), fmt)) for code in codes])
    half = ((values + np.append(values[1:], 2 * values[-1] - values[-2])) / 2).astype(dtype)
    below, above = np.nextafter(half, dtype.type(0)), np.nextafter(half, dtype.type(np.inf))
    points = np.concatenate([values.astype(dtype), half, below, above])
    expected = np.concatenate([codes, codes + (codes & 1), codes, codes + 1])
    unsigned = (points == 0) | ((expected > fmt.largest_finite) & (not fmt.has_inf))
    mirrored = np.where(unsigned, expected, expected | fmt.sign)
    ids = torch.arange(points.size)
    for cotangent, answers in ((points, expected), (-points, mirrored)):
        _, got = grad_rows(ids, torch.from_numpy(cotangent[:, None]), dtype=getattr(torch, target))
        assert_same_bits(bits_of(got)[:, 0], answers.astype(fmt.uint))


@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("target", ["float32", "bfloat16", "float16"])
def test_a_cast_that_rounds_once(target, flush):
    """Half-way points, and the float64 next to them on either side: as `encode` has it."""
    fmt = FORMATS[target]
    step = max(fmt.largest_finite // 50_000, 1)
    smallest = 0 if target == "float16" else fmt.mantissa + 1  # what is subnormal in float32 is not for a cast
    codes = np.arange(smallest, fmt.largest_finite + 1, step)
    values = np.array([math.ldexp(*exact.decode(int(code), fmt)) for code in codes])
    units = np.array([math.ldexp(1.0, exact.decode(int(code), fmt)[1]) for code in codes])
    half = values + units / 2
    points = np.concatenate([values, half, np.nextafter(half, 0), np.nextafter(half, np.inf), values + units])
    points = np.concatenate([points, -points[points != 0]])
    expected = rounding.encode(torch.from_numpy(points), fmt)
    torch.set_flush_denormal(flush)
    got = rounding._cast(torch.from_numpy(points), fmt)
    assert_same_bits(got.numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("exponent", "target", "cast"),
    [
        (-126, "float32", True),
        (-127, "float32", False),
        (-126, "bfloat16", True),
        (-127, "bfloat16", False),
        (-25, "float16", True),
        (-127, "float16", False),
        (0, "float8_e5m2", False),
        (0, "float8_e4m3fn", False),
        (0, "float64", False),
    ],
)
def test_sums_are_cast_only_where_none_is_subnormal_in_float32(exponent, target, cast, monkeypatch):
    original, taken = rounding._cast, []
    monkeypatch.setattr(rounding, "_cast", lambda *args: (taken.append(args), original(*args))[1])
    # The last bit of a float64 counts: a sum is a multiple of it, and it is 52 places below the first one here.
    values = torch.tensor([[2.0 ** (exponent + 52) + 2.0**exponent], [0.0]], dtype=torch.float64)
    got = grad_weight(torch.tensor([0, 0]), values, 1, dtype=getattr(torch, target))
    expected = grad_weight(torch.tensor([0]), values[:1], 1, dtype=getattr(torch, target))
    assert_same_bits(bits_of(got), bits_of(expected))
    assert bool(taken) == cast


@pytest.mark.parametrize("source", [name for name in FORMATS if name not in WIDE])
def test_a_copy_of_elements_without_nan_is_what_it_is_with_them(source):
    fmt = FORMATS[source]
    codes = np.arange(1 << fmt.width).astype(fmt.uint)
    codes = codes[~bits.is_nan(codes, fmt)]
    elements = [torch.from_numpy(codes.view(f"i{fmt.width // 8}" if fmt.width > 8 else "u1").copy()) for _ in range(2)]
    got = rounding.copied(elements[0], fmt, has_nan=False)
    assert_same_bits(got.numpy().view(fmt.uint), np.where(codes == fmt.sign, fmt.uint.type(0), codes))
    assert torch.equal(got, rounding.copied(elements[1], fmt))


def test_rounded_once_where_a_cast_rounds_twice():
    value = torch.tensor([[1 + 2.0**-8 + 2.0**-40]], dtype=torch.float64)
    assert value.to(torch.bfloat16).item() == 1.0
    assert grad_weight(torch.tensor([0]), value, 1, dtype=torch.bfloat16).item() == 1.0078125
