"""What is examined: somebody's kernel, whatever its form, as functions of one framework's arrays."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from xref import errors
from xref.engine import frameworks
from xref.engine.executor import Executor
from xref.engine.frameworks import Framework
from xref.engine.steps import Output, Raised, Script
from xref.spec import Traits

__all__ = ["BACKWARD", "Candidate", "candidate_of"]

BACKWARD = "backward"
"""The verb that is a candidate's own gradient."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel on one device."""

    name: str
    framework: Framework
    device: str
    verbs: Mapping[str, Callable[..., Any]]
    """Its functions by name, those that it has; `backward` is its own gradient."""

    def traits(self, *, golden: bool = False) -> Traits:
        """Return what is known of it before it is examined; some of its framework is tried on the device."""
        arrays, modes, memory = self.framework.arrays, self.framework.modes, self.framework.memory
        with arrays.precision("float32"):  # in which JAX raises no alarm at a NaN
            return Traits(
                name=self.name,
                framework=self.framework.name,
                version=arrays.version(),
                device=self.device,
                device_name=arrays.describe(self.device),
                verbs=tuple(self.verbs),
                transforms=tuple(modes.transforms()),
                grad_modes=tuple(modes.grad_modes()),
                settings=tuple(modes.settings()),
                gradient_calls=tuple(modes.gradient_calls()),
                traces=modes.traced(lambda first, _: first) is not None,
                flushes=memory.flushes_subnormals(self.device),
                saturates=memory.saturates(self.device),
                golden=golden,
            )


def candidate_of(
    target: object,
    *,
    verbs: tuple[str, ...],
    trial: Mapping[str, Script],
    framework: str | None,
    device: str,
    name: str | None = None,
) -> Candidate:
    """Return the candidate that a target stands for.

    Args:
        target: a function, or an object that is called like one, which stands for the first verb; an object with some
            of the verbs; either with its own `backward` if it has one; or a class that is made without arguments.
        verbs: what can be asked of the operator.
        trial: a small script for each verb, which is performed where the target does not say whose arrays it takes.
        framework: `torch` or `jax`; None finds it out.
        device: `cpu`, `cuda` or `tpu`.
        name: what reports call it; its own name if None.

    Raises:
        MissingFrameworkError: the framework named, or any, is not installed.
        UsageError: the target is no kernel or holds its table itself, the framework or the device is not there, or
            none or several frameworks fit.
    """
    name = name or getattr(target, "__qualname__", None) or type(target).__qualname__

    def refuse(got: object, expected: str) -> errors.UsageError:
        return errors.UsageError(name, got, expected)

    if inspect.isclass(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:  # its constructor is anybody's code
            raise refuse(errors.described(error), "a class that is made without arguments") from error
    try:
        found = {verb: getattr(target, verb, None) for verb in dict.fromkeys((*verbs, BACKWARD))}
    except (Exception, SystemExit) as error:  # a property may be anything
        raise refuse(errors.described(error), "an object whose parts can be read") from error
    functions = {verb: part for verb, part in found.items() if callable(part)}
    if not functions.keys() & set(verbs) and callable(target):
        functions = {verbs[0]: target, **functions}
    if not functions.keys() & set(verbs):
        raise refuse(type(target).__name__, f"a function, or an object with {' or '.join(verbs)}")
    if _holds_parameters(target):
        adapter = "an adapter around torch.func.functional_call: three lines in docs/judging-a-kernel.md"
        raise refuse("a module that holds its own parameters and takes one argument", adapter)
    known = framework or _framework_of_code(target)
    chosen = frameworks.load(known) if known else _fitting(name, functions, trial, device)
    here = frameworks.devices(chosen)
    if device not in here:
        present = f"a device that {chosen.name} has here: {', '.join(here)}"
        raise errors.UsageError("--device", device, present)
    return Candidate(name, chosen, device, functions)


def _holds_parameters(target: object) -> bool:
    """Return whether a target is a module, as torch.nn.Embedding is, whose forward takes one argument alone."""
    torch: Any = sys.modules.get("torch")  # whoever has such a module has imported it
    if torch is None or not isinstance(target, torch.nn.Module) or next(target.parameters(), None) is None:
        return False
    try:
        signature = inspect.signature(target.forward)
    except (TypeError, ValueError):
        return False
    with contextlib.suppress(TypeError):
        signature.bind(None, None)
        return False
    return True


# The framework: by what the code names, by what its file imports, or by a trial.


def _framework_of_code(target: object) -> str | None:
    """Return the one framework that a target's own code names, or else that its module imports, if it is one."""
    function = inspect.unwrap(target) if callable(target) else target
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
    names: set[str] = set()
    for code in _codes(function):
        known = getattr(function, "__globals__", vars(module) if module else {})
        names |= {_root(known[name]) if name in known else name for name in code.co_names}
    for roots in (names, _imported(module)):
        fitting = [each for each in frameworks.FRAMEWORKS if each in roots]
        if len(fitting) == 1 and frameworks.installed(fitting[0]):
            return fitting[0]
    return None


def _codes(target: object) -> Iterator[CodeType]:
    """Yield the code of a function, or of the methods of an object's class, with the functions inside."""
    code = getattr(target, "__code__", None)
    if isinstance(code, CodeType):
        found = [code]
    else:
        methods = [getattr(each, "__func__", each) for each in vars(type(target)).values()]
        found = [each.__code__ for each in methods if isinstance(getattr(each, "__code__", None), CodeType)]
    while found:
        code = found.pop()
        yield code
        found += [each for each in code.co_consts if isinstance(each, CodeType)]


def _root(value: object) -> str:
    """Return the package that a module is of, or an object's module."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(name).partition(".")[0]


def _imported(module: ModuleType | None) -> set[str]:
    """Return the packages that a module's source imports outside of functions."""
    try:
        tree = ast.parse(inspect.getsource(module)) if module is not None else ast.Module([], [])
    except (OSError, TypeError, SyntaxError, ValueError):  # it has no source
        return set()
    roots: set[str] = set()
    rest: list[ast.AST] = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            roots.add((node.module or "").partition(".")[0])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            rest += ast.iter_child_nodes(node)
    return roots


def _fitting(
    name: str, functions: Mapping[str, Callable[..., Any]], trial: Mapping[str, Script], device: str
) -> Framework:
    """Return the one framework whose arrays the functions take and return, by performing their trials."""
    seen, present, fit = [], [], []
    for installed in [each for each in frameworks.FRAMEWORKS if frameworks.installed(each)]:
        framework = frameworks.load(installed)
        here = frameworks.devices(framework)
        present.append(f"{installed} has {', '.join(here)}")
        if device not in here:
            continue
        executor = Executor(functions, framework, device)
        ends = [_end(executor, trial[verb], installed) for verb in functions if verb in trial]
        if None in ends:
            fit.append(framework)
        seen += [end for end in ends if end is not None]
    if len(fit) == 1:
        return fit[0]
    if not present:
        raise errors.MissingFrameworkError("torch")
    if not seen and not fit:
        there = f"a device that is here ({'; '.join(present)})"
        raise errors.UsageError("--device", device, there)
    got = "several frameworks that fit" if fit else f"no framework that fits ({'; '.join(seen)})"
    raise errors.UsageError(name, got, "--framework torch or --framework jax")


def _end(executor: Executor, script: Script, framework: str) -> str | None:
    """Return how a trial ended, or None if it gave an array."""
    for reply in executor.perform(script):
        if isinstance(reply, Raised):
            return f"{framework} arrays end in {reply.type}"
        if isinstance(reply, Output) and reply.form[2] in ("none", "host"):
            return f"{framework} arrays give a {reply.form[1]}"
    return None
