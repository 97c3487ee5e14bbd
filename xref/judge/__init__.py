"""What compares: the goldens with the exact answer (`verify`), and somebody's kernel (`judge`).

The package is callable: `xref.judge` is the public name of the function `xref.judge.judge.judge`, and Python gives that
name to this folder as soon as a module of it is imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, target: object, **options: Any) -> Any:
        """Judge a kernel: `xref.judge.judge.judge`."""
        from xref.judge.judge import judge

        return judge(target, **options)


sys.modules[__name__].__class__ = _Callable
