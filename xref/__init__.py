"""xref is the ground truth of the token embedding, confirmed bit for bit by two frameworks.

`xref.judge` judges a kernel, `xref.parametrize` does it in pytest, and `xref.verify` confirms the goldens, which are
`xref.torch_ops.embedding` and `xref.jax_ops.embedding`. Importing this package
loads no framework and nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xref.judging.judge import judge
    from xref.pytest_plugin import parametrize
    from xref.verifying.verify import verify

__all__ = ["__version__", "judge", "parametrize", "verify"]

__version__ = "0.1.0"


_HOMES = {"judge": "xref.judging.judge", "parametrize": "xref.pytest_plugin", "verify": "xref.verifying.verify"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'xref' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
