"""Which arrays a subject keeps between scripts: counted where scripts are written, obeyed where they are performed."""

from __future__ import annotations

import collections
import dataclasses

import msgspec

from xref.engine.steps import Done, Drop, Overwrite, Put, Replies, Reuse, Script, Step

__all__ = ["Keys", "without_keys"]

_MOST, _MOST_BYTES = 24, 256 << 20


class Keys:
    """The keys under which a subject keeps arrays, the least recently used first."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._dropped: list[str] = []

    def planned(self, script: Script) -> tuple[int, Script]:
        """Return the script with a `Reuse` for what is kept already, after so many steps that drop arrays."""
        steps: list[Step] = []
        used = set()
        for step in script.steps:
            if isinstance(step, Put) and step.key in self._kept:
                self._kept.move_to_end(step.key)
                used.add(step.key)
                steps.append(Reuse(name=step.name, key=step.key))
            elif isinstance(step, Put) and step.key and step.array.nbytes <= _MOST_BYTES:
                self._kept[step.key] = step.array.nbytes
                used.add(step.key)
                steps.append(step)
            else:
                if isinstance(step, Drop):
                    self._kept.pop(step.name, None)
                steps.append(msgspec.structs.replace(step, key="") if isinstance(step, Put) else step)
        while len(self._kept) > _MOST or sum(self._kept.values()) > _MOST_BYTES:
            oldest = next(iter(self._kept))
            if oldest in used:
                break
            del self._kept[oldest]
            self._dropped.append(oldest)
        drops = tuple(Drop(name=key) for key in dict.fromkeys(self._dropped) if key not in used)
        self._dropped.clear()
        return len(drops), dataclasses.replace(script, steps=(*drops, *steps))

    def note(self, script: Script, replies: Replies) -> None:
        """Forget the arrays that were not put after all, or have been overwritten."""
        keys = {step.name: step.key for step in script.steps if isinstance(step, Put) and step.key in self._kept}
        for n, step in enumerate(script.steps):
            failed = isinstance(step, Put) and not isinstance(replies[n], Done)
            if step.name in keys and (failed or isinstance(step, Overwrite)):
                self._kept.pop(keys[step.name], None)
                self._dropped.append(keys[step.name])

    def forget(self) -> None:
        """Have all of them dropped before the next script."""
        self._dropped += self._kept
        self._kept.clear()

    def clear(self) -> None:
        """Forget all of them, as their process is gone."""
        self._kept.clear()
        self._dropped.clear()


def without_keys(script: Script) -> Script:
    """Return the script with no array to be kept."""
    steps = [msgspec.structs.replace(step, key="") if isinstance(step, Put) else step for step in script.steps]
    return dataclasses.replace(script, steps=tuple(steps))
