"""The records that a contract is written in: frozen, comparable, and ready for JSON.

A contract is data, so that one engine can run any operator's: see `xref.contracts.embedding` for the first.
"""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Case", "Clause", "Fault", "Tier"]


class Tier(enum.StrEnum):
    """How much to run; each tier includes the ones before it."""

    SMOKE = "smoke"  # seconds
    STANDARD = "standard"  # under a minute
    EXHAUSTIVE = "exhaustive"  # every float32 pattern, every id of the largest table

    def includes(self, other: Tier) -> bool:
        """Return whether a run of this tier runs what belongs to `other`."""
        order = list(Tier)
        return order.index(other) <= order.index(self)


class Clause(msgspec.Struct, frozen=True):
    """One promise of a contract, such as `EMB-1 gather`."""

    id: str
    title: str
    statement: str
    """What must hold, in one or two sentences."""


class Fault(msgspec.Struct, frozen=True):
    """One way in which kernels of an operator have been wrong, such as `negative-ids-wrap`."""

    name: str
    """Unique in its catalogue, in kebab-case."""
    looks: str
    """What the wrong output looks like, in one sentence."""
    does: str
    """What it does to users, in one sentence."""
    report: str = ""
    """A public report of it, such as `pytorch/pytorch#151918`; empty where none is known."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One fixed-seed input of the embedding: a `[vocab, hidden]` table and token ids of a shape.

    The bytes are a function of these fields alone (`xref.contracts.inputs`), so every machine builds the same.
    """

    dtype: str
    """Table dtype, one of `xref.bits.FORMATS`."""
    vocab: int
    hidden: int
    table: str
    """Family of the table: how its elements' bits come about."""
    ids: str
    """Pattern of the ids."""
    shape: tuple[int, ...]
    """Shape `S` of the ids."""
    id_dtype: str = "int64"
    offset: int = 0
    """First element of a `patterns` table, where one table cannot hold the whole domain."""
    tier: Tier = Tier.STANDARD
    """Smallest tier that runs the case."""
    conditions: bool = False
    """Whether the invariance conditions run on it."""

    @property
    def id(self) -> str:
        """A readable name, unique in its contract: `bfloat16-tagged-300x33-zipf-257-int64`."""
        shape = "x".join(map(str, self.shape)) if self.shape else "scalar"
        offset = f"+{self.offset:#x}" if self.offset else ""
        return f"{self.dtype}-{self.table}{offset}-{self.vocab}x{self.hidden}-{self.ids}-{shape}-{self.id_dtype}"
