"""Embedding kernels that are wrong in one way each, by framework and name: the judge must find each of them out."""

from __future__ import annotations

import mutants.embedding_torch_gradient  # noqa: F401 - it registers its own
from mutants.embedding_jax import JAX_MUTANTS
from mutants.embedding_torch import TORCH_MUTANTS
from mutants.registry import Mutant

__all__ = ["JAX_MUTANTS", "TORCH_MUTANTS", "Mutant"]
