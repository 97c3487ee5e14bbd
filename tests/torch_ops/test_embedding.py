"""The torch golden: every bit of every dtype, in every shape, layout, id dtype and way of calling, on the CPU."""

from __future__ import annotations

import importlib.util
import mmap
import re
import shutil
import warnings

import numpy as np
import pytest
from support.helpers import (
    HIDDEN,
    LAYOUTS,
    NARROW_VERBS,
    VERBS,
    WIDE_VERBS,
    WIDENED_DTYPES,
    answer,
    assert_same_bits,
    every_pattern,
    ignore_dynamo_warning,
    raises,
    random_bits,
    special_rows,
)

from xref import errors
from xref.bits import FORMATS
from xref.inputs import allocate, make_ids, make_table
from xref.operators.embedding import clauses

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops import embedding as golden
    from xref.torch_ops.arrays import address_range, bits_of
    from xref.torch_ops.memory import peak_extra_bytes

ID_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
BOTH_VERBS = ("forward", "forward_fp32")
IDS = np.array([[4, 0, 2, 4], [1, 1, 3, 0]])


def table_of(elements, dtype):
    """A tensor over the same memory and strides as the NumPy array of bits."""
    return torch.from_numpy(elements.view(f"i{elements.dtype.itemsize}")).view(getattr(torch, dtype))


def run(verb, ids, elements, dtype, **options):
    out = getattr(golden, verb)(torch.from_numpy(np.ascontiguousarray(ids)), table_of(elements, dtype), **options)
    return bits_of(out)


def small_table(dtype, hidden=33):
    return random_bits((5, hidden), FORMATS[dtype], seed=hidden)


# Every bit


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize(("verb", "dtype"), NARROW_VERBS)
def test_every_pattern_comes_back_and_the_special_ones_from_every_column(verb, dtype, hidden):
    table = every_pattern(FORMATS[dtype], hidden)
    ids = np.arange(table.shape[0])
    assert_same_bits(run(verb, ids, table, dtype), answer(verb, ids, table, dtype))


@pytest.mark.parametrize(("verb", "dtype"), WIDE_VERBS)
def test_a_million_random_patterns_come_back_and_the_special_ones_from_every_column(verb, dtype):
    table = np.concatenate([random_bits((1009, 1000), FORMATS[dtype]), special_rows(FORMATS[dtype], 1000)])
    ids = make_ids("distinct", (table.shape[0],), table.shape[0], "int64")
    assert_same_bits(run(verb, ids, table, dtype), answer(verb, ids, table, dtype))


# Tokens and width that make so many blocks.
BLOCKS = {"one": (2, 33), "some": (65, 1185), "some, of many tokens": (2000, 65), "64 and a rest": (1100, 4100)}


@pytest.mark.parametrize(
    ("dtype", "blocks"),
    [("float16", blocks) for blocks in BLOCKS] + [(dtype, "some") for dtype in WIDENED_DTYPES if dtype != "float16"],
)
def test_blocks_of_the_widening_leave_nothing_out(dtype, blocks):
    tokens, hidden = BLOCKS[blocks]
    table = random_bits((70, hidden), FORMATS[dtype])
    ids = make_ids("zipf", (tokens,), 70, "int64")
    assert_same_bits(run("forward_fp32", ids, table, dtype), answer("forward_fp32", ids, table, dtype))


# Form


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (2, 0, 3), (0, 4), (2, 3), (2, 1, 3), (1, 2, 1, 2)], ids=str)
@pytest.mark.parametrize("hidden", [0, 1, 33])
@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_result_has_the_shape_of_the_ids_and_then_the_row(verb, dtype, hidden, shape):
    table = small_table(dtype, hidden)
    ids = (np.arange(int(np.prod(shape))) * 3 % 5).reshape(shape)
    out = getattr(golden, verb)(torch.from_numpy(ids), table_of(table, dtype))
    assert out.dtype == (getattr(torch, dtype) if verb == "forward" else torch.float32)
    assert out.device == torch.device("cpu")
    assert out.layout == torch.strided
    assert out.is_contiguous()
    assert_same_bits(bits_of(out), answer(verb, ids, table, dtype))


@pytest.mark.parametrize("id_dtype", ID_DTYPES)
@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_ids_of_every_integer_dtype_name_the_same_rows(verb, dtype, id_dtype):
    table = random_bits((300, 33), FORMATS[dtype])
    last = min(299, np.iinfo(id_dtype).max)
    ids = np.array([[0, 1, last], [127, last - 1, 0]], dtype=id_dtype)
    assert_same_bits(run(verb, ids, table, dtype), answer(verb, ids, table, dtype))


def test_the_id_dtypes_tested_are_all_that_torch_has():
    integers = {n for n in dir(torch) if re.fullmatch(r"u?int\d+", n) and isinstance(getattr(torch, n), torch.dtype)}
    # Those below a byte are shells: torch makes no tensor of a number in them.
    assert {n for n in integers if int(n.lstrip("uint")) >= 8} == set(ID_DTYPES)


@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
@pytest.mark.parametrize("hidden", [0, 4])
@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_no_ids_of_an_empty_table_give_an_empty_result(verb, dtype, hidden, shape):
    out = getattr(golden, verb)(torch.zeros(shape, dtype=torch.int32), torch.zeros(0, hidden).to(getattr(torch, dtype)))
    assert tuple(out.shape) == (*shape, hidden)


# Layouts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hidden", [1, 16, 33])
@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_table_may_lie_in_memory_in_any_way(verb, dtype, hidden, layout):
    dense = small_table(dtype, hidden)
    laid = LAYOUTS[layout](dense)
    assert table_of(laid, dtype).stride() == tuple(s // dense.itemsize for s in laid.strides)
    assert_same_bits(run(verb, IDS, laid, dtype), answer(verb, IDS, dense, dtype))


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_one_row_expanded_to_a_table_is_that_row_everywhere(verb, dtype):
    row = small_table(dtype)[:1]
    out = getattr(golden, verb)(torch.from_numpy(IDS), table_of(row, dtype).expand(5, -1))
    assert_same_bits(bits_of(out), answer(verb, IDS * 0, row, dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_ids_may_lie_in_memory_in_any_way(verb, layout):
    table = small_table("bfloat16")
    out = getattr(golden, verb)(torch.from_numpy(LAYOUTS[layout](IDS)), table_of(table, "bfloat16"))
    assert_same_bits(bits_of(out), answer(verb, IDS, table, "bfloat16"))


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_one_id_expanded_to_many_is_that_id_everywhere(verb):
    table = small_table("float16")
    out = getattr(golden, verb)(torch.tensor([[3]]).expand(2, 7), table_of(table, "float16"))
    assert_same_bits(bits_of(out), answer(verb, np.full((2, 7), 3), table, "float16"))


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_read_only_memory_is_never_written(verb, dtype, tmp_path):
    """Pages that are mapped read-only: a write to them would end the process."""

    def mapped(array, name):
        (tmp_path / name).write_bytes(array.tobytes())
        with (tmp_path / name).open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(pages, array.dtype).reshape(array.shape)

    table = small_table(dtype)
    with warnings.catch_warnings():
        # torch has no read-only tensors, and says so once in a process when it is given such memory.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        ids, weight = torch.from_numpy(mapped(IDS, "ids")), table_of(mapped(table, "table"), dtype)
    assert_same_bits(bits_of(getattr(golden, verb)(ids, weight)), answer(verb, IDS, table, dtype))


# Purity


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_inputs_keep_their_bits_and_the_result_has_memory_of_its_own(verb, dtype, layout):
    for given in (IDS, np.array(3), np.arange(5), np.array([0])):
        table, ids = LAYOUTS[layout](small_table(dtype)), given.copy()
        weight, tokens = table_of(table, dtype), torch.from_numpy(ids)
        versions = weight._version, tokens._version
        out = getattr(golden, verb)(tokens, weight)
        first, last = address_range(out)
        for other in (weight, tokens):
            begin, end = address_range(other)
            assert last <= begin or end <= first
        bits_of(out)[...] = 0x2A
        assert_same_bits(table, small_table(dtype))
        assert np.array_equal(ids, given)
        assert (weight._version, tokens._version) == versions


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_a_table_of_one_row_is_copied_not_returned(verb, dtype):
    weight = table_of(small_table(dtype)[:1], dtype)
    out = getattr(golden, verb)(torch.tensor([0]), weight)
    assert address_range(out)[0] != address_range(weight)[0]


# Ways of calling


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_validation_changes_nothing_for_ids_in_range(verb, dtype):
    table = small_table(dtype)
    assert_same_bits(run(verb, IDS, table, dtype, validate=False), answer(verb, IDS, table, dtype))


@pytest.mark.parametrize("bad", [[5], [-1], [2**32 + 1]], ids=str)
def test_without_validation_the_framework_refuses_bad_ids_itself(bad):
    with pytest.raises(IndexError):
        golden.forward(torch.tensor(bad), torch.zeros(5, 3), validate=False)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("verb", BOTH_VERBS)
@pytest.mark.parametrize("mode", ["vmap", "vjp", "requires_grad", "no_grad", "inference"])
def test_every_bfloat16_pattern_comes_back_in_every_mode(mode, verb, hidden):
    table = every_pattern(FORMATS["bfloat16"], hidden)
    ids = np.arange(table.shape[0])
    call, tokens, weight = getattr(golden, verb), torch.from_numpy(ids), table_of(table, "bfloat16")
    if mode == "vmap":
        out = torch.func.vmap(call, in_dims=(0, None))(tokens, weight)
    elif mode == "vjp":
        out = torch.func.vjp(lambda leaf: call(tokens, leaf), weight)[0]
    elif mode == "requires_grad":
        out = call(tokens, weight.requires_grad_())
        assert out.requires_grad
    elif mode == "no_grad":
        with torch.no_grad():
            out = call(tokens, weight.requires_grad_())
        assert not out.requires_grad
    else:
        with torch.inference_mode():
            out = call(tokens, weight)
    assert_same_bits(bits_of(out), answer(verb, ids, table, "bfloat16"))


def vmapped(verb, in_dims, ids, elements, dtype):
    call = torch.func.vmap(getattr(golden, verb), in_dims=in_dims)
    return bits_of(call(torch.from_numpy(np.ascontiguousarray(ids)), table_of(elements, dtype)))


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
class TestVmap:
    def test_over_ids(self, verb, dtype):
        table = small_table(dtype)
        for dim in (0, 1, -1):
            expected = answer(verb, np.moveaxis(IDS, dim, 0), table, dtype)
            assert_same_bits(vmapped(verb, (dim, None), IDS, table, dtype), expected)

    def test_over_single_ids(self, verb, dtype):
        table = small_table(dtype)
        assert_same_bits(vmapped(verb, (0, None), IDS[0], table, dtype), answer(verb, IDS[0], table, dtype))

    def test_over_tables(self, verb, dtype):
        tables = random_bits((3, 5, 7), FORMATS[dtype])
        expected = np.stack([answer(verb, IDS, table, dtype) for table in tables])
        for dim in (0, 1, 2):
            laid = np.ascontiguousarray(np.moveaxis(tables, 0, dim))
            assert_same_bits(vmapped(verb, (None, dim), IDS, laid, dtype), expected)

    def test_over_both(self, verb, dtype):
        tables = random_bits((2, 5, 7), FORMATS[dtype])
        expected = np.stack([answer(verb, ids, table, dtype) for ids, table in zip(IDS, tables, strict=True)])
        assert_same_bits(vmapped(verb, (0, 0), IDS, tables, dtype), expected)

    def test_over_both_in_other_dimensions(self, verb, dtype):
        tables = random_bits((5, 7, 4), FORMATS[dtype])
        expected = np.stack([answer(verb, IDS[:, n], tables[:, :, n], dtype) for n in range(4)])
        assert_same_bits(vmapped(verb, (1, 2), IDS, tables, dtype), expected)

    def test_over_no_entries(self, verb, dtype):
        uint = FORMATS[dtype].uint
        assert vmapped(verb, (0, None), IDS[:0], small_table(dtype), dtype).shape == (0, 4, 33)
        assert vmapped(verb, (None, 0), IDS, np.zeros((0, 5, 7), uint), dtype).shape == (0, 2, 4, 7)
        assert vmapped(verb, (0, 0), IDS[:0], np.zeros((0, 5, 7), uint), dtype).shape == (0, 4, 7)

    def test_within_vmap(self, verb, dtype):
        tables = random_bits((2, 5, 7), FORMATS[dtype])
        inner = torch.func.vmap(getattr(golden, verb), in_dims=(0, None))
        out = torch.func.vmap(inner, in_dims=(None, 0))(torch.from_numpy(IDS), table_of(tables, dtype))
        assert_same_bits(bits_of(out), np.stack([answer(verb, IDS, table, dtype) for table in tables]))


def test_bad_ids_are_refused_under_vmap_with_their_position_in_the_batch():
    message = (
        "token_ids: got 1 of 8 ids out of range, the first at position (1, 2) with value 9,"
        " expected 0 <= id < V=5 [forward]"
    )
    ids = torch.from_numpy(IDS.copy())
    ids[1, 2] = 9
    with raises(IndexError, message):
        torch.func.vmap(golden.forward, in_dims=(0, None))(ids, torch.zeros(5, 3))


@pytest.fixture
def _fresh_compiler():
    """Dynamo gives up on a function that it has compiled for many dtypes."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@ignore_dynamo_warning
class TestCompiled:
    """Traced by Dynamo; run as traced, since generating code needs a C++ compiler, and once as generated."""

    # torch's own code generator uses what torch deprecates.
    @pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
    @pytest.mark.skipif(shutil.which("g++") is None, reason="g++: not found, expected a C++ compiler for Inductor")
    @pytest.mark.parametrize("verb", clauses.VERBS)
    def test_as_generated_code(self, verb):
        table = np.arange(1 << 16, dtype="u2")[: 1008 * 65].reshape(1008, 65)
        ids = np.arange(1008)
        call = torch.compile(getattr(golden, verb), fullgraph=True)
        out = call(torch.from_numpy(ids), table_of(table, "bfloat16"), validate=False)
        assert_same_bits(bits_of(out), answer(verb, ids, table, "bfloat16"))

    @pytest.mark.parametrize(
        ("verb", "dtype"), [("forward", "float32"), ("forward", "float8_e5m2"), ("forward_fp32", "float16")]
    )
    def test_with_validation(self, verb, dtype):
        table = small_table(dtype)
        out = torch.compile(getattr(golden, verb), backend="eager")(torch.from_numpy(IDS), table_of(table, dtype))
        assert_same_bits(bits_of(out), answer(verb, IDS, table, dtype))

    @pytest.mark.parametrize(("verb", "dtype"), VERBS)
    def test_as_one_graph_without_validation(self, verb, dtype):
        table = small_table(dtype)
        call = torch.compile(getattr(golden, verb), backend="eager", fullgraph=True)
        out = call(torch.from_numpy(IDS), table_of(table, dtype), validate=False)
        assert_same_bits(bits_of(out), answer(verb, IDS, table, dtype))

    @pytest.mark.parametrize("verb", BOTH_VERBS)
    def test_of_every_bfloat16_pattern(self, verb):
        table = every_pattern(FORMATS["bfloat16"], 65)
        ids = np.arange(table.shape[0])
        out = torch.compile(getattr(golden, verb), backend="eager")(torch.from_numpy(ids), table_of(table, "bfloat16"))
        assert_same_bits(bits_of(out), answer(verb, ids, table, "bfloat16"))

    @pytest.mark.parametrize("verb", BOTH_VERBS)
    def test_of_batches_of_changing_size(self, verb):
        table = small_table("float16")
        call = torch.compile(getattr(golden, verb), backend="eager", dynamic=True)
        for tokens in (3, 5, 70):
            ids = np.arange(tokens) % 5
            out = call(torch.from_numpy(ids), table_of(table, "float16"))
            assert_same_bits(bits_of(out), answer(verb, ids, table, "float16"))

    @pytest.mark.parametrize("verb", BOTH_VERBS)
    def test_bad_ids_are_refused(self, verb):
        message = (
            "token_ids: got 2 of 3 ids out of range, the first at position (1,) with value -1,"
            f" expected 0 <= id < V=5 [{verb}]"
        )
        with raises(IndexError, message):
            torch.compile(getattr(golden, verb), backend="eager")(torch.tensor([0, -1, 5]), torch.zeros(5, 3))

    def test_with_a_gradient(self):
        weight = torch.zeros(5, 3, requires_grad=True)
        torch.compile(golden.forward, backend="eager")(torch.from_numpy(IDS), weight).sum().backward()
        assert weight.grad[:, 0].tolist() == [2, 2, 1, 1, 2]


class TestModule:
    def test_is_a_module_without_parameters_or_state(self):
        op = golden.NativeEmbeddingOp()
        assert isinstance(op, torch.nn.Module)
        assert list(op.parameters()) == []
        assert op.state_dict() == {}

    @pytest.mark.parametrize(("verb", "dtype"), VERBS)
    def test_gives_what_the_functions_give(self, verb, dtype):
        table = small_table(dtype)
        op = golden.NativeEmbeddingOp()
        call = op if verb == "forward" else op.forward_fp32
        assert_same_bits(bits_of(call(torch.from_numpy(IDS), table_of(table, dtype))), answer(verb, IDS, table, dtype))

    def test_refuses_bad_ids(self):
        with pytest.raises(IndexError, match="expected 0 <= id < V=5"):
            golden.NativeEmbeddingOp()(torch.tensor([5]), torch.zeros(5, 3))


# Gradient: that it is there, and where it must be zero. Its roundings are not this file's subject.


@pytest.mark.parametrize(("verb", "dtype"), [p for p in VERBS if not p.values[1].startswith("float8")])
@pytest.mark.parametrize("way", ["autograd", "func.vjp"])
def test_gradient_is_dense_and_counts_and_leaves_other_rows_plus_zero(way, verb, dtype):
    ids = torch.tensor([[6, 0, 2, 6], [0, 6, 3, 0]])
    weight = table_of(random_bits((8, 3), FORMATS[dtype]), dtype)
    out_dtype = weight.dtype if verb == "forward" else torch.float32
    cotangent = torch.arange(1, 25).reshape(2, 4, 3).to(out_dtype)
    if way == "autograd":
        weight.requires_grad_()
        (grad,) = torch.autograd.grad(getattr(golden, verb)(ids, weight), weight, cotangent)
    else:
        (grad,) = torch.func.vjp(lambda leaf: getattr(golden, verb)(ids, leaf), weight)[1](cotangent)
    assert (grad.shape, grad.dtype, grad.layout) == (weight.shape, weight.dtype, torch.strided)
    assert grad.to(torch.float64)[[0, 2, 3, 6]].tolist() == [[39, 42, 45], [7, 8, 9], [19, 20, 21], [27, 30, 33]]
    assert not bits_of(grad)[[1, 4, 5, 7]].any()


def test_gradient_of_a_single_id_without_dimension():
    weight = torch.zeros(4, 2, requires_grad=True)
    golden.forward(torch.tensor(2), weight).sum().backward()
    assert weight.grad.tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]


def test_gradient_of_no_ids_is_plus_zero():
    weight = torch.zeros(4, 2, requires_grad=True)
    golden.forward(torch.zeros((2, 0), dtype=torch.int64), weight).sum().backward()
    assert not bits_of(weight.grad).any()


# Memory, last: the shape of a real model


@pytest.mark.parametrize(
    ("verb", "dtype", "tokens"),
    [
        ("forward", "bfloat16", 8192),
        ("forward_fp32", "bfloat16", 8192),
        ("forward_fp32", "float16", 2048),
        ("forward_fp32", "float8_e5m2", 2048),
        ("forward_fp32", "float32", 2048),
    ],
    ids=str,
)
def test_a_call_holds_little_more_than_its_output(verb, dtype, tokens):
    """At the shape of Qwen3-8B's table; the zero pages that no one touches take no memory."""
    ids = torch.from_numpy(make_ids("zipf_ends", (tokens,), 151936, "int64"))
    weight = table_of(allocate((151936, 4096), FORMATS[dtype].uint), dtype)
    output = tokens * 4096 * (4 if verb == "forward_fp32" else weight.element_size())
    assert output <= peak_extra_bytes(getattr(golden, verb), ids, weight) < 1.2 * output


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_memory_of_a_call_does_not_grow_with_the_table(dtype):
    ids = torch.arange(100)
    peaks = {}
    for vocab in (100, 10_000):
        weight = table_of(allocate((vocab, 512), FORMATS[dtype].uint), dtype)
        peaks[vocab] = [peak_extra_bytes(getattr(golden, verb), ids, weight) for verb in BOTH_VERBS]
    assert peaks[100] == peaks[10_000]


def test_a_table_past_2_to_the_31_elements_is_looked_up_on_both_sides_of_it():
    ids = np.array([0, 32767, 32768, 32769, 39999])
    table = make_table("sparse", 40000, 65536, FORMATS["bfloat16"], touched=ids)
    for verb in BOTH_VERBS:
        assert_same_bits(run(verb, ids, table, "bfloat16"), answer(verb, ids, table, "bfloat16"))


# The gather of GPUs, which is checked while it runs; the same steps on a CPU.


@pytest.mark.parametrize("narrow", [None, FORMATS["bfloat16"]])
def test_a_gather_that_is_checked_while_it_runs_gives_the_same_rows(narrow):
    weight = torch.randn(50, 7).to(torch.bfloat16)
    ids = torch.tensor([[3, 49, 0], [3, 3, 17]], dtype=torch.int32)
    verb = golden.forward if narrow is None else golden.forward_fp32
    got = golden._gather_checked(ids, weight, narrow, "forward")
    width = torch.int16 if narrow is None else torch.int32
    assert torch.equal(got.view(width), verb(ids, weight).view(width))


def test_a_gather_that_is_checked_while_it_runs_returns_no_row_for_a_bad_id(monkeypatch):
    weight, bad = torch.randn(50, 7), torch.tensor([3, 50, -1])
    expected = r"token_ids: got 2 of 3 ids out of range, the first at position \(1,\) with value 50"
    with pytest.raises(IndexError, match=expected):
        golden._gather_checked(bad, weight, None, "forward")
    monkeypatch.setattr(golden._arguments, "check_range", lambda *_: None)  # as if the ids had changed meanwhile
    with pytest.raises(
        errors.UsageError, match="token_ids: got ids that changed during the call, expected the same ids"
    ):
        golden._gather_checked(bad, weight, None, "forward")
