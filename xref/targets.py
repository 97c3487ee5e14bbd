"""Other people's code by name: `pkg.mod:name` or `path/to/file.py:name`, loaded with one clear error for each failure.

A module is imported as `python -m` would, with the current folder first on the path. A file is loaded under a name made
of its path and its bytes: the same file again gives the same objects, a changed one is loaded anew.

Not promised: modules that a file imports from its own folder are ordinary modules, read once per process. Where another
module of the same name is loaded already, Python would hand out that one, and loading is refused.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import platform
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from xref import errors

__all__ = ["load_target"]

_FORM = "pkg.mod:name or path/to/file.py:name"
_SHOWN = 10  # names offered where the one asked for is missing
_lock = threading.RLock()  # sys.path and sys.modules are the whole process's; a target may load another


def load_target(spec: str, call: str = "") -> object:
    """Return the object that `pkg.mod:name`, `pkg.mod:Class.attr` or `path/to/file.py:name` names, as it is.

    A class is returned uncalled. `call` is what the user called, for the messages.

    Raises:
        UsageError: the spec has another form; there is no such file, module or name (the likeliest names are listed);
            the code, or a module that it imports, is missing or cannot be imported; or the object is neither callable
            nor has a `forward`.
    """
    where, _, name = spec.rpartition(":")
    is_file = where.endswith(".py") or "/" in where or "\\" in where
    if not where or not all(name.split(".")) or not (is_file or all(where.split("."))):
        raise errors.UsageError("target", repr(spec), _FORM, call)
    with _lock:
        importlib.invalidate_caches()  # a module written a moment ago is found too
        found: Any = _load_file(where, call) if is_file else _load_module(where, call)
        path = where
        for part in name.split("."):
            found, path = _attribute(found, part, path, call), f"{path}{'.' if path != where else ':'}{part}"
        if not callable(found) and not callable(getattr(found, "forward", None)):
            got = f"an object of type {type(found).__name__}"
            raise errors.UsageError(path, got, "a callable or an object with forward", call)
    return found


def _load_module(name: str, call: str) -> ModuleType:
    with _first_on_path(Path.cwd()), _explained(name, call):
        return importlib.import_module(name)


def _load_file(where: str, call: str) -> ModuleType:
    path = Path(where)
    try:
        path = path.resolve()
        source = path.read_bytes()
    except FileNotFoundError as error:
        raise errors.UsageError(where, "no such file", "a Python file", call) from error
    except (OSError, ValueError, RuntimeError) as error:  # a folder, a closed one, a name with a zero, a loop of links
        got = "a folder" if isinstance(error, IsADirectoryError) else f"an error ({errors.described(error)})"
        raise errors.UsageError(where, got, "a Python file", call) from error
    digest = hashlib.sha256(b"\0".join((str(path).encode(errors="surrogateescape"), source))).hexdigest()
    name = f"xref_target_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise errors.UsageError(
            where, f"a file of kind {path.suffix or 'none'}", "a Python file, its name ending in .py", call
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look it up
    try:
        with _first_on_path(path.parent), _explained(where, call):
            # Compiled from the bytes at hand: the cached bytecode of a file changed within a second may be the old one.
            exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        _check_siblings(module, path.parent, where, call)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # what was imported may have changed the path itself
            sys.path.remove(entry)


@contextlib.contextmanager
def _explained(where: str, call: str) -> Iterator[None]:
    """Turn whatever an import raises into a `UsageError`, `SystemExit` included."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and f"{where}.".startswith(f"{missing}."):
            got = f"no module named {missing!r}" + (
                f" ({errors.described(error)})" if "not a package" in str(error) else ""
            )
            raise errors.UsageError(where, got, f"a module that can be imported, or a file: {_FORM}", call) from error
        got = (
            f"an import of {missing!r} in it, which is missing ({errors.described(error)})"
            if missing
            else errors.described(error)
        )
        raise errors.UsageError(where, got, "it to import", call) from error
    except SyntaxError as error:
        # A file's own name is known already; else it says which of the imported files is wrong.
        own = error.filename is None or Path(error.filename) == Path(where).resolve()
        place = (f" in line {error.lineno}" if error.lineno else "") + ("" if own else f" of {error.filename}")
        expected = f"code that Python {platform.python_version()} can read"
        raise errors.UsageError(where, f"a syntax error{place} ({error.msg})", expected, call) from error
    except BaseException as error:  # SystemExit, and what pytest's skip and exit raise
        raise errors.UsageError(where, f"{errors.described(error)} while importing it", "it to import", call) from error


def _attribute(owner: object, name: str, path: str, call: str) -> object:
    try:
        return getattr(owner, name)
    except KeyboardInterrupt:
        raise
    except AttributeError as error:
        callables = _public_callables(owner)
        shown = difflib.get_close_matches(name, callables, n=_SHOWN, cutoff=0)
        more = f" and {len(callables) - len(shown)} more" if len(callables) > len(shown) else ""
        expected = f"one of {', '.join(shown)}{more}" if shown else "a name of something callable, of which it has none"
        raise errors.UsageError(path, f"no name {name!r}", expected, call) from error
    except BaseException as error:  # a module's own __getattr__, or a property
        raise errors.UsageError(
            path, f"{errors.described(error)} while reading {name!r}", "it to be there", call
        ) from error


def _public_callables(owner: object) -> list[str]:
    """Return the names of what may be meant: those that a module defines itself, if there are any."""
    found = {name: inspect.getattr_static(owner, name, None) for name in dir(owner) if not name.startswith("_")}
    found = {name: value for name, value in found.items() if callable(value) or isinstance(value, classmethod)}
    if isinstance(owner, ModuleType):
        own = {name for name, value in found.items() if getattr(value, "__module__", None) == owner.__name__}
        return sorted(own or found)
    return sorted(found)


def _check_siblings(module: ModuleType, folder: Path, where: str, call: str) -> None:
    """Raise if a module meant to come from the file's folder is another of the same name, loaded before."""
    origins = set()
    for value in vars(module).values():
        with contextlib.suppress(Exception):  # an object may answer to any name, or to none
            origins.add(str(value.__name__ if isinstance(value, ModuleType) else value.__module__).partition(".")[0])
    for name in sorted(origins - sys.stdlib_module_names):
        loaded = getattr(sys.modules.get(name), "__file__", None)
        for sibling in (folder / name / "__init__.py", folder / f"{name}.py"):  # Python looks for them in this order
            if loaded is not None and sibling.is_file():
                if not sibling.samefile(loaded):
                    got = f"an import of {name!r} in it, loaded before from {loaded}"
                    raise errors.UsageError(where, got, f"{sibling}: load it in a process of its own", call)
                break
