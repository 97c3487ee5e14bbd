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
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from support.liars import EMBEDDING, operator_of, report_on
from xref import bits
from xref.engine import frameworks
from xref.engine.candidate import Candidate
from xref.operators.embedding.calls.gradient import TRACED, Gradient
from xref.operators.embedding.calls.gradient_batches import GradientBatches
from xref.operators.embedding.calls.memory import PeakMemory
from xref.operators.embedding.clauses import VERBS, result_dtype
from xref.operators.embedding.cotangents import SPECIALS
from xref.operators.embedding.goldens import ACCUMULATED, BY_ROWS, verbs_of_gradient
from xref.spec import Call, Operator
from xref.verifying.golden import Golden
from xref.verifying.report import Verdict

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

__all__ = ["CASES", "CONDITIONS", "JAX_LIARS", "TORCH_LIARS", "GradientLiar", "operator_on", "verdicts_of"]

CONDITIONS = ("repeat", "layout", "padding", "permuted", "split")


@dataclasses.dataclass(frozen=True)
class Case:
    """A gradient, and whether it is taken in all forms, and under all conditions."""

    call: Gradient
    forms: bool = False
    conditions: bool = False


def _case(source: str = "bfloat16", values: str = "cancelling", vocab: int = 40, **how: Any) -> Case:
    marks = {name: how.pop(name, False) for name in ("forms", "conditions")}
    check = "EMB-11" if values in SPECIALS else "EMB-8"
    fields = {"source": source, "result": "bfloat16", "values": values, "vocab": vocab, **how}
    return Case(Gradient(check=check, verb="backward", **fields), **marks)


CASES: dict[str, Case] = {
    "main": _case(forms=True, conditions=True),
    "plain": _case(),
    "narrowed": _case("float32", forms=True),
    "padding": _case(ids="every", padding_idx=0, forms=True),
    "equal": _case(values="equal", vocab=2, hidden=1, ids="equal", shape=(1000,)),
    "ties": _case(values="ties"),
    "subnormal": _case(values="subnormal"),
    "specials": _case(values="specials"),
    "edge": _case(values="edge"),
    "negative-zero": _case(values="negative-zero"),
    "tall": _case(vocab=151936, hidden=64, ids="zipf_ends"),
}


def _calls(name: str, *, traced: bool) -> Iterator[Call]:
    case = CASES[name]
    call = case.call
    yield call
    if case.forms:
        yield from (msgspec.structs.replace(call, verb=verb) for verb in (BY_ROWS, ACCUMULATED))
    for verb in VERBS if case.forms and call.padding_idx is None else ():
        if result_dtype(verb, call.result) == call.source:
            yield msgspec.structs.replace(call, verb=verb)
    if case.conditions:
        for condition in CONDITIONS:
            check = f"EMB-10/{condition}"
            plain = msgspec.structs.replace(call, check=check)
            yield GradientBatches(check=check, plain=plain, condition=condition)
        check = "EMB-10/layout"
        yield msgspec.structs.replace(call, check=check, layout="strided", id_layout="strided")
        if traced:
            yield msgspec.structs.replace(call, way=TRACED)
    if name == "tall":
        yield PeakMemory(check="EMB-12", verb="grad_rows", dtype="bfloat16")


def operator_on(names: tuple[str, ...], *, traced: bool) -> Operator:
    """Return the embedding with the checks of gradients alone, on the cases of these names."""
    calls: dict[str, list[Call]] = {}
    for name in names:
        for call in _calls(name, traced=traced):
            calls.setdefault(call.check, []).append(call)
    checks = [
        dataclasses.replace(check, calls=functools.partial(lambda calls, exam: calls, calls[check.id]))
        for check in EMBEDDING.checks
        if check.id in calls
    ]
    return operator_of(*checks)


class _Lying:
    """A framework's arrays with another golden or another accumulator."""

    def __init__(self, honest: Any, **others: Any) -> None:
        self.__dict__.update(others, _honest=honest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)


@dataclasses.dataclass(frozen=True)
class GradientLiar:
    """One fault: the lie, the clauses that must turn red, and what the first problem of the first of them says."""

    lie: Callable[..., Any]
    red: tuple[str, ...]
    says: str
    verb: str = "grad_weight"
    """The verb that lies; the others are honest."""
    cases: tuple[str, ...] = ("main",)

    def golden(self, name: str) -> Golden:
        """Return the golden of the framework of that name, on the CPU, with this liar for one of its verbs."""
        framework = frameworks.load(name, "tests")
        honest = framework.arrays
        lie = functools.partial(self._told, getattr(honest if self.verb == "accumulator" else honest.golden, self.verb))
        lie = functools.partial(lie, memory={})
        if self.verb == "accumulator":
            arrays = _Lying(honest, accumulator=lie)
        else:
            verbs = {verb: getattr(honest.golden, verb) for verb in ("grad_weight", "grad_rows", *VERBS)}
            arrays = _Lying(honest, golden=types.SimpleNamespace(**{**verbs, self.verb: lie}))
        lying = dataclasses.replace(framework, arrays=arrays)
        verbs = {verb: getattr(arrays.golden, verb) for verb in VERBS} | dict(verbs_of_gradient(lying))
        return Golden(Candidate(name, framework, "cpu", verbs))

    def _told(self, run: Callable[..., Any], *arguments: Any, memory: dict[str, Any], **options: Any) -> Any:
        if self.verb not in VERBS:
            options = {"padding_idx": None, **options}
        return self.lie(run, *arguments, memory=memory, **options)


def verdicts_of(liar: GradientLiar, name: str) -> list[Verdict]:
    """Return what `verify` says of a liar in the framework of that name."""
    return report_on(operator_on(liar.cases, traced=name == "jax"), liar.golden(name)).verdicts


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


@torch_liar("EMB-8", says="gradient[1, 0]: got 0x4380, expected 0x447a", cases=("equal",))
def accumulated_in_bfloat16(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return _in_turn(ids, cotangent, vocab_size, dtype, padding_idx)


@torch_liar("EMB-8", "EMB-10", says="elements differ) ")
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


@torch_liar("EMB-8", says="elements differ) ", cases=("narrowed",))
def cotangent_narrowed_first(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids, cotangent.to(torch.bfloat16), vocab_size, **options)


@torch_liar("EMB-8", says="expected 0x", cases=("subnormal",))
def subnormals_flushed(run, ids, cotangent, vocab_size, *, memory, **options):
    ints = _ints(run(ids, cotangent, vocab_size, **options))
    return torch.where((ints & 0x7F80) == 0, 0, ints).view(torch.bfloat16)


@torch_liar("EMB-8", "EMB-10", says="elements differ)")
def last_token_left_out(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids.reshape(-1)[:-1], cotangent.reshape(ids.numel(), -1)[:-1], vocab_size, **options)


@torch_liar("EMB-8", says="gradient[0, 7]: got ", cases=("plain",))
def last_column_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    _ints(out)[~_untouched(ids, vocab_size), -1] ^= 1
    return out


@torch_liar("EMB-8", says="float32, on cpu, expected shape (40, 8), bfloat16, on cpu", cases=("narrowed",))
def result_in_the_cotangents_dtype(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return run(ids, cotangent, vocab_size, dtype=cotangent.dtype, padding_idx=padding_idx)


@torch_liar("EMB-8", "EMB-9", says="gradient: got shape (41, 8), bfloat16, on cpu", cases=("plain",))
def one_row_too_many(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids, cotangent, vocab_size + 1, **options)


@torch_liar("EMB-8", "EMB-10", says="gradient: got RuntimeError: no kernel, expected a result ")
def always_raises(run, ids, cotangent, vocab_size, *, memory, **options):
    raise RuntimeError("no kernel")


# EMB-9: rows that no token names


@torch_liar(
    "EMB-9", says="got 0x8000, expected +0 in a row that no id names (24 of 24 elements differ)", cases=("plain",)
)
def untouched_rows_minus_zero(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    out[_untouched(ids, vocab_size)] = -0.0
    return out


@torch_liar(
    "EMB-9", says="got 0x7fc0, expected +0 in a row that no id names (1 of 24 elements differ)", cases=("plain",)
)
def last_untouched_element_not_written(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    out[_untouched(ids, vocab_size).nonzero().max(), -1] = torch.nan
    return out


@torch_liar("EMB-9", says="gradient[0, 0]: got 0x", cases=("padding",))
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


@torch_liar("EMB-10", "EMB-8", says="condition permuted")
def summed_in_float32_one_after_the_other(run, ids, cotangent, vocab_size, *, memory, dtype, padding_idx):
    return _in_turn(ids, cotangent, vocab_size, torch.float32, padding_idx).to(dtype)


@torch_liar("EMB-10", says="condition repeat]")
def second_call_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    memory["calls"] = memory.get("calls", 0) + 1
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if memory["calls"] == 2 else out


@torch_liar("EMB-10", says="with ids (256, 1)")
def batch_of_single_tokens_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if ids.shape[1:] == (1,) else out


@torch_liar("EMB-10", says="strided")
def stride_of_the_cotangent_ignored(run, ids, cotangent, vocab_size, *, memory, **options):
    if cotangent.stride(-1) == 2:
        cotangent = cotangent.as_strided(cotangent.shape, (cotangent.shape[-1], 1))
    return run(ids, cotangent, vocab_size, **options)


@torch_liar("EMB-10", says="strided")
def stride_of_the_ids_ignored(run, ids, cotangent, vocab_size, *, memory, **options):
    return run(ids.as_strided(ids.shape, torch.empty(ids.shape).stride()), cotangent, vocab_size, **options)


@torch_liar("EMB-10", says="transposed")
def transposed_cotangent_read_row_by_row(run, ids, cotangent, vocab_size, *, memory, **options):
    if cotangent.stride(0) == 1:
        cotangent = cotangent.as_strided(cotangent.shape, (cotangent.shape[-1], 1))
    return run(ids, cotangent, vocab_size, **options)


@torch_liar("EMB-10", says="among padding of id 0")
def padding_with_the_first_id_counts(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if ids.shape[1:] == (2,) and not ids[:, 1].any() else out


@torch_liar("EMB-10", says="among padding of id 39")
def padding_with_the_last_id_counts(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return _flipped(out) if ids.shape[1:] == (2,) and (ids[:, 1] == vocab_size - 1).all() else out


# EMB-5: inputs written


@torch_liar("EMB-5", says="cotangent: got other ")
def cotangent_scaled_in_place(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    cotangent.mul_(0.5)
    return out


@torch_liar("EMB-5", says="token_ids: got other ")
def ids_sorted_in_place(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    ids.copy_(ids.reshape(-1).sort().values.reshape(ids.shape))
    return out


@torch_liar("EMB-5", says="token_ids: got other ")
def strided_inputs_cleared(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    if ids.stride(-1) == 2:
        ids.zero_(), cotangent.zero_()
    return out


@torch_liar("EMB-5", says="got other ", verb="grad_rows")
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


@torch_liar("EMB-5", says="expected the same ", verb="accumulator")
def cotangent_scaled_by_the_accumulator(run, *shape, memory, **options):
    class Scaling(_Wrapped):
        def add(self, ids, cotangent):
            super().add(ids, cotangent)
            cotangent.mul_(0.5)

    return Scaling(run(*shape, **options))


@torch_liar("EMB-5", says="expected the same ", verb="forward")
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


@torch_liar("EMB-8", says="cancelling-40x8-zipf-256", verb="grad_rows")
def row_ids_backwards(run, ids, cotangent, *, memory, **options):
    row_ids, rows = run(ids, cotangent, **options)
    return row_ids.flip(0), rows


@torch_liar("EMB-8", says="cancelling-40x8-zipf-256", verb="grad_rows")
def last_row_left_out(run, ids, cotangent, *, memory, **options):
    row_ids, rows = run(ids, cotangent, **options)
    return row_ids[:-1], rows[:-1]


@torch_liar("EMB-9", says="every-256-padding0", verb="grad_rows", cases=("padding",))
def padding_among_the_rows(run, ids, cotangent, *, memory, dtype, padding_idx, vocab_size):
    return run(ids, cotangent, dtype=dtype, vocab_size=vocab_size)


@torch_liar("EMB-12", says="peak extra memory: got ", verb="grad_rows", cases=("tall",))
def rows_taken_out_of_a_whole_table(run, ids, cotangent, *, memory, vocab_size, **options):
    row_ids, rows = run(ids, cotangent, vocab_size=vocab_size, **options)
    table = torch.zeros(vocab_size, rows.shape[1], dtype=rows.dtype)
    table[row_ids] = rows
    return row_ids, table[row_ids]


@torch_liar("EMB-8", "EMB-10", says="cancelling-40x8-zipf-256", verb="accumulator")
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


@torch_liar("EMB-10", says="condition split", verb="accumulator")
def second_rank_not_merged(run, *shape, memory, **options):
    class Forgetful(_Wrapped):
        merged = False

        def merge(self, other):
            if not self.merged:
                super().merge(other)
            self.merged = True

    return Forgetful(run(*shape, **options))


@torch_liar("EMB-9", says="every-256-padding0", verb="accumulator", cases=("padding",))
def padding_accumulated(run, *shape, memory, padding_idx):
    return run(*shape)


@torch_liar("EMB-8", says="cancelling-40x8-zipf-256", verb="forward")
def differentiated_by_the_framework(run, ids, table, *, memory):
    return F.embedding(ids, table)


@torch_liar("EMB-8", says="256", verb="forward_fp32", cases=("narrowed",))
def differentiated_by_the_framework_in_float32(run, ids, table, *, memory):
    return F.embedding(ids, table).float()


@torch_liar("EMB-8", "EMB-9", says="NoGradientError: gradient: got an output that requires no gradient", verb="forward")
def not_differentiable(run, ids, table, *, memory):
    return run(ids, table.detach())


# JAX alone has a trace, and ids that stay NumPy's.


@jax_liar("EMB-8", "EMB-9", says="traced")
def jitted_wrong(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    return -out if isinstance(ids, jax.core.Tracer) else out


@jax_liar("EMB-5", says="token_ids: got other ")
def host_ids_rewritten(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    if isinstance(ids, np.ndarray):
        ids[...] = 0
    return out


@jax_liar(
    "EMB-9", says="got 0x8000, expected +0 in a row that no id names (24 of 24 elements differ)", cases=("plain",)
)
def untouched_rows_minus_zero_too(run, ids, cotangent, vocab_size, *, memory, **options):
    out = run(ids, cotangent, vocab_size, **options)
    if isinstance(ids, jax.core.Tracer):
        return out
    changed = bits.as_bits(np.array(out))
    changed[np.setdiff1d(np.arange(vocab_size), ids)] = 0x8000
    return jax.device_put(bits.from_bits(changed, "bfloat16"))
