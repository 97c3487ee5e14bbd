"""Gradients that are wrong in one way each, named after their fault, and the cases on which they must be found out.

A lie is a function `(run, ids, cotangent, vocab_size, *, memory, **options) -> out` in place of the honest
`grad_weight`, or one with the arguments of another verb: `grad_rows`, `forward`, `forward_fp32`, or `accumulator`,
which makes a `GradAccumulator`. `run` is the honest verb, `memory` a dictionary that lasts as long as the liar. `red`
are the clauses that it breaks: all of them must fail, and no other.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from liars import TITLES, Lying

from xref import bits
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.judge import frameworks
from xref.judge.gradient import examine_gradient, expect_gradients
from xref.judge.subject import Subject
from xref.judge.verdict import Ledger

# A machine without one of the frameworks collects these tests too, and deselects them.
try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None
try:
    import jax
except ImportError:
    jax = None

__all__ = ["CASES", "JAX_LIARS", "TORCH_LIARS", "GradientLiar", "inputs_of", "judged"]

VERBS = ("grad_weight", "grad_rows", *contract.VERBS)


def _case(source: str = "bfloat16", values: str = "cancelling", vocab: int = 40, **how: Any) -> GradientCase:
    return GradientCase(source=source, result="bfloat16", values=values, vocab=vocab, **how)


CASES: dict[str, GradientCase] = {
    "main": _case(forms=True, conditions=True),
    "plain": _case(),
    "narrowed": _case("float32", forms=True),
    "padding": _case(ids="every", padding_idx=0, forms=True),
    "equal": _case(values="equal", vocab=2, hidden=1, ids="equal", shape=(1000,)),
    "ties": _case(values="ties"),
    "subnormal": _case(values="subnormal"),
    "specials": _case(values="specials", clause="EMB-11"),
    "edge": _case(values="edge", clause="EMB-11"),
    "negative-zero": _case(values="negative-zero", clause="EMB-11"),
    "tall": _case(vocab=151936, hidden=64, ids="zipf_ends"),
}


@functools.cache
def _built(name: str) -> tuple[Any, ...]:
    case = CASES[name]
    ids, cotangent = gradients.build(case)
    return ids, cotangent, gradients.exact_answer(case, ids, cotangent)


def inputs_of(name: str) -> tuple[Any, ...]:
    """Return ids, cotangents and exact answer of a case in memory of their own, since a liar may change them."""
    return tuple(array.copy() for array in _built(name))


@dataclasses.dataclass(frozen=True)
class GradientLiar:
    """One fault: the lie, the clauses that must turn red, and what the first problem of the first of them says."""

    lie: Callable[..., Any]
    red: tuple[str, ...]
    says: str
    verb: str = "grad_weight"
    """The verb that lies; the others are honest."""
    cases: tuple[str, ...] = ("main",)

    def subject(self, name: str) -> Subject:
        """Return the framework of that name, on the CPU, with this liar for its golden."""
        honest = frameworks.load(name, "tests")
        golden = types.SimpleNamespace(**{verb: getattr(honest.golden, verb) for verb in VERBS})
        framework = Lying(honest, golden, ())
        holder = framework if self.verb == "accumulator" else golden
        setattr(holder, self.verb, functools.partial(self.lie, getattr(holder, self.verb), memory={}))
        return Subject(framework, "cpu")


def judged(subject: Subject, names: tuple[str, ...]) -> list[Any]:
    """Return the verdicts on a subject that is run on cases, whose inputs must be the same afterwards."""
    ledger = Ledger(TITLES)
    expect_gradients([subject], tuple(CASES[name] for name in names), ledger)
    for name in names:
        inputs = inputs_of(name)
        examine_gradient(subject, CASES[name], inputs, ledger)
        for array, before in zip(inputs, _built(name), strict=True):
            assert np.array_equal(array, before), "the operator has changed what another framework reads"
    return ledger.verdicts()


def _registry() -> tuple[dict[str, GradientLiar], Callable[..., Any]]:
    liars: dict[str, GradientLiar] = {}

    def liar(*red: str, says: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(lie: Callable[..., Any]) -> Callable[..., Any]:
            liars[lie.__name__] = GradientLiar(lie, red, says, **how)
            return lie

        return register

    return liars, liar


TORCH_LIARS, torch_liar = _registry()
JAX_LIARS, jax_liar = _registry()


def _ints(out):
    """Return the bits of a bfloat16 tensor, to be changed in place."""
    return out.view(torch.int16)


def _flipped(out):
    """Flip the lowest bit of the first element."""
    _ints(out).view(-1)[:1] ^= 1
    return out


def _in_turn(ids, cotangent, vocab_size, dtype, padding_idx):
    """Sum one token after the other in a dtype, and return the sums in it."""
    out = torch.zeros(vocab_size, cotangent.shape[-1], dtype=dtype)
    for row, elements in zip(ids.reshape(-1).tolist(), cotangent.reshape(ids.numel(), -1), strict=True):
        if row != padding_idx:
            out[row] += elements.to(dtype)
    return out


def _untouched(ids, vocab_size):
    rest = torch.ones(vocab_size, dtype=torch.bool)
    rest[ids.reshape(-1)] = False
    return rest


# EMB-8: the sum


@torch_liar("EMB-8", says="out[1, 0]: got 0x4380, expected 0x447a", cases=("equal",))
def accumulated_in_bfloat16(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return _in_turn(ids, cotangent, vocab_size, dtype, padding_idx)


@torch_liar("EMB-8", "EMB-10", says="elements differ) [torch gradient on cpu, bfloat16-to-bfloat16-cancelling-")
def duplicates_overwrite(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    out = torch.zeros(vocab_size, cotangent.shape[-1], dtype=dtype)
    for row, elements in zip(ids.reshape(-1).tolist(), cotangent.reshape(ids.numel(), -1), strict=True):
        out[row] = elements
    return out


@torch_liar("EMB-8", "EMB-10", says="elements differ)")
def duplicates_counted_once(run, ids, cotangent, vocab_size, *, memory, **options):
    once = {row: n for n, row in enumerate(ids.reshape(-1).tolist())}
    first = torch.tensor(list(once.values()))
    return run(ids.reshape(-1)[first], cotangent.reshape(ids.numel(), -1)[first], vocab_size, **options)


@torch_liar("EMB-8", "EMB-10", says="elements differ)")
def divided_by_the_number_of_tokens(run, ids, cotangent, vocab_size, *, memory, **options):
    count = torch.bincount(ids.reshape(-1), minlength=vocab_size).clamp(min=1)
    return (run(ids, cotangent, vocab_size, **options) / count[:, None]).to(options["dtype"])


@torch_liar("EMB-8", says="(1 ulp", cases=("ties",))
def rounded_twice(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return run(ids, cotangent, vocab_size, dtype=torch.float32, padding_idx=padding_idx).to(dtype)


@torch_liar("EMB-8", says="elements differ) [torch gradient on cpu, float32-to-bfloat16", cases=("narrowed",))
def cotangent_narrowed_first(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids, cotangent.to(torch.bfloat16), vocab_size, **options)


@torch_liar("EMB-8", says="expected 0x", cases=("subnormal",))
def subnormals_flushed(run, ids, cotangent, vocab_size, *, memory, **options):
    ints = _ints(run(ids, cotangent, vocab_size, **options))
    return torch.where((ints & 0x7F80) == 0, 0, ints).view(torch.bfloat16)


@torch_liar("EMB-8", "EMB-10", says="elements differ)")
def last_token_left_out(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids.reshape(-1)[:-1], cotangent.reshape(ids.numel(), -1)[:-1], vocab_size, **options)


@torch_liar("EMB-8", says="out[0, 7]: got ", cases=("plain",))
def last_column_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    _ints(out)[~_untouched(ids, vocab_size), -1] ^= 1
    return out


@torch_liar("EMB-8", "EMB-9", says="float32, on cpu, expected shape (40, 8), bfloat16, on cpu", cases=("narrowed",))
def result_in_the_cotangents_dtype(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return run(ids, cotangent, vocab_size, dtype=cotangent.dtype, padding_idx=padding_idx)


@torch_liar("EMB-8", "EMB-9", says="out: got shape (41, 8), bfloat16, on cpu", cases=("plain",))
def one_row_too_many(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids, cotangent, vocab_size + 1, **options)


@torch_liar("EMB-8", "EMB-9", "EMB-10", says="out: got RuntimeError: no kernel, expected a result [torch gradient on")
def always_raises(run, ids, cotangent, vocab_size, *, memory, **options):
    raise RuntimeError("no kernel")


# EMB-9: rows that no token names


@torch_liar(
    "EMB-9", "EMB-8", says="out[0, 0]: got 0x8000, expected 0x0000 (0 ulp; 24 of 24 elements differ)", cases=("plain",)
)
def untouched_rows_minus_zero(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    out[_untouched(ids, vocab_size)] = -0.0
    return out


@torch_liar(
    "EMB-9", "EMB-8", says="out[2, 7]: got 0x7fc0, expected 0x0000 (NaN; 1 of 24 elements differ)", cases=("plain",)
)
def last_untouched_element_not_written(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    out[_untouched(ids, vocab_size).nonzero().max(), -1] = torch.nan
    return out


@torch_liar("EMB-9", "EMB-8", says="out[0, 0]: got 0x", cases=("padding",))
def padding_counted(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return run(ids, cotangent, vocab_size, dtype=dtype)


# EMB-11: specials


@torch_liar("EMB-11", says="got 0x7fc1, expected 0x7fc0 (NaN", cases=("specials",))
def nan_with_a_payload(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    _ints(out)[out.isnan()] = 0x7FC1
    return out


@torch_liar("EMB-11", says="got 0x7f80, expected 0x7fc0 (NaN", cases=("specials",))
def infinities_of_both_signs_give_one(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    out[out.isnan()] = torch.inf
    return out


@torch_liar("EMB-11", says="got 0x7f7f, expected 0x7f80 (1 ulp", cases=("edge",))
def overflow_saturates(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids, cotangent, vocab_size, **options).clamp(*torch.tensor([-1, 1]) * torch.finfo(torch.bfloat16).max)


@torch_liar("EMB-11", says="got 0x8000, expected 0x0000 (0 ulp", cases=("negative-zero",))
def sum_of_minus_zeros_is_minus_zero(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    out[~_untouched(ids, vocab_size)] = -0.0
    return out


# EMB-10: the same tokens otherwise


@torch_liar("EMB-10", "EMB-8", says="condition permuted 0]")
def summed_in_float32_one_after_the_other(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return _in_turn(ids, cotangent, vocab_size, torch.float32, padding_idx).to(dtype)


@torch_liar("EMB-10", says="condition repeat]")
def second_call_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    memory["calls"] = memory.get("calls", 0) + 1
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if memory["calls"] == 2 else out


@torch_liar("EMB-10", says="condition layout, one token a row]")
def batch_of_single_tokens_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if ids.shape[1:] == (1,) else out


@torch_liar("EMB-10", says="condition layout, strided]")
def stride_of_the_cotangent_ignored(run, ids, cotangent, vocab_size, *, memory, **options):
    if cotangent.stride(-1) == 2:
        cotangent = cotangent.as_strided(cotangent.shape, (cotangent.shape[-1], 1))
    return run(ids, cotangent, vocab_size, **options)


@torch_liar("EMB-10", says="condition layout, strided]")
def stride_of_the_ids_ignored(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids.as_strided(ids.shape, torch.empty(ids.shape).stride()), cotangent, vocab_size, **options)


@torch_liar("EMB-10", says="condition layout, transposed]")
def transposed_cotangent_read_row_by_row(run, ids, cotangent, vocab_size, *, memory, **options):
    if cotangent.stride(0) == 1:
        cotangent = cotangent.as_strided(cotangent.shape, (cotangent.shape[-1], 1))
    return run(ids, cotangent, vocab_size, **options)


@torch_liar("EMB-10", says="condition padding, id 0]")
def padding_with_the_first_id_counts(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if ids.shape[1:] == (2,) and not ids[:, 1].any() else out


@torch_liar("EMB-10", says="condition padding, id 39]")
def padding_with_the_last_id_counts(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if ids.shape[1:] == (2,) and (ids[:, 1] == vocab_size - 1).all() else out


# EMB-5: inputs written


@torch_liar("EMB-5", says="cotangent: got other bits after the call, expected the same [torch grad_weight on cpu, ")
def cotangent_scaled_in_place(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    cotangent.mul_(0.5)
    return out


@torch_liar("EMB-5", says="token_ids: got other bits after the call, expected the same [torch grad_weight on cpu, ")
def ids_sorted_in_place(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    ids.copy_(ids.reshape(-1).sort().values.reshape(ids.shape))
    return out


@torch_liar(
    "EMB-5", says="token_ids and cotangent: got other bits after the call, expected the same [torch grad_weight"
)
def strided_inputs_cleared(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    if ids.stride(-1) == 2:
        ids.zero_(), cotangent.zero_()
    return out


@torch_liar(
    "EMB-5", says="got other bits after the call, expected the same [torch grad_rows on cpu, ", verb="grad_rows"
)
def cotangent_scaled_by_the_rows(run, ids, cotangent, *, memory, **options):
    out = run(ids, cotangent, **options)
    cotangent.mul_(0.5)
    return out


class _Wrapped:
    """An honest accumulator, to be changed in one method."""

    def __init__(self, honest):
        self.honest = honest

    def add(self, ids, cotangent):
        self.honest.add(ids, cotangent)

    def merge(self, other):
        self.honest.merge(other.honest)

    def result(self, dtype):
        return self.honest.result(dtype)


@torch_liar("EMB-5", says="expected the same [torch GradAccumulator.add on cpu, ", verb="accumulator")
def cotangent_scaled_by_the_accumulator(run, *shape, memory, **options):
    class Scaling(_Wrapped):
        def add(self, ids, cotangent):
            super().add(ids, cotangent)
            cotangent.mul_(0.5)

    return Scaling(run(*shape, **options))


@torch_liar("EMB-5", says="expected the same [torch gradient of forward on cpu, ", verb="forward")
def cotangent_scaled_in_the_backward_pass(run, ids, table, *, memory):
    class Scaling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            return out.clone()

        @staticmethod
        def backward(ctx, cotangent):
            honest = cotangent.clone()
            cotangent.mul_(0.5)
            return honest

    return Scaling.apply(run(ids, table))


# Other forms of the gradient


@torch_liar("EMB-8", says="cancelling-40x8-zipf-256, rows]", verb="grad_rows")
def row_ids_backwards(run, ids, cotangent, *, memory, **options):
    row_ids, rows = run(ids, cotangent, **options)
    return row_ids.flip(0), rows


@torch_liar("EMB-8", says="cancelling-40x8-zipf-256, rows]", verb="grad_rows")
def last_row_left_out(run, ids, cotangent, *, memory, **options):
    row_ids, rows = run(ids, cotangent, **options)
    return row_ids[:-1], rows[:-1]


@torch_liar("EMB-8", says="every-256-padding0, rows]", verb="grad_rows", cases=("padding",))
def padding_among_the_rows(run, ids, cotangent, *, memory, dtype, padding_idx, vocab_size):
    return run(ids, cotangent, dtype=dtype, vocab_size=vocab_size)


@torch_liar("EMB-12", says="peak extra memory: got ", verb="grad_rows", cases=("tall",))
def rows_taken_out_of_a_whole_table(run, ids, cotangent, *, memory, vocab_size, **options):
    row_ids, rows = run(ids, cotangent, vocab_size=vocab_size, **options)
    table = torch.zeros(vocab_size, rows.shape[1], dtype=rows.dtype)
    table[row_ids] = rows
    return row_ids, table[row_ids]


@torch_liar("EMB-8", "EMB-10", says="cancelling-40x8-zipf-256, accumulated]", verb="accumulator")
def micro_batches_rounded(run, vocab_size, hidden, device, *, memory, **options):
    class Rounding:
        def __init__(self):
            self.sums = torch.zeros(vocab_size, hidden, dtype=torch.bfloat16)

        def add(self, ids, cotangent):
            rank = run(vocab_size, hidden, device, **options)
            rank.add(ids, cotangent)
            self.sums += rank.result(torch.bfloat16)

        def merge(self, other):
            self.sums += other.sums

        def result(self, dtype):
            return self.sums

    return Rounding()


@torch_liar("EMB-10", says="condition split 0]", verb="accumulator")
def second_rank_not_merged(run, *shape, memory, **options):
    class Forgetful(_Wrapped):
        merged = False

        def merge(self, other):
            if not self.merged:
                super().merge(other)
            self.merged = True

    return Forgetful(run(*shape, **options))


@torch_liar("EMB-8", says="every-256-padding0, accumulated]", verb="accumulator", cases=("padding",))
def padding_accumulated(run, *shape, memory, padding_idx):
    return run(*shape)


@torch_liar("EMB-8", says="cancelling-40x8-zipf-256, through forward]", verb="forward")
def differentiated_by_the_framework(run, ids, table, *, memory):
    return F.embedding(ids, table)


@torch_liar("EMB-8", says="256, through forward_fp32]", verb="forward_fp32", cases=("narrowed",))
def differentiated_by_the_framework_in_float32(run, ids, table, *, memory):
    return F.embedding(ids, table).float()


@torch_liar("EMB-8", says="out: got NoGradientError: gradient: got an output that requires no gradient", verb="forward")
def not_differentiable(run, ids, table, *, memory):
    return run(ids, table.detach())


# JAX alone has a trace, and ids that stay NumPy's.


@jax_liar("EMB-10", says="condition mode jit]")
def jitted_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return -out if isinstance(ids, jax.core.Tracer) else out


@jax_liar("EMB-5", says="token_ids: got other bits after the call, expected the same [jax grad_weight on cpu, ")
def host_ids_rewritten(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    if isinstance(ids, np.ndarray):
        ids[...] = 0
    return out


@jax_liar(
    "EMB-9", "EMB-8", says="out[0, 0]: got 0x8000, expected 0x0000 (0 ulp; 24 of 24 elements differ)", cases=("plain",)
)
def untouched_rows_minus_zero_too(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    if isinstance(ids, jax.core.Tracer):
        return out
    changed = bits.as_bits(np.array(out))
    changed[np.setdiff1d(np.arange(vocab_size), ids)] = 0x8000
    return jax.device_put(bits.from_bits(changed, "bfloat16"))
