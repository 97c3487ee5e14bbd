"""A checkpoint's table and ids: read once and as they are, or refused in one line that says what is wrong."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from support.checkpoints import SIZES, checkpoint

from xref import bits, errors
from xref.bits import FORMATS
from xref.engine import frameworks
from xref.operators.embedding import weights

CODES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
FLOAT8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
NO_TABLE = (
    "got no tensor that can be a table, expected one of shape [V, H] and of F64, F32, BF16, F16, F8_E4M3, F8_E5M2"
)


def read_table(path, name):
    found = weights.find_table(path, name)
    return found.name, found.dtype, found.read()


def refused(call, *args):
    with pytest.raises(errors.UsageError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.safetensors"


# Tables


@pytest.mark.parametrize(("code", "dtype"), CODES.items(), ids=CODES)
def test_a_table_is_read_bit_for_bit(code, dtype, file):
    width = SIZES[code]
    data = bytes(np.arange(7 * 5 * width, dtype="u4").astype("u1") * 37 % 251)
    name, read, table = read_table(checkpoint(file, w=(code, (7, 5), data)), "w")
    assert (name, read, table.shape, table.dtype) == ("w", dtype, (7, 5), FORMATS[dtype].uint)
    assert table.tobytes() == data


@pytest.mark.parametrize("code", CODES)
def test_every_pattern_of_16_bits_comes_through(code, file):
    if SIZES[code] != 2:
        pattern = np.arange(1 << 12, dtype=FORMATS[CODES[code]].uint) << (8 * SIZES[code] - 12)
    else:
        pattern = np.arange(1 << 16, dtype="u2")
    _, _, table = read_table(checkpoint(file, w=(code, (256, pattern.size // 256), pattern.tobytes())), None)
    np.testing.assert_array_equal(table.reshape(-1), pattern)


@pytest.mark.torch
@pytest.mark.parametrize("code", FLOAT8)
def test_a_float8_table_is_read_through_torch(code, file):
    checkpoint(file, w=(code, (3, 2), bytes(range(6))))
    assert read_table(file, "w")[2].tobytes() == bytes(range(6))


@pytest.mark.parametrize(("code", "dtype"), FLOAT8.items(), ids=FLOAT8)
def test_a_float8_table_without_torch_is_refused(code, dtype, file, monkeypatch):
    checkpoint(file, w=(code, (3, 2), bytes(range(6))))
    monkeypatch.setattr(weights.frameworks, "installed", lambda name: False)
    assert refused(read_table, file, "w") == (
        f"w: got {dtype}, expected torch, through which safetensors reads float8: pip install 'xref[torch]'"
    )


def test_a_table_larger_than_a_slice_is_read_whole(file, monkeypatch):
    monkeypatch.setattr(weights, "_SLICE", 64)
    data = np.arange(1000, dtype="u4")
    _, _, table = read_table(checkpoint(file, w=("F32", (125, 8), data.tobytes())), None)
    np.testing.assert_array_equal(table, data.reshape(125, 8))


def test_the_only_table_needs_no_name(file):
    checkpoint(file, norm=("F32", (4,)), embed=("F16", (3, 2)), position=("I64", (3, 2)))
    assert read_table(file, None)[0] == "embed"


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)], ids=["no rows", "no columns"])
def test_an_empty_table_has_its_shape(shape, file):
    assert read_table(checkpoint(file, w=("F32", shape)), None)[2].shape == shape


@pytest.mark.parametrize("name", [None, "nope"], ids=["no name", "no such name"])
def test_tables_to_choose_from_are_listed(name, file):
    checkpoint(file, b=("F32", (2, 2)), a=("BF16", (3, 2)), norm=("F32", (4,)), ids=("I64", (2, 2)))
    got = name or "none"
    assert refused(read_table, file, name) == f"--tensor: got {got}, expected one of a, b"


def test_a_long_list_of_tables_is_cut(file):
    checkpoint(file, **{f"layer{n:02}": ("F16", (1, 1)) for n in range(23)})
    listed = ", ".join(f"layer{n:02}" for n in range(20))
    assert refused(read_table, file, None) == f"--tensor: got none, expected one of {listed} and 3 more"


@pytest.mark.parametrize("name", [None, "nope"], ids=["no name", "no such name"])
@pytest.mark.parametrize(
    "tensors",
    [{}, {"norm": ("F32", (4,))}, {"ids": ("I64", (2, 2))}, {"cube": ("F32", (2, 1, 1))}],
    ids=["no tensor", "1-D", "integers", "3-D"],
)
def test_a_file_without_a_table_is_refused(name, tensors, file):
    assert refused(read_table, checkpoint(file, **tensors), name) == f"{file}: {NO_TABLE}"


@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 2)], ids=["0-D", "1-D", "3-D"])
def test_a_tensor_of_another_rank_is_refused(shape, file):
    checkpoint(file, w=("F32", shape), table=("F32", (1, 1)))
    assert refused(read_table, file, "w") == f"w: got shape {shape}, expected shape [V, H]"


@pytest.mark.parametrize("code", ["I64", "I32", "BOOL"])
def test_weights_that_are_no_floats_are_refused(code, file):
    checkpoint(file, w=(code, (3, 2)))
    assert refused(read_table, file, "w") == (
        f"w: got dtype {code}, expected one of F64, F32, BF16, F16, F8_E4M3, F8_E5M2"
    )


def test_a_path_that_is_not_there_is_refused(file):
    assert refused(read_table, file, None) == f"{file}: got no such file, expected a safetensors file"


def test_a_folder_is_refused(tmp_path):
    assert refused(read_table, tmp_path, None) == f"{tmp_path}: got a folder, expected a safetensors file"


@pytest.mark.parametrize(
    "kept", [0, 5, 8, 30, -1], ids=["nothing", "half a length", "a length", "half a header", "all but a byte"]
)
def test_a_truncated_file_is_refused(kept, file):
    whole = checkpoint(file, w=("F32", (3, 2))).read_bytes()
    file.write_bytes(whole[:kept])
    message = refused(read_table, file, None)
    assert message.startswith(f"{file}: got a file that does not open (")
    assert message.endswith("), expected a sound safetensors file")


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04 an archive", b"\x80\x04 a pickle", b"{}"], ids=["zip", "pickle", "json"]
)
def test_another_kind_of_file_is_refused(content, file):
    file.write_bytes(content)
    assert refused(read_table, file, None).startswith(f"{file}: got a file that does not open (")


def test_a_bfloat16_table_is_read_before_any_framework_is_loaded(file):
    """NumPy has no bfloat16 of its own, and the first framework to come would bring one."""
    checkpoint(file, w=("BF16", (3, 2), bytes(range(12))))
    read = f"weights.find_table(pathlib.Path({str(file)!r}), 'w').read()"
    code = f"import pathlib; from xref.operators.embedding import weights; print({read})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == str(np.arange(12, dtype="u1").view("u2").reshape(3, 2)).split()


# Memory


def test_a_table_lies_in_memory_of_its_own_aligned_to_64_bytes(file):
    _, _, table = read_table(checkpoint(file, w=("F16", (33, 7))), None)
    assert table.ctypes.data % 64 == 0
    assert table.flags.c_contiguous
    assert table.flags.writeable
    file.write_bytes(bytes(file.stat().st_size))  # were it the map of the file, it would be zeros now
    assert table.any()


@pytest.mark.torch
@pytest.mark.jax
def test_both_frameworks_share_the_tables_memory(file):
    _, dtype, table = read_table(checkpoint(file, w=("BF16", (33, 7))), None)
    for name in frameworks.FRAMEWORKS:
        arrays = frameworks.load(name).arrays
        with arrays.precision(dtype):
            start, _ = arrays.address_range(arrays.put(table, dtype, "cpu"))
        assert start == table.ctypes.data


# Ids


def saved(path, ids, **how):
    np.save(path, np.asarray(ids), **how)
    return path


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">u4", "<i8", ">i8", "<u8", ">u8"])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 1, 2), ()], ids=["1-D", "2-D", "3-D", "0-D"])
def test_ids_of_any_integer_dtype_and_shape_are_read(dtype, shape, tmp_path):
    given = (np.arange(np.prod(shape, dtype=int)) * 7 % 10).astype(dtype).reshape(shape)
    read = weights.read_ids(saved(tmp_path / "ids.npy", given), 10)
    np.testing.assert_array_equal(read, given)
    assert read.shape == shape
    assert read.dtype == np.dtype(dtype).newbyteorder("=")  # frameworks take the machine's byte order only
    assert read.dtype.isnative


def test_ids_saved_by_columns_are_read(tmp_path):
    given = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(weights.read_ids(saved(tmp_path / "ids.npy", given), 6), given)


@pytest.mark.parametrize(
    "text",
    ["0 1 2 42", "0,1,2,42", "0, 1,\n\n2\t42\n", "\n\n0\r\n1\r\n2\r\n+42", " 00 01 2,,42 "],
    ids=["spaces", "commas", "blank line", "windows", "padded"],
)
def test_ids_in_text_are_integers_apart_by_white_space_or_commas(text, tmp_path):
    path = tmp_path / "ids.txt"
    path.write_bytes(text.encode())
    read = weights.read_ids(path, 43)
    assert read.tolist() == [0, 1, 2, 42]
    assert read.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "line", "got", "expected"),
    [
        ("1 2\n\n3 x4 5", 3, "'x4'", "integers, apart by white space or commas"),
        ("1.0", 1, "'1.0'", "integers, apart by white space or commas"),
        ("1\n1e3", 2, "'1e3'", "integers, apart by white space or commas"),
        ("1_000", 1, "'1_000'", "integers, apart by white space or commas"),
        ("1\n٣", 2, "'٣'", "integers, apart by white space or commas"),
        ("0x10", 1, "'0x10'", "integers, apart by white space or commas"),
        ("1;2", 1, "'1;2'", "integers, apart by white space or commas"),
        ("1\n9223372036854775808", 2, "'9223372036854775808'", "ids that fit in 64 bits"),
        ("-9223372036854775809", 1, "'-9223372036854775809'", "ids that fit in 64 bits"),
        ("7" * 5000, 1, "'777777777777...7777777777777'", "ids that fit in 64 bits"),
    ],
    ids=["word", "float", "exponent", "underscore", "digit", "hex", "semicolon", "2**63", "below", "5000 digits"],
)
def test_what_is_no_id_is_refused_with_its_line(text, line, got, expected, tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text(text, encoding="utf-8")
    assert refused(weights.read_ids, path, 43) == f"{path}, line {line}: got {got}, expected {expected}"


def test_text_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_bytes(b"1 2 \xff\xfe")
    message = refused(weights.read_ids, path, 43)
    assert message.startswith(f"{path}: got bytes that are not text (")
    assert message.endswith("), expected integers in UTF-8 text")


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([0, 43, 5, -1], "2 of 4 ids out of range, the first 43"),
        ([[0, 1], [-7, 2]], "1 of 4 ids out of range, the first -7"),
        (np.array([2**64 - 1], dtype="u8"), "1 of 1 ids out of range, the first 18446744073709551615"),
        (np.array([-1], dtype="i1"), "1 of 1 ids out of range, the first -1"),
    ],
    ids=["past the end", "2-D", "uint64", "int8"],
)
def test_ids_out_of_range_are_refused(ids, told, tmp_path):
    path = saved(tmp_path / "ids.npy", ids)
    assert refused(weights.read_ids, path, 43) == f"{path}: got {told}, expected 0 <= id < V=43"


def test_ids_out_of_range_in_text_are_refused(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("0\n43")
    assert refused(weights.read_ids, path, 43) == (
        f"{path}: got 1 of 2 ids out of range, the first 43, expected 0 <= id < V=43"
    )


def test_ids_at_both_ends_are_taken(tmp_path):
    assert weights.read_ids(saved(tmp_path / "ids.npy", [0, 42]), 43).tolist() == [0, 42]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "complex64", "timedelta64[s]"])
def test_ids_that_are_no_integers_are_refused(dtype, tmp_path):
    path = saved(tmp_path / "ids.npy", np.zeros(3, dtype=dtype))
    assert refused(weights.read_ids, path, 43) == f"{path}: got dtype {dtype}, expected an integer dtype"


@pytest.mark.parametrize("suffix", [".npy", ".txt"])
def test_no_ids_are_refused(suffix, tmp_path):
    path = tmp_path / f"ids{suffix}"
    if suffix == ".npy":
        saved(path, np.zeros((2, 0), dtype="i8"))
    else:
        path.write_text(" \n,\n")
    assert refused(weights.read_ids, path, 43) == f"{path}: got no ids, expected at least one"


@pytest.mark.parametrize("name", ["ids.json", "ids", "ids.NPY"])
def test_another_suffix_is_refused(name, tmp_path):
    path = tmp_path / name
    path.write_text("1")
    assert refused(weights.read_ids, path, 43) == (
        f"{path}: got suffix {path.suffix!r}, expected a .npy or .txt file of token ids"
    )


@pytest.mark.parametrize(("there", "got"), [(False, "no such file"), (True, "a folder")], ids=["missing", "folder"])
def test_ids_that_are_no_file_are_refused(there, got, tmp_path):
    path = tmp_path / "ids.npy"
    if there:
        path.mkdir()
    assert refused(weights.read_ids, path, 43) == f"{path}: got {got}, expected a .npy or .txt file of token ids"


def test_what_is_no_plain_file_is_refused_by_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "loop.npy").symlink_to(tmp_path / "loop.npy")
    expected = "expected a .npy or .txt file of token ids"
    got = {"pipe.npy": "no plain file", "loop.npy": "an error (Too many levels of symbolic links)"}
    got["x" * 300] = "an error (File name too long)"
    for name, problem in got.items():
        path = tmp_path / name
        assert refused(weights.read_ids, path, 43) == f"{path}: got {problem}, {expected}"
    path = tmp_path / os.fsdecode(b"\xff.npy")
    assert refused(weights.read_ids, path, 43) == f"file name: got {str(path)!a}, expected one in UTF-8"


def test_a_byte_order_mark_before_the_first_id_is_no_part_of_it(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("7 8", encoding="utf-8-sig")
    assert weights.read_ids(path, 43).tolist() == [7, 8]


def _pickled(path):
    path.write_bytes(pickle.dumps([1, 2, 3]))


def _objects(path):
    saved(path, np.array([1, "two"], dtype=object), allow_pickle=True)


def _truncated(path):
    path.write_bytes(saved(path, np.arange(9)).read_bytes()[:-3])


def _headless(path):
    path.write_bytes(saved(path, np.arange(9)).read_bytes()[:20])


def _empty(path):
    path.write_bytes(b"")


def _text(path):
    path.write_text("1 2 3")


def _far_too_large(path):
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (100000000000000,), }".ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


@pytest.mark.parametrize("make", [_pickled, _objects, _truncated, _headless, _empty, _text, _far_too_large])
def test_a_npy_file_that_is_not_sound_is_refused_and_no_pickle_is_run(make, tmp_path):
    path = tmp_path / "ids.npy"
    make(path)
    message = refused(weights.read_ids, path, 43)
    assert message.startswith(f"{path}: got a file that does not load (")
    assert message.endswith("), expected a sound .npy file")


def test_a_pickle_that_would_run_code_runs_none(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path = tmp_path / "ids.npy"
    path.write_bytes(pickle.dumps(Bomb()))
    refused(weights.read_ids, path, 43)
    assert not (tmp_path / "ran").exists()


def test_an_archive_of_arrays_is_refused(tmp_path):
    path = tmp_path / "ids.npy"
    np.savez(tmp_path / "ids.npz", ids=np.arange(3))
    (tmp_path / "ids.npz").rename(path)
    assert refused(weights.read_ids, path, 43) == (
        f"{path}: got an archive of arrays, expected a file of one array, as numpy.save writes it"
    )


@pytest.mark.parametrize("vocab", [1, 2, 5, 32000, 151936])
def test_default_ids_have_both_ends_and_stay_inside(vocab):
    ids = weights.default_ids(vocab, 4096)
    assert ids.shape == (8, 1024)
    assert ids.min() == 0
    assert ids.max() == vocab - 1
    if vocab > 100:
        assert 100 < np.unique(ids).size < ids.size  # frequent ones and rare ones


@pytest.mark.parametrize(("hidden", "count"), [(8192, 8192), (8193, 8191), (1 << 20, 64), (1 << 27, 2)])
def test_wide_tables_get_fewer_default_ids(hidden, count):
    ids = weights.default_ids(100, hidden)
    assert ids.size == count
    assert {0, 99} <= set(ids.reshape(-1).tolist())


# A real checkpoint


def test_the_real_table_is_read_as_it_is(real_table):
    name, dtype, table = read_table(real_table(), None)
    assert (name, dtype, table.shape) == ("embedding.weight", "float16", (32000, 256))
    assert table.tobytes() == real_table().read_bytes()[-table.nbytes :]
    assert bits.digest(table, dtype) == "7754e2d310ff35a27098bba52cb3949f8a07850ce0c9f6fdfe6b1be6e1162e55"
