"""The files that commands write: checked before a run, and written whole or not at all after it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from xref import errors

__all__ = ["OutputFile", "check_files", "target_file"]


@dataclasses.dataclass(frozen=True)
class OutputFile:
    """A file that an option names."""

    option: str
    path: Path
    appended: bool = False
    """Whether text goes behind what is there already, as into the summary of a CI job."""

    def check(self, inputs: Iterable[Path]) -> None:
        """Raise `UsageError` unless the file can be written, and is none of the inputs of the run.

        Tried by making the file that is later put in its place, and taking it away again.
        """
        path = self.path
        try:
            target = path.resolve()
            if any(target == each.resolve() for each in inputs):
                raise self._error(f"{path}, an input of this run", "another file")
            if path.is_dir():
                raise self._error(f"{path}, a folder", "a file")
            if self.appended and path.exists():
                if not os.access(path, os.W_OK):
                    raise self._error(path, "a file that can be written")
                return
            if path.exists() and not path.is_file():  # such as /dev/null, which a file must not replace
                raise self._error(f"{path}, a device or pipe", "a file")
            if target.is_symlink():  # a loop of links, which some Pythons resolve to one of them
                raise self._error(path, "a file in a folder that can be written")
            part = _part(target)
            part.touch()
            part.unlink()
        except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError in other Pythons
            raise self._error(path, "a file in a folder that can be written") from error

    def write(self, content: str | bytes) -> None:
        """Write a report's text or picture; an interrupted or failing write leaves what was there before.

        Raises:
            UsageError: the file cannot be written, such as on a full disk.
        """
        data = content.encode() if isinstance(content, str) else content
        path = self.path.resolve()
        part = _part(path)
        try:
            if self.appended and path.exists():
                with path.open("ab") as file:
                    file.write(data)
            else:
                part.write_bytes(data)
                part.replace(path)
        except OSError as error:
            raise self._error(f"{path}, which cannot be written ({error.strerror})", "a file") from error
        finally:
            part.unlink(missing_ok=True)

    def _error(self, got: object, expected: str) -> errors.UsageError:
        return errors.UsageError(self.option, got, expected)


def check_files(files: Iterable[OutputFile], inputs: Iterable[Path]) -> None:
    """Raise `UsageError` unless all files can be written, none of them an input of the run or another of them."""
    known = list(inputs)
    for file in files:
        file.check(known)
        known.append(file.path)


def target_file(target: str) -> Path:
    """Return the file of a target `path/to/file.py:name`; of `pkg.mod:name` a path that is no file."""
    return Path(target.rpartition(":")[0])


def _part(path: Path) -> Path:
    """Return what a file is called until it is whole: beside it, and never a longer name than it may have."""
    return path.with_name(f".{os.getpid()}.part")
