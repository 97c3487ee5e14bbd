"""xref is the ground truth of the token embedding, confirmed bit for bit by two frameworks.

`xref.judge` judges a kernel, `xref.parametrize` does it in pytest, and `xref.verify` confirms the goldens, which are
`xref.torch_ops.embedding` and `xref.jax_ops.embedding`. Importing this package
loads no framework and nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xref.judge.judge import judge
    from xref.judge.verify import verify

    parametrize: Any

__all__ = ["__version__", "judge", "parametrize", "verify"]

__version__ = "0.1.0"


_HOMES = {"parametrize": "xref.pytest_plugin", "verify": "xref.judge.verify"}


def __getattr__(name: str) -> Any:
    if name == "judge":  # a package, and callable
        return importlib.import_module("xref.judge")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'xref' has no attribute {name!r}")
