"""A real checkpoint's table and ids, read and checked: one clear error for everything that can be wrong with a file.

The safetensors library maps the file and checks its header, for which no framework is needed: what is wrong is known
before one is loaded. The tensor is copied out of the map once, in slices, into memory that every framework then shares.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import reprlib
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (safetensors finds NumPy's bfloat16 through it)
import numpy as np
import safetensors

from xref import bits, errors
from xref.bits import FORMATS, Bits
from xref.engine import frameworks
from xref.engine.conditions import PLANS
from xref.inputs import Ids, allocate, make_ids
from xref.operators.embedding.calls.batches import Batches
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, verbs_of
from xref.operators.embedding.families import LARGE, LOADED
from xref.spec import Call, Exam

__all__ = ["Stored", "StoredTable", "default_ids", "find_table", "loaded", "read_ids", "stored"]

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_SLICE = 1 << 26  # bytes at a time
_ROWS_AT_MOST = 1 << 26  # elements of the default ids' rows
_INTEGER = re.compile("[+-]?[0-9]+", re.ASCII)
_LONGEST = 40  # characters of a number; Python refuses to read one of thousands


def _error(where: object, got: object, expected: object) -> errors.UsageError:
    return errors.UsageError(where, got, expected)


def _check_file(path: Path, expected: str) -> None:
    """Raise `UsageError` unless there is a plain file of that name."""
    try:
        str(path).encode()
        mode = path.stat().st_mode
    except UnicodeEncodeError as error:
        raise _error("file name", ascii(str(path)), "one in UTF-8") from error
    except FileNotFoundError as error:
        raise _error(path, "no such file", expected) from error
    except OSError as error:  # a name too long, a folder that may not be searched, a loop of links
        raise _error(path, f"an error ({error.strerror})", expected) from error
    if not stat.S_ISREG(mode):
        raise _error(path, "a folder" if stat.S_ISDIR(mode) else "no plain file", expected)


@dataclasses.dataclass(frozen=True)
class StoredTable:
    """A table `[V, H]` in a safetensors file, found and not read yet."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, int]

    def read(self) -> Bits:
        """Return its bits `[V, H]`, copied out of the mapped file some rows at a time.

        safetensors looks float8 up in NumPy, which has none; through torch it reads them.
        """
        library, to_bits = "numpy", bits.as_bits
        if self.dtype.startswith("float8"):
            library, to_bits = "pt", frameworks.load("torch").arrays.bits_of
        table = allocate(self.shape, FORMATS[self.dtype].uint)
        rows = max(_SLICE // max(self.shape[1] * table.itemsize, 1), 1)
        file: Any = safetensors.safe_open(self.path, framework=library)
        with file:
            part = file.get_slice(self.name)
            for start in range(0, self.shape[0], rows):
                stop = min(start + rows, self.shape[0])
                table[start:stop] = to_bits(part[start:stop])
        return table


def find_table(path: Path, name: str | None) -> StoredTable:
    """Return a table of a safetensors file by its header; without a name the file must hold just one that can be it.

    Raises:
        UsageError: no such file, not a sound safetensors file, no such tensor (the candidates are named), one that
            is not a `[V, H]` table of a contract dtype, or one of float8 where torch is not installed.
    """
    _check_file(path, "a safetensors file")
    try:
        file: Any = safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as error:
        raise _error(path, f"a file that does not open ({error})", "a sound safetensors file") from error
    with file:
        slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
        forms = {key: (part.get_dtype(), tuple(part.get_shape())) for key, part in slices.items()}
    candidates = [key for key, (code, shape) in forms.items() if code in _DTYPES and len(shape) == 2]
    if name not in forms and not candidates:
        raise _error(path, "no tensor that can be a table", f"one of shape [V, H] and of {', '.join(_DTYPES)}")
    if name is None and len(candidates) == 1:
        name = candidates[0]
    if name is None or name not in forms:
        raise _error("--tensor", name or "none", f"one of {_listed(candidates)}")
    code, shape = forms[name]
    if code not in _DTYPES:
        raise _error(name, f"dtype {code}", f"one of {', '.join(_DTYPES)}")
    if len(shape) != 2:
        raise _error(name, f"shape {shape}", "shape [V, H]")
    dtype = _DTYPES[code]
    if dtype.startswith("float8") and not frameworks.installed("torch"):
        raise _error(name, dtype, "torch, through which safetensors reads float8: pip install 'xref[torch]'")
    return StoredTable(path, name, dtype, shape)


def _listed(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def read_ids(path: Path, vocab_size: int) -> Ids:
    """Return the token ids of a `.npy` file, any shape and integer dtype, or of a text file of integers.

    Raises:
        UsageError: no such file, another kind of file, or ids that are not integers, not there, or out of range.
    """
    _check_file(path, "a .npy or .txt file of token ids")
    readers = {".npy": _from_npy, ".txt": _from_text}
    if path.suffix not in readers:
        raise _error(path, f"suffix {path.suffix!r}", "a .npy or .txt file of token ids")
    ids = readers[path.suffix](path)
    if ids.dtype.kind not in "iu":
        raise _error(path, f"dtype {ids.dtype.name}", "an integer dtype")
    if ids.size == 0:
        raise _error(path, "no ids", "at least one")
    bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if bad.size:
        first = ids.reshape(-1)[bad[0]]
        raise _error(path, f"{bad.size} of {ids.size} ids out of range, the first {first}", f"0 <= id < V={vocab_size}")
    return ids


def _from_npy(path: Path) -> Ids:
    try:
        loaded = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy.load raises whatever a hostile header makes it stumble over
        raise _error(path, f"a file that does not load ({error})", "a sound .npy file") from error
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise _error(path, "an archive of arrays", "a file of one array, as numpy.save writes it")
    return loaded.astype(loaded.dtype.newbyteorder("="), copy=False)


def _from_text(path: Path) -> Ids:
    try:
        text = path.read_text(encoding="utf-8-sig")  # -sig: some editors put a mark before the first number
    except UnicodeDecodeError as error:
        raise _error(path, f"bytes that are not text ({error})", "integers in UTF-8 text") from error
    except OSError as error:
        raise _error(path, f"a file that cannot be read ({error.strerror})", "a readable file") from error
    return np.array(list(_integers(text, path)), dtype=np.int64)


def _integers(text: str, path: Path) -> Iterator[int]:
    for number, line in enumerate(text.splitlines(), start=1):
        for word in line.replace(",", " ").split():
            where, got = f"{path}, line {number}", reprlib.repr(word)
            if not _INTEGER.fullmatch(word):
                raise _error(where, got, "integers, apart by white space or commas")
            if len(word) > _LONGEST or not -(2**63) <= int(word) < 2**63:
                raise _error(where, got, "ids that fit in 64 bits")
            yield int(word)


def default_ids(vocab_size: int, hidden: int) -> Ids:
    """Return ids for a table that came without any: both ends, and as many as 8192 frequent and rare ones.

    A table wider than 8192 gets fewer, so that their rows stay within 2**26 elements; never fewer than two.
    """
    tokens = min(8192, max(_ROWS_AT_MOST // max(hidden, 1), 2))
    return make_ids("zipf_ends", (8, 1024) if tokens == 8192 else (tokens,), vocab_size, "int64")


# The calls that are made of it

_FAMILY = "loaded"
_CONDITION_TOKENS = 1098  # as many as the largest fixed call with conditions has


@dataclasses.dataclass(frozen=True)
class Stored:
    """A table that is in a file, not read yet, and ids for it."""

    table: StoredTable
    ids: Ids

    @property
    def dtype(self) -> str:
        """Of the table."""
        return self.table.dtype

    @property
    def name(self) -> str:
        """File, tensor and sizes in words."""
        what = f"{self.dtype} {self.table.shape[0]} x {self.table.shape[1]}, {self.ids.size} ids"
        return f"{self.table.path.name}:{self.table.name} ({what})"

    def calls(self, exam: Exam) -> Iterator[Call]:
        """Yield the calls of each verb on the table that is loaded: repeated, and in every condition and mode."""
        flat = self.ids.reshape(-1)[:_CONDITION_TOKENS]
        repeats = 2 if self.ids.size * self.table.shape[1] * FORMATS[self.dtype].width // 8 < LARGE else 1
        for verb in verbs_of(self.dtype):
            fields: dict[str, Any] = {
                "verb": verb, "dtype": self.dtype, "vocab": self.table.shape[0], "hidden": self.table.shape[1],
                "table": _FAMILY, "id_dtype": self.ids.dtype.name,
            }  # fmt: skip
            check = CLAUSES_OF_EVERY_CALL.accuracy[verb]
            yield Forward(check=check, ids=_FAMILY, shape=self.ids.shape, repeats=repeats, **fields)
            fields |= {"ids": tuple(flat.tolist()), "shape": flat.shape}
            for plan, groups in PLANS.items():
                for group in range(len(groups(flat, np.arange(flat.size), self.table.shape[0]))):
                    yield Batches(check=f"EMB-7/{plan}", plan=plan, group=group, **fields)
            traits = exam.traits
            others = tuple(each for each in traits.transforms if each not in traits.grad_modes)
            for name, modes in (("gradient", traits.grad_modes), ("settings", traits.settings), ("mode", others)):
                yield from (Forward(check=f"EMB-7/{name}", mode=mode, **fields) for mode in modes)


def stored(path: Path, tensor: str | None, ids_file: str | Path | None) -> Stored:
    """Return the table of a file, not read yet, with ids of another file or those that it gets without any.

    Raises:
        UsageError: as `find_table` and `read_ids`, or the table has no elements.
    """
    table = find_table(path, tensor)
    if 0 in table.shape:
        raise _error(table.name, f"shape {table.shape}", "a table with elements")
    return Stored(table, read_ids(Path(ids_file), table.shape[0]) if ids_file else default_ids(*table.shape))


@contextlib.contextmanager
def loaded(found: Stored) -> Iterator[Callable[[Exam], Iterator[Call]]]:
    """Have a table in memory inside the block, where calls find it, and give what yields its calls."""
    LOADED[_FAMILY] = found.table.read(), found.ids
    try:
        yield found.calls
    finally:
        del LOADED[_FAMILY]
