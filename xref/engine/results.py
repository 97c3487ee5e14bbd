"""What came of a step, as a reply: an array read back, or an exception described."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import xref
from xref import errors
from xref.bits import FORMATS, as_bits
from xref.engine.frameworks import Arrays
from xref.engine.steps import Array, Form, Output, Raised

__all__ = ["device_fault", "output_of", "raised_of"]

_TEXT = 20_000  # characters of an exception's message
_DEVICE_FAULTS = (
    "CUDA error: ", "HIP error: ", "device-side assert", "cudaErrorAssert", "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
)  # fmt: skip
_RAISED_LATE = ("AcceleratorError", "JaxRuntimeError", "XlaRuntimeError")  # on reading what was computed meanwhile
_LIBRARIES = ("jax", "jaxlib", "ml_dtypes", "numpy", "torch")
_PACKAGE = str(Path(xref.__file__).parent) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep


def output_of(arrays: Arrays, value: Any, *, rows: Array | None = None, copy: bool = True) -> Output:
    """Return an array of the framework's as it is now, read back; one of NumPy's is on the device `host`.

    Raises:
        Exception: the call that computes it fails only now.
    """
    form: Form = ((), type(value).__name__, "none")
    try:
        (shape, dtype, device) = arrays.form_of(value)
        form = tuple(int(size) for size in shape), str(dtype), str(device)
        if form[2] == "none" and type(value) is np.ndarray:
            form = value.shape, value.dtype.name, "host"
            array = as_bits(value) if form[1] in FORMATS else value
        elif form[2] == "none":
            return Output(form=form, unreadable=f"it is no array of {arrays.NAME}'s")
        else:
            array = arrays.bits_of(value) if form[1] in FORMATS else arrays.numpy_of(value)
        if array.shape != form[0] or (form[1] in FORMATS and array.dtype != FORMATS[form[1]].uint):
            return Output(form=form, unreadable=f"it has {array.dtype.itemsize}-byte elements of shape {array.shape}")
        array = array if rows is None else array[rows]
        return Output(form=form, array=np.array(array) if copy else array, memory=_memory(arrays, value))
    except Exception as error:  # a value may be anybody's class
        if type(error).__name__ in _RAISED_LATE or device_fault(errors.text_of(error)):
            raise
        return Output(form=form, unreadable=errors.described(error))


def _memory(arrays: Arrays, value: Any) -> tuple[int, int]:
    try:
        if isinstance(value, np.ndarray):
            return np.lib.array_utils.byte_bounds(value)
        return arrays.address_range(value)
    except Exception:  # it has none of its own, or several
        return 0, 0


def raised_of(error: BaseException, *, refused: bool = False, unconnected: bool = False) -> Raised:
    """Return the reply for an exception; of a `RefusedError` it is about its cause."""
    if isinstance(error, errors.RefusedError):
        error, refused = error.__cause__ or error, True
    return Raised(
        type=errors.printable(type(error).__name__),
        bases=tuple(errors.printable(base.__name__) for base in type(error).__mro__),
        text=errors.text_of(error)[:_TEXT],
        line=errors.described(error),
        where=_where(error.__traceback__),
        refused=refused,
        unconnected=unconnected or isinstance(error, errors.NoGradientError),
    )


def device_fault(text: str) -> str:
    """Return what a message says has happened to the whole device context, or nothing."""
    if not any(each in text for each in _DEVICE_FAULTS):
        return ""
    if "assert" in text.lower():
        return "device-side assert"
    return errors.printable(text.partition("error: ")[2].partition("\n")[0][: errors.LINE]) or "illegal address"


def _where(traceback: TracebackType | None) -> str:
    """Return file and line of the innermost frame that is neither a library's, Python's own nor this package's."""
    found = ""
    while traceback is not None:
        frame = traceback.tb_frame
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__")
        foreign = (
            file.startswith(("<frozen", "<eval_with_key", _PACKAGE))
            or str(module).partition(".")[0] in _LIBRARIES
            or (file.startswith(_STANDARD) and "-packages" not in file)
        )
        if not foreign:
            found = errors.printable(f"{Path(file).name}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return found
