"""What several test modules share: the frameworks by name, tables of bits, and a comparison that says what differs."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings

from xref import bits, exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.inputs import words

DTYPES = tuple(FORMATS)
NUMPY_DTYPES = {name: np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name)) for name in DTYPES}
NARROW_DTYPES = tuple(name for name, fmt in FORMATS.items() if fmt.width <= 16)
"""Dtypes whose whole domain a test can hold: 65,536 patterns or 256."""
WIDENED_DTYPES = tuple(name for name in DTYPES if name != "float64")

FRAMEWORKS = (pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax))
"""One run of a test for each framework, deselected by its marker where the framework is not installed."""

VERBS = tuple(
    pytest.param(verb, dtype, id=f"{verb}-{dtype}")
    for verb, dtypes in (("forward", DTYPES), ("forward_fp32", WIDENED_DTYPES))
    for dtype in dtypes
)
"""Each verb with each table dtype that it takes."""
NARROW_VERBS = tuple(param for param in VERBS if param.values[1] in NARROW_DTYPES)
WIDE_VERBS = tuple(param for param in VERBS if param.values[1] not in NARROW_DTYPES)
HIDDEN = (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 256, 1024)
"""Widths of rows: whole vectors of the CPU's, one less and one more, and less than one."""

ignore_dynamo_warning = pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be instantiated:DeprecationWarning"
)
"""Dynamo makes an instance of torch.autograd.Function where it traces one, and torch warns of that: its own affair."""

derandomised = settings(derandomize=True, deadline=None, max_examples=100)
"""The same draws in every run; no clock decides."""


def load(framework: str, part: str = "arrays") -> ModuleType:
    """Return a module of a framework's folder: `arrays`, which has the golden too, `modes` or `memory`."""
    return importlib.import_module(f"xref.{framework}_ops.{part}")


@contextlib.contextmanager
def raises(error: type[Exception], message: str) -> Iterator[None]:
    """Expect an exception of just this type, with this message to the letter."""
    with pytest.raises(error) as caught:
        yield
    assert (type(caught.value), str(caught.value)) == (error, message)


def forget_modules(folder: Path) -> None:
    """Forget the modules that were imported from a test's own folder."""
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


def random_bits(shape: tuple[int, ...], fmt: FloatFormat, *, seed: int = 0) -> Bits:
    """Return elements of any bits whatever, NaNs and subnormals among them."""
    return words(int(np.prod(shape)), seed=seed).astype(fmt.uint).reshape(shape)


def every_pattern(fmt: FloatFormat, hidden: int) -> Bits:
    """Return a table with all patterns of a narrow format, and the special ones in every column."""
    rows = -(-(1 << fmt.width) // hidden)
    counting = np.arange(rows * hidden, dtype=np.int64).astype(fmt.uint).reshape(rows, hidden)
    return np.concatenate([counting, special_rows(fmt, hidden)])


def special_rows(fmt: FloatFormat, hidden: int) -> Bits:
    """Return a table of special patterns, each in every column of a row."""
    return np.repeat(special_patterns(fmt)[:, None], hidden, axis=1)


def special_patterns(fmt: FloatFormat) -> Bits:
    """Return what copies and casts get wrong: zeros, subnormals and NaNs at their ends, and the values beside them."""
    edges = {0, 1, 2, fmt.mantissa - 1, fmt.mantissa, fmt.mantissa + 1, fmt.largest_finite, fmt.exponent, fmt.nan}
    edges |= {fmt.exponent + 1, fmt.nan - 1, fmt.nan + 1, fmt.sign - 1, fmt.sign - 2}
    magnitudes = sorted(edge for edge in edges if 0 <= edge < fmt.sign)
    return np.array(magnitudes + [fmt.sign | magnitude for magnitude in magnitudes], dtype=fmt.uint)


def assert_same_bits(got: Bits, expected: Bits) -> None:
    """Compare form and every bit; the message names the first element that differs."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    wrong = np.flatnonzero(got.reshape(-1) != expected.reshape(-1))
    if wrong.size:
        index = tuple(int(i) for i in np.unravel_index(wrong[0], got.shape))
        pytest.fail(
            f"{wrong.size} of {got.size} elements differ, the first at {index}:"
            f" got {int(got[index]):#x}, expected {int(expected[index]):#x}",
        )


def answer(verb: str, ids: np.ndarray[Any, Any], table: Bits, dtype: str) -> Bits:
    """Return the exact bits that a verb must give."""
    rows = exact.gather(ids, table)
    return exact.widen(rows, FORMATS[dtype]) if verb == "forward_fp32" else rows


def as_floats(elements: Bits, dtype: str) -> np.ndarray[Any, Any]:
    """Return elements as float64 values, each exact: the numbers that the bits stand for."""
    with np.errstate(invalid="ignore"):
        return bits.from_bits(elements, dtype).astype(np.float64)


def call_golden(framework: ModuleType, verb: str, ids: np.ndarray[Any, Any], elements: Bits, dtype: str) -> Any:
    """Return a golden's result for NumPy ids and the bits of a table, both put on the CPU."""
    return getattr(framework.golden, verb)(framework.put(ids, None, "cpu"), framework.put(elements, dtype, "cpu"))


def run_golden(framework: ModuleType, verb: str, ids: np.ndarray[Any, Any], elements: Bits, dtype: str) -> Bits:
    """Return the bits of a golden's result for NumPy ids and the bits of a table."""
    with framework.precision(dtype):
        return framework.bits_of(call_golden(framework, verb, ids, elements, dtype))


def values(numbers: Any, dtype: str) -> Bits:
    """Return the bits of numbers in a table dtype."""
    return bits.as_bits(np.array(numbers, NUMPY_DTYPES[dtype]))


def refuses_ids(told: str, vocab: int, verb: str) -> contextlib.AbstractContextManager[None]:
    """Expect the `IndexError` of clause EMB-4; `told` is `2 of 3, the first at position (1,) with value 5`."""
    count, _, first = told.partition(", ")
    got = f"{count} ids out of range, {first}"
    return raises(IndexError, f"token_ids: got {got}, expected 0 <= id < V={vocab} [{verb}]")


# Where the same elements may lie in memory: each takes a dense array of two dimensions, and returns a new one's view.

Layout = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def _between_others(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.full((2 * array.shape[0] + 1, 3 * array.shape[1] + 2), 0x55, dtype=array.dtype)
    wide[1::2, 1:-1:3] = array
    return wide[1::2, 1:-1:3]


def _at_an_offset(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = np.empty(array.size + 1, dtype=array.dtype)[1:].reshape(array.shape)
    shifted[:] = array
    return shifted


LAYOUTS: dict[str, Layout] = {
    "dense": np.copy,
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "every second row": lambda array: np.repeat(array, 2, axis=0)[::2],
    "every second column": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "first columns of a wider one": lambda array: np.concatenate([array, ~array], axis=1)[:, : array.shape[1]],
    "rows and columns between others": _between_others,
    "offset by one element": _at_an_offset,
}
