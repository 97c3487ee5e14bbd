"""The smallest call that still fails: whatever is unusual about it is taken away, then its sizes are made small.

The budget is in calls, never in seconds: two runs of one failing subject find the same smallest call.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from xref.spec import Call, Failure, Seen

__all__ = ["smallest"]

_ROUNDS = 3  # with fewer columns or rows, fewer tokens may do
_PLACE = re.compile(r"\[[^\]]*\]")


def smallest(call: Call, failure: Failure, make: Callable[[Call], Seen], budget: int) -> tuple[Call, Failure]:
    """Return the smallest call that fails in the same check and way, and its failure; the call itself if none does.

    Args:
        call: it fails.
        failure: how.
        make: makes a call.
        budget: the most calls to make.
    """
    search = _Search(call, failure, make, budget)
    for _ in range(_ROUNDS):
        before = search.call
        search.plainer()
        search.smaller()
        if search.call == before:
            break
    return search.call, search.failure


class _Search:
    def __init__(self, call: Call, failure: Failure, make: Callable[[Call], Seen], budget: int) -> None:
        self.call, self.failure, self._make, self._left = call, failure, make, budget

    def fails(self, other: Call | None) -> bool:
        """Return whether another call fails likewise; it is then the one to make smaller."""
        if other is None or other == self.call or self._left <= 0:
            return False
        self._left -= 1
        failure = self._make(other).failed(self.failure.check)
        if failure is None or _kind(failure) != _kind(self.failure):
            return False
        self.call, self.failure = failure.call or other, failure
        return True

    def plainer(self) -> None:
        """Take away what is unusual, one thing after another."""
        while any(self.fails(other) for other in self.call.plainer()):
            pass

    def smaller(self) -> None:
        """Make each size as small as it still fails: 1 if that does, else between what fails and what does not."""
        for name in list(self.call.sizes()):
            passes, size = 0, self.call.sizes().get(name, 0)
            if size > 1 and self.fails(self.call.resized(name, 1)):
                continue
            passes = 1
            while size - passes > 1 and self._left > 0:
                middle = (size + passes) // 2
                if self.fails(self.call.resized(name, middle)):
                    size = self.call.sizes().get(name, middle)
                else:
                    passes = middle


def _kind(failure: Failure) -> tuple[str, str, bool]:
    """Return what a failure is told apart by: what is wrong, the exception if there is one, and a death."""
    return _PLACE.sub("", failure.message.partition(":")[0]), failure.raised.partition(":")[0], failure.aborts
