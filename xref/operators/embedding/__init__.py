"""The token embedding, `out[p, :] = weight[token_ids[p], :]`: its contract, calls, checks, faults and diagnosis."""

from __future__ import annotations

from xref import spec
from xref.operators.embedding import clauses, faults
from xref.operators.embedding.calls.batches import Batches
from xref.operators.embedding.calls.forward import Forward, NarrowedTable
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.calls.gradient_batches import GradientBatches, GradientDtypes
from xref.operators.embedding.calls.gradient_history import GradientHistory
from xref.operators.embedding.calls.history import History
from xref.operators.embedding.calls.memory import PeakMemory
from xref.operators.embedding.calls.refusal import Refusal
from xref.operators.embedding.calls.traced import TracedRefusal
from xref.operators.embedding.diagnose import explain
from xref.operators.embedding.examine import conditions, conduct, forward, gradient, gradient_conditions, history
from xref.operators.embedding.examine.forward import follow_up, trial

__all__ = ["OPERATOR"]

OPERATOR = spec.Operator(
    name="embedding",
    version=clauses.VERSION,
    verbs=clauses.VERBS,
    clauses=clauses.CLAUSES,
    checks=spec.declared(forward, history, conditions, gradient, gradient_conditions, conduct),
    faults=faults.FAULTS,
    calls=(
        Forward, NarrowedTable, Batches, History, Gradient, GradientBatches, GradientDtypes, GradientHistory, Refusal,
        TracedRefusal, PeakMemory,
    ),
    goldens={"torch": "xref.torch_ops.embedding", "jax": "xref.jax_ops.embedding"},
    native="NativeEmbeddingOp",
    trial=trial,
    explain=explain,
    follow_up=follow_up,
    promises={"out_of_range": ("raise", "poison", "unchecked")},
    modules={
        name: f"{__name__}.{name}"
        for name in ("cases", "contenders", "goldens", "gradient_cases", "pinned", "programs", "weights")
    },
)  # fmt: skip
