"""What the torch golden demands of its arguments (EMB-3, EMB-4, EMB-8), checked before anything is computed."""

from __future__ import annotations

import torch

from xref import errors
from xref.bits import FORMATS, FloatFormat

_ID_DTYPES = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)

LARGEST_SIZE = torch.iinfo(torch.int64).max  # of an axis, V among them: row ids are int64
MOST_TOKENS = 2**36  # of one call: the sums in bins and the accumulator's carries are exact up to here


def dtype_name(dtype: torch.dtype) -> str:
    """Return the dtype's name without the framework's: `bfloat16`, not `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def check_token_ids(token_ids: object, call: str) -> None:
    """Raise `TypeError` unless `token_ids` is a dense tensor of an integer dtype."""
    if not isinstance(token_ids, torch.Tensor):
        raise errors.bad_type("token_ids", type(token_ids).__name__, "torch.Tensor", call)
    if token_ids.layout != torch.strided:
        raise errors.bad_type("token_ids", f"layout {token_ids.layout}", "a dense tensor", call)
    if token_ids.dtype not in _ID_DTYPES:
        raise errors.bad_type("token_ids", f"dtype {dtype_name(token_ids.dtype)}", "an integer dtype", call)


def check_weight(weight: object, call: str, *, widened: bool) -> FloatFormat:
    """Return the element format of `weight` if it is a dense `[V, H]` table of a contract dtype.

    Raises:
        TypeError: not a dense tensor, a dtype outside the contract, or float64 where it is to be `widened` to float32.
        ValueError: not two-dimensional.
    """
    if not isinstance(weight, torch.Tensor):
        raise errors.bad_type("weight", type(weight).__name__, "torch.Tensor", call)
    if weight.layout != torch.strided:
        raise errors.bad_type("weight", f"layout {weight.layout}", "a dense tensor", call)
    name = dtype_name(weight.dtype)
    if name not in FORMATS:
        raise errors.bad_type("weight", f"dtype {name}", f"one of {', '.join(FORMATS)}", call)
    if widened and name == "float64":
        raise errors.bad_type("weight", "dtype float64", "a dtype that float32 can hold", call)
    if weight.dim() != 2:
        raise errors.bad_value("weight", f"shape {tuple(weight.shape)}", "shape [V, H]", call)
    return FORMATS[name]


def check_same_device(token_ids: torch.Tensor, weight: torch.Tensor, call: str) -> None:
    """Raise `ValueError` unless the ids are where the table is."""
    if token_ids.device != weight.device:
        raise errors.bad_value("token_ids", f"device {token_ids.device}", f"the table's, {weight.device}", call)


def check_range(token_ids: torch.Tensor, vocab_size: int, call: str) -> None:
    """Raise the `IndexError` of clause EMB-4 if an id is outside `[0, vocab_size)`.

    Nothing is narrowed first. Waits for the device once.
    """
    # A uint64 id of 2**63 or more turns negative here, and is out of range either way.
    wide = token_ids.to(torch.int64)
    bad = (wide < 0) | (wide >= vocab_size)
    if not bad.any():
        return
    flat = int(bad.reshape(-1).to(torch.uint8).argmax().item())
    position = []
    for size in reversed(token_ids.shape):
        flat, index = divmod(flat, size)
        position.append(index)
    where = tuple(reversed(position))
    raise errors.ids_out_of_range(
        count=int(bad.sum().item()),
        total=bad.numel(),
        position=where,
        value=int(token_ids[where].item()),
        vocab_size=vocab_size,
        call=call,
    )


def in_range(ids: torch.Tensor, vocab_size: int) -> bool:
    """Return whether all int64 ids, on the host, are in `[0, vocab_size)`."""
    seen = ids.numpy()  # torch would wake all its threads for so little
    return seen.size == 0 or bool(seen.min() >= 0 and seen.max() < vocab_size)


def check_cotangent(cotangent: object, token_ids: torch.Tensor, call: str, *, hidden: int | None = None) -> FloatFormat:
    """Return the element format of `cotangent` if it is a dense `S + (H,)` tensor of a contract dtype beside the ids.

    `S` is the shape of `token_ids`; `hidden` is what `H` has to be, None for anything.

    Raises:
        TypeError: not a dense tensor, or a dtype outside the contract.
        ValueError: another shape, another device than the ids', or more than `MOST_TOKENS` ids.
    """
    if not isinstance(cotangent, torch.Tensor):
        raise errors.bad_type("cotangent", type(cotangent).__name__, "torch.Tensor", call)
    if cotangent.layout != torch.strided:
        raise errors.bad_type("cotangent", f"layout {cotangent.layout}", "a dense tensor", call)
    fmt = check_dtype(cotangent.dtype, call, where="cotangent")
    shape = (*token_ids.shape, "H" if hidden is None else hidden)
    fits = cotangent.dim() == len(shape) and cotangent.shape[:-1] == token_ids.shape
    if not fits or hidden not in (None, cotangent.shape[-1]):
        expected = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
        raise errors.bad_value("cotangent", f"shape {tuple(cotangent.shape)}", f"shape {expected}", call)
    if cotangent.device != token_ids.device:
        raise errors.bad_value("token_ids", f"device {token_ids.device}", f"the cotangent's, {cotangent.device}", call)
    if token_ids.numel() > MOST_TOKENS:
        raise errors.bad_value("token_ids", f"{token_ids.numel()} ids", f"at most {MOST_TOKENS} in one call", call)
    return fmt


def check_storage(tensor: torch.Tensor, where: str, call: str) -> None:
    """Raise `TypeError` for a tensor of a transform of `torch.func`: it stands for others and has no storage."""
    try:
        tensor.untyped_storage()
    except RuntimeError:  # NotImplementedError is one
        expected = "a plain one; under torch.func, use grad_weight"
        raise errors.bad_type(where, "a tensor without storage", expected, call) from None


def check_dtype(dtype: object, call: str, *, where: str = "dtype") -> FloatFormat:
    """Return the element format of a torch dtype of the contract; raise `TypeError` for anything else."""
    if not isinstance(dtype, torch.dtype):
        raise errors.bad_type(where, f"{type(dtype).__name__} {dtype!r}", "a torch.dtype", call)
    name = dtype_name(dtype)
    if name not in FORMATS:
        got = name if where == "dtype" else f"dtype {name}"
        raise errors.bad_type(where, got, f"one of {', '.join(FORMATS)}", call)
    return FORMATS[name]
