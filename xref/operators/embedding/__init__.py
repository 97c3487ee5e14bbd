"""The token embedding, `out[p, :] = weight[token_ids[p], :]`: its contract, calls, checks, faults and diagnosis."""

from __future__ import annotations

from xref import spec
from xref.contracts import embedding as contract
from xref.judge.checks import CHECKS
from xref.operators.embedding import faults

__all__ = ["OPERATOR"]

_HERE = __name__

OPERATOR = spec.Operator(
    name="embedding",
    version=contract.VERSION,
    verbs=contract.VERBS,
    clauses=contract.CLAUSES,
    checks=tuple(spec.Check(id=c.id, judgment=c.judgment, text=c.what, required=c.required) for c in CHECKS),
    faults=faults.FAULTS,
    calls=(),
    goldens={"torch": "xref.torch_ops.embedding", "jax": "xref.jax_ops.embedding"},
    native="NativeEmbeddingOp",
    trial=dict,
    explain=lambda call, failure, make: (),
    promises={"out_of_range": ("raise", "poison", "unchecked")},
    modules={name: f"{_HERE}.{name}" for name in ("contenders", "programs", "weights")},
)
