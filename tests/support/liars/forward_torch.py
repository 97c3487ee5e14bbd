"""Torch goldens that are wrong in one way each: real kernels have had each of these faults, or one much like it."""

from __future__ import annotations

from support.liars import V, registry

# A machine without torch collects these tests too, and deselects them.
try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None

__all__ = ["LIARS"]

LIARS, torch_liar = registry()
WIDENED = {"verbs": ("forward_fp32",)}


def _ints(out):
    """Return a torch tensor's bits, to be changed in place."""
    return out.view({2: torch.int16, 4: torch.int32}[out.element_size()])


def _bfloat16_nan(ints):
    return (ints & 0x7FFF) > 0x7F80


def _in_range(ids, table):
    """Whether the honest verb would take the ids: a liar of another clause leaves the refusals to it."""
    if ids.dtype in (torch.bool, torch.float32, torch.float16, torch.complex64):
        return False
    return bool(((ids.long() >= 0) & (ids.long() < table.shape[0])).all())


def _flipped(out):
    _ints(out).view(-1)[:1] ^= 1
    return out


def _nth_call(memory):
    memory["calls"] = memory.get("calls", 0) + 1
    return memory["calls"]


# Bits


@torch_liar(
    "EMB-1", says="out[11, 0]: got 0x0000, expected 0x8000 (0 ulp; 12 of 3360 elements differ)", works=("small",)
)
def minus_zero_lost(run, ids, table, memory):
    out = run(ids, table)
    _ints(out)[out == 0] = 0
    return out


@torch_liar("EMB-1", says="got 0x7fc1, expected 0x7f81 (NaN")
def nan_quieted(run, ids, table, memory):
    out = run(ids, table)
    ints = _ints(out)
    ints[_bfloat16_nan(ints)] |= 0x40
    return out


@torch_liar("EMB-1", says="got 0x7fc0, expected 0x7f81 (NaN")
def nan_payload_lost(run, ids, table, memory):
    out = run(ids, table)
    ints = _ints(out)
    ints[_bfloat16_nan(ints)] = 0x7FC0
    return out


@torch_liar("EMB-1", says="got 0x7f80, expected 0x7f81 (NaN")
def nan_turned_into_infinity(run, ids, table, memory):
    out = run(ids, table)
    ints = _ints(out)
    ints[_bfloat16_nan(ints)] &= ~0x7F
    return out


@torch_liar("EMB-1", says="got 0x0000, expected 0x0001 (1 ulp")
def subnormals_flushed(run, ids, table, memory):
    out = run(ids, table)
    ints = _ints(out)
    ints[(ints & 0x7F80) == 0] &= -0x8000
    return out


@torch_liar("EMB-1", says="got 0x7f7f, expected 0x7f80 (1 ulp")
def infinity_saturated(run, ids, table, memory):
    out = run(ids, table)
    ints = _ints(out)
    ints[(ints & 0x7FFF) == 0x7F80] -= 1
    return out


@torch_liar("EMB-1", says="ulp")
def rounded_through_float8(run, ids, table, memory):
    return run(ids, table).to(torch.float8_e5m2).to(table.dtype)


@torch_liar("EMB-1", says="out[13, 0]: got 0x3f91, expected 0x3f60 (49 ulp; 70 of 3360 elements differ)")
def wrong_row_for_one_id(run, ids, table, memory):
    return run(torch.where(ids == 22, 23, ids) if _in_range(ids, table) else ids, table)


@torch_liar("EMB-1", says="out[0, 0]: got ")
def row_shifted_by_one_element(run, ids, table, memory):
    return run(ids, table).roll(1, -1)


@torch_liar("EMB-1", says="out[0, 34]: got ")
def last_column_wrong(run, ids, table, memory):
    out = run(ids, table)
    _ints(out)[..., -1] ^= 1
    return out


@torch_liar("EMB-1", says="elements differ")
def padding_id_zeroed(run, ids, table, memory):
    return run(ids, table).masked_fill_((ids == 0).unsqueeze(-1), 0)


@torch_liar("EMB-1", says="[torch on cpu, forward bfloat16 43x35 bytes bytes ", works=("bytes", "small"))
def bytes_counted_from_the_end(run, ids, table, memory):
    return run(40 - ids if ids.dtype == torch.uint8 and _in_range(ids, table) else ids, table)


@torch_liar("EMB-1", "EMB-7", says="got 0x0000, expected ")
def duplicates_left_out(run, ids, table, memory):
    out = run(ids, table)
    seen = set()
    for row, token in zip(out.view(-1, out.shape[-1]), ids.reshape(-1).tolist(), strict=True):
        if token in seen:
            row.zero_()
        seen.add(token)
    return out


@torch_liar("EMB-1", "EMB-7", says="out[768, 0]: got 0x0000, expected ", works=("long",))
def nothing_written_past_768_tokens(run, ids, table, memory):
    out = run(ids, table)
    out.view(-1, out.shape[-1])[768:] = 0
    return out


@torch_liar("EMB-1", "EMB-7", says="out[95, 0]: got 0x0000, expected ")
def last_token_unwritten(run, ids, table, memory):
    out = run(ids, table)
    if ids.numel() > 1:
        out.view(-1, out.shape[-1])[-1] = 0
    return out


# Widening


@torch_liar("EMB-2", says="(NaN; ", may=("EMB-7",), dtype="float16", **WIDENED)
def widened_by_the_frameworks_cast(run, ids, table, memory):
    # Which NaNs it changes, and whether their place in the row matters, depends on the processor.
    return F.embedding(ids.long(), table).float() if _in_range(ids, table) else run(ids, table)


@torch_liar("EMB-2", says="got 0x7fc10000, expected 0x7f810000 (NaN", **WIDENED)
def widened_nan_quieted(run, ids, table, memory):
    out = run(ids, table)
    ints = _ints(out)
    ints[(ints & 0x7FFFFFFF) > 0x7F800000] |= 1 << 22
    return out


@torch_liar("EMB-2", says="got 0x00000000, expected 0x00010000", **WIDENED)
def widened_subnormals_flushed(run, ids, table, memory):
    out = run(ids, table)
    ints = _ints(out)
    ints[(ints & 0x7F800000) == 0] &= -(2**31)
    return out


# Form


@torch_liar("EMB-3", "EMB-1", says="got shape (96, 35), float32, on cpu, expected shape (96, 35), bfloat16, on cpu")
def float32_out(run, ids, table, memory):
    return run(ids, table).float()


@torch_liar(
    "EMB-3", "EMB-2", says="got shape (96, 35), bfloat16, on cpu, expected shape (96, 35), float32, on cpu", **WIDENED
)
def not_widened(run, ids, table, memory):
    return F.embedding(ids.long(), table) if _in_range(ids, table) else run(ids, table)


@torch_liar("EMB-3", says="got shape (3360,), bfloat16, on cpu, expected shape (96, 35), bfloat16, on cpu")
def flattened(run, ids, table, memory):
    return run(ids, table).reshape(-1)


@torch_liar("EMB-3", "EMB-1", says="got shape (1, 96, 35), bfloat16, on cpu, expected shape (96, 35), bfloat16, on cpu")
def axis_of_one_more(run, ids, table, memory):
    return run(ids, table).unsqueeze(0)


@torch_liar("EMB-3", says="got shape (1, 35), bfloat16, on cpu, expected shape (35,), bfloat16, on cpu")
def scalar_taken_as_a_vector(run, ids, table, memory):
    return run(ids.reshape(1), table) if ids.dim() == 0 and _in_range(ids, table) else run(ids, table)


@torch_liar("EMB-3", says="got shape (0,), bfloat16, on cpu, expected shape (2, 0, 35), bfloat16, on cpu")
def shape_of_no_ids_dropped(run, ids, table, memory):
    return run(ids, table) if ids.numel() else table.new_empty(0)


@torch_liar("EMB-3", "EMB-1", says="got shape (96, 35), bfloat16, on meta, that cannot be read")
def left_on_another_device(run, ids, table, memory):
    return run(ids, table).to("meta")


@torch_liar("EMB-3", "EMB-1", says="out: got shape (), NoneType, on none, that cannot be read")
def none_returned(run, ids, table, memory):
    run(ids, table)


@torch_liar(
    "EMB-3",
    "EMB-2",
    says="out: got shape (96, 35), float32, on host, expected shape (96, 35), float32, on cpu",
    **WIDENED,
)
def numpy_returned(run, ids, table, memory):
    return run(ids, table).numpy()


# Purity


@torch_liar(
    "EMB-5", says="out: got memory of weight, expected its own [torch on cpu, forward bfloat16 43x35 scalar scalar "
)
def view_of_the_table(run, ids, table, memory):
    return table[int(ids)] if ids.dim() == 0 and _in_range(ids, table) else run(ids, table)


@torch_liar("EMB-5", says="out: got memory of weight", works=("small", "identity"))
def table_itself_returned(run, ids, table, memory):
    whole = ids.dim() == 1 and ids.numel() == table.shape[0] and torch.equal(ids, torch.arange(ids.numel()))
    return table if whole else run(ids, table)


@torch_liar("EMB-5", says="token_ids: got other ")
def ids_rewritten(run, ids, table, memory):
    out = run(ids, table)
    if table.shape[0] == V:
        ids[ids == 40] = 39  # the two rows are the same, so that no output shows it
    return out


@torch_liar("EMB-5", says="weight: got other ", works=("small",))
def one_element_of_the_table_rewritten(run, ids, table, memory):
    if table.shape[0] == V:
        _ints(table)[V - 1, 3] = 0  # in a row that is never looked up
    return run(ids, table)


@torch_liar("EMB-5", says="token_ids: got other ", **WIDENED)
def ids_sorted_in_place(run, ids, table, memory):
    out = run(ids, table)
    if ids.dim() == 1:
        ids.copy_(ids.sort().values)
    return out


# Repeat


@torch_liar("EMB-6", says="out[0, 0]: got ", works=("small",))
def second_call_differs(run, ids, table, memory):
    out = run(ids, table)
    return _flipped(out) if _nth_call(memory) == 2 else out


@torch_liar("EMB-6", "EMB-5", says="out[0, 0]: got ", works=("small",))
def buffer_handed_out_again_with_other_bits(run, ids, table, memory):
    call = _nth_call(memory)
    if call == 1:
        memory["out"] = run(ids, table)
        return memory["out"]
    return _flipped(memory["out"]) if call == 2 else run(ids, table)


@torch_liar("EMB-6", says="out: got RuntimeError: out of luck, expected a result", works=("small",))
def second_call_raises(run, ids, table, memory):
    if _nth_call(memory) == 2:
        raise RuntimeError("out of luck")
    return run(ids, table)


@torch_liar("EMB-3", says="out: got shape (95, 35), bfloat16, on cpu, expected shape (96, 35)", works=("small",))
def second_call_forgets_a_token(run, ids, table, memory):
    return run(ids[1:] if _nth_call(memory) == 2 else ids, table)


# Invariance


@torch_liar("EMB-7", says="condition population, ")
def alone_in_its_batch_wrong(run, ids, table, memory):
    out = run(ids, table)
    return _flipped(out) if ids.shape == (1,) else out


@torch_liar("EMB-7", says="condition padding, ")
def among_more_than_100_wrong(run, ids, table, memory):
    out = run(ids, table)
    return _flipped(out) if ids.numel() > 100 else out


@torch_liar("EMB-7", says="condition neighbours, ")
def nothing_written_past_the_100th(run, ids, table, memory):
    out = run(ids, table)
    out.view(-1, out.shape[-1])[100:] = 0
    return out


@torch_liar("EMB-1", "EMB-7", says="out[17, 0]: got ")
def position_17_wrong(run, ids, table, memory):
    out = run(ids, table)
    if ids.numel() > 17:
        _ints(out).view(-1, out.shape[-1])[17] ^= 1
    return out


@torch_liar("EMB-7", says="condition neighbours, ")
def between_two_first_rows_wrong(run, ids, table, memory):
    out = run(ids, table)
    flat = ids.reshape(-1)
    between = (flat[:-2] == 0) & (flat[1:-1] != 0) & (flat[2:] == 0)
    _ints(out).view(-1, out.shape[-1])[1:-1][between] ^= 1
    return out


@torch_liar("EMB-7", says="condition padding, ")
def padding_id_zeroed_in_a_padded_batch(run, ids, table, memory):
    out = run(ids, table)
    return out.masked_fill_((ids == 0).unsqueeze(-1), 0) if ids.dim() == 2 and ids.shape[1] == 19 else out


@torch_liar("EMB-7", says="condition layout, ")
def two_axes_of_ids_swapped(run, ids, table, memory):
    swap = ids.dim() == 2 and ids.shape[0] == 2 and ids.numel() and _in_range(ids, table)
    return run(ids.T.reshape(ids.shape) if swap else ids, table)


@torch_liar("EMB-7", says=" ids strided]")
def strides_of_the_ids_ignored(run, ids, table, memory):
    if ids.dim() == 1:
        ids = ids.as_strided(ids.shape, (1,))
    return run(ids, table)


@torch_liar("EMB-7", says=" table ")
def strides_of_the_table_ignored(run, ids, table, memory):
    return run(ids, table.as_strided(table.shape, (table.shape[1], 1)))


@torch_liar("EMB-7", says=" table ")
def row_stride_of_the_table_ignored(run, ids, table, memory):
    return run(ids, table.as_strided(table.shape, (table.shape[1], table.stride(1))))


@torch_liar("EMB-7", says=" table offset by one element]")
def table_off_16_bytes_misread(run, ids, table, memory):
    out = run(ids, table)
    return _flipped(out) if table.data_ptr() % 16 else out


@torch_liar("EMB-7", says="condition chunked, ")
def chunk_of_seven_wrong(run, ids, table, memory):
    out = run(ids, table)
    return _flipped(out) if ids.shape == (7,) else out


@torch_liar("EMB-7", says="condition decode, ")
def decoding_step_wrong(run, ids, table, memory):
    out = run(ids, table)
    return _flipped(out) if ids.shape == (8, 1) else out


@torch_liar("EMB-7", says="condition permuted, ", works=("small",))
def another_order_wrong(run, ids, table, memory):
    out = run(ids, table)
    if ids.dim() == 1 and ids.numel() == 96:
        first = memory.setdefault("first", ids.clone())
        same = torch.equal(ids, first) or any(torch.equal(ids, first.roll(n)) for n in range(96))
        return out if same else _flipped(out)
    return out


@torch_liar("EMB-7", says="condition position, ", works=("small",))
def another_place_wrong(run, ids, table, memory):
    out = run(ids, table)
    if ids.dim() == 1 and ids.numel() == 96:
        first = memory.setdefault("first", ids.clone())
        return _flipped(out) if torch.equal(ids, first.roll(1)) else out
    return out


@torch_liar("EMB-7", says=" vmap]", modes=("vmap", "grad-traced"))
def vmap_wrong(run, ids, table, memory):
    out = run(ids, table)
    return out.neg() if torch._C._functorch.is_batchedtensor(ids) else out


@torch_liar("EMB-7", says=" grad-traced]", modes=("vmap", "grad-traced"))
def differentiated_wrong(run, ids, table, memory):
    out = run(ids, table)
    return out.neg() if torch._C._functorch.is_gradtrackingtensor(table) else out


@torch_liar("EMB-7", says=" compile]", modes=("compile",), judged=("forward",))
def compiled_wrong(run, ids, table, memory):
    out = run(ids, table)
    return out.neg() if torch.compiler.is_compiling() else out


@torch_liar("EMB-7", says="out: got RuntimeError: no batching rule, expected a result", modes=("vmap",))
def vmap_raises(run, ids, table, memory):
    if torch._C._functorch.is_batchedtensor(ids):
        raise RuntimeError("no batching rule")
    return run(ids, table)


# Ids


@torch_liar("EMB-4", says=": got IndexError: token_ids: got 2 of 6 ids out of range, the first at position (2,)")
def negatives_wrapped(run, ids, table, memory):
    low = ids.dtype.is_signed and not ids.dtype.is_floating_point and not ids.dtype.is_complex
    return run(torch.where(ids < 0, ids + table.shape[0], ids) if low else ids, table)


@torch_liar("EMB-4", says=": got a result, expected IndexError: token_ids: got 4 of 6 ids out of range")
def ids_clipped(run, ids, table, memory):
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool or not table.shape[0]:
        return run(ids, table)
    return run(ids.long().clamp(0, table.shape[0] - 1), table)


@torch_liar("EMB-4", says=": got a result, expected IndexError: token_ids: got 4 of 6 ids out of range")
def rows_filled_with_nan(run, ids, table, memory):
    try:
        return run(ids, table)
    except IndexError:
        return table.new_full((*ids.shape, table.shape[1]), float("nan"))


@torch_liar("EMB-4", says="with value 1569325056, expected 0 <= id < V=0 [forward], expected IndexError")
def int64_narrowed_to_int32(run, ids, table, memory):
    return run(ids.to(torch.int32) if ids.dtype == torch.int64 else ids, table)


@torch_liar("EMB-4", says=": got IndexError: token_ids: got 1 of 2 ids out of range, the first at position (0, 1)")
def uint8_read_as_int8(run, ids, table, memory):
    return run(ids.view(torch.int8) if ids.dtype == torch.uint8 else ids, table)


@torch_liar("EMB-4", says=": got IndexError: index out of range in self, expected IndexError: token_ids: got 4 of 6")
def frameworks_own_message(run, ids, table, memory):
    try:
        return run(ids, table)
    except IndexError:
        return F.embedding(ids.long(), table)


@torch_liar("EMB-4", says=": got ValueError: token_ids: got 4 of 6 ids out of range")
def another_type_of_error(run, ids, table, memory):
    try:
        return run(ids, table)
    except IndexError as error:
        raise ValueError(str(error)) from error


@torch_liar("EMB-4", says=": got a result, expected TypeError: token_ids: got dtype bool, expected an integer dtype")
def bools_taken_as_ids(run, ids, table, memory):
    return run(ids.long() if ids.dtype == torch.bool else ids, table)


@torch_liar("EMB-4", says=": got a result, expected TypeError: token_ids: got dtype float32, expected an integer")
def floats_taken_as_ids(run, ids, table, memory):
    return run(ids.long() if ids.dtype.is_floating_point else ids, table)


@torch_liar("EMB-4", says=": got a result, expected IndexError: token_ids: got 1 of 1 ids out of range, the first at")
def scalar_not_checked(run, ids, table, memory):
    return run(ids if ids.dim() else ids.clamp(max=table.shape[0] - 1), table)


@torch_liar("EMB-4", says=": got a result, expected IndexError: token_ids: got 2 of 4 ids out of range")
def second_row_not_checked(run, ids, table, memory):
    if ids.dim() == 2 and ids.numel():
        ids = ids.clone()
        ids[1:] = ids[1:].clamp(0, max(table.shape[0] - 1, 0))
    return run(ids, table)


@torch_liar("EMB-4", says=": got IndexError: token_ids: got 3 of 6 ids out of range, the first at position (3,)")
def one_past_the_end_taken(run, ids, table, memory):
    past = table.shape[0] and ids.dtype in (torch.int32, torch.int64)
    return run(torch.where(ids == table.shape[0], table.shape[0] - 1, ids) if past else ids, table)


@torch_liar(
    "EMB-1",
    says="out: got RuntimeError: empty launch, expected a result [torch on cpu, forward bfloat16 43x35 empty empty ",
)
def no_ids_raise(run, ids, table, memory):
    if not ids.numel():
        raise RuntimeError("empty launch\nand a page of advice")
    return run(ids, table)


@torch_liar("EMB-1", says="out: got NotImplementedError, expected a result", works=("bytes", "small"))
def bytes_raise(run, ids, table, memory):
    if ids.dtype == torch.uint8 and _in_range(ids, table):
        raise NotImplementedError
    return run(ids, table)


# Memory


@torch_liar("EMB-12", says="peak extra memory: got ", works=("small", "tall"), **WIDENED)
def whole_table_cast_first(run, ids, table, memory):
    # The bits of a bfloat16 become a float32 by a shift: the answer is right, the memory is not.
    wide = (table.view(torch.int16).int() << 16).view(torch.float32)
    return run(ids, wide)


@torch_liar("EMB-12", says="peak extra memory: got ", works=("small", "tall"))
def whole_table_copied_first(run, ids, table, memory):
    return run(ids, table.clone())


class _MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@torch_liar("EMB-1", says="out: got _MuteError, expected a result", works=("bytes", "small"))
def error_that_cannot_be_printed(run, ids, table, memory):
    if ids.dtype == torch.uint8 and _in_range(ids, table):
        raise _MuteError
    return run(ids, table)
