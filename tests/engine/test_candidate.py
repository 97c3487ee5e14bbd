"""Candidates: whatever somebody's kernel looks like becomes one form, or a message says why not."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from support.helpers import FRAMEWORKS, raises

from xref import errors
from xref.engine import candidate as module
from xref.engine import frameworks
from xref.engine.candidate import candidate_of
from xref.engine.steps import Put, Run, Script
from xref.targets import load_target

VERBS = ("forward", "forward_fp32")
PUT = (
    Put(name="ids", array=np.array([1, 0], np.int32)),
    Put(name="weight", array=np.zeros((3, 4), np.uint32), dtype="float32"),
)
TRIAL = {verb: Script("float32", (*PUT, Run(name="out", verb=verb, arguments=("ids", "weight")))) for verb in VERBS}


def load(name):
    return frameworks.load(name)


def kernel(token_ids, weight):
    return weight[token_ids]


class WithVerbs:
    def forward(self, token_ids, weight):
        return weight[token_ids]

    def forward_fp32(self, token_ids, weight):
        return weight[token_ids]

    def backward(self, token_ids, cotangent, vocab_size):
        return cotangent


class WidenedOnly:
    def forward_fp32(self, token_ids, weight):
        return weight[token_ids]


class Called:
    def __call__(self, token_ids, weight):
        return weight[token_ids]

    def backward(self, token_ids, cotangent, vocab_size):
        return cotangent


class NotCallableVerbs:
    forward = "no"
    backward = 3

    def forward_fp32(self, token_ids, weight):
        return weight[token_ids]


class TakesArguments:
    def __init__(self, vocab):
        self.vocab = vocab


class Fails:
    def __init__(self):
        raise RuntimeError("no driver")


def made(target, framework="torch", device="cpu", **how):
    with errors.called("judge"):
        return candidate_of(target, verbs=VERBS, trial=TRIAL, framework=framework, device=device, **how)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("target", "verbs", "backward"),
    [
        (kernel, ["forward"], False),
        (lambda ids, weight: weight[ids], ["forward"], False),
        (WithVerbs, ["forward", "forward_fp32"], True),
        (WithVerbs(), ["forward", "forward_fp32"], True),
        (WidenedOnly, ["forward_fp32"], False),
        (NotCallableVerbs, ["forward_fp32"], False),
        (WithVerbs().forward, ["forward"], False),
    ],
    ids=["function", "lambda", "class", "object", "widened only", "attributes that are no verbs", "method"],
)
def test_forms_of_candidates(target, verbs, backward):
    candidate = made(target)
    assert list(candidate.verbs) == [*verbs, *(["backward"] if backward else [])]
    assert (candidate.framework.name, candidate.device) == ("torch", "cpu")


@pytest.mark.torch
def test_an_object_that_is_called_is_a_function_and_keeps_its_gradient():
    candidate = made(Called)
    assert list(candidate.verbs) == ["forward", "backward"]


@pytest.mark.torch
def test_a_class_is_made_once_and_its_object_called():
    made_so_far = []

    class Counted:
        def __init__(self):
            made_so_far.append(self)

        def forward(self, token_ids, weight):
            return self

    candidate = made(Counted)
    assert len(made_so_far) == 1
    assert candidate.verbs["forward"](None, None) is made_so_far[0]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("target", "name"),
    [
        (kernel, "kernel"),
        (WithVerbs, "WithVerbs"),
        (WithVerbs(), "WithVerbs"),
        (WithVerbs().forward, "WithVerbs.forward"),
    ],
)
def test_names(target, name):
    assert made(target).name == name
    assert made(target, name="mine").name == "mine"


@pytest.mark.torch
def test_a_module_of_functions_is_an_object_with_verbs():
    golden = load("torch").arrays.golden
    assert list(made(golden, name="golden").verbs) == ["forward", "forward_fp32"]


@pytest.mark.torch
def test_a_torch_module_is_an_object_with_verbs():
    import torch

    class Kernel(torch.nn.Module):
        def forward(self, token_ids, weight):
            return weight[token_ids]

    assert list(made(Kernel).verbs) == ["forward"]
    assert list(made(Kernel()).verbs) == ["forward"]


# The framework


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_the_framework_of_a_golden_is_found(name):
    golden = load(name).arrays.golden
    assert made(golden.forward, framework=None).framework is load(name)


@pytest.mark.torch
@pytest.mark.jax
def test_a_kernel_that_takes_the_arrays_of_both_is_asked_about():
    with raises(
        errors.UsageError,
        "kernel: got several frameworks that fit, expected --framework torch or --framework jax [judge]",
    ):
        made(kernel, framework=None)


SOURCES = {
    "it imports one alone": ("import {}", "weight[ids]"),
    "it imports a part of one": ("from {0}.{1} import *", "weight[ids]"),
    "it imports one where it can": ("try:\n    import {}\nexcept ImportError:\n    pass", "weight[ids]"),
    "it names one of two": ("import jax, torch", "{} and weight[ids]"),
    "it imports one within": ("import jax, torch", "__import__('{0}') and {0}.float32 and weight[ids]"),
    "it only takes one's arrays": ("", "weight.{2} and weight[ids]"),
}


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("form", ["function", "object", "class", "wrapped"])
def test_the_framework_is_the_one_of_the_code(tmp_path, source, name, form):
    head, body = (each.format(*NAMES[name]) for each in SOURCES[source])
    path = tmp_path / "kernels.py"
    path.write_text(
        f"{head}\nimport functools\ndef function(ids, weight):\n    return {body}\n"
        + textwrap.dedent(f"""
        class Kernel:
            def forward(self, ids, weight):
                return {body}
        made = Kernel()
        wrapped = functools.wraps(function)(lambda ids, weight: function(ids, weight))
        """)
    )
    target = load_target(f"{path}:{ {'object': 'made', 'class': 'Kernel'}.get(form, form) }", "pytest")
    assert made(target, framework=None).framework.name == name


NAMES = {"torch": ("torch", "nn", "data_ptr"), "jax": ("jax", "numpy", "at")}


@pytest.mark.torch
def test_a_file_that_imports_no_framework_is_tried_with_each(monkeypatch):
    monkeypatch.setattr(module.frameworks, "installed", lambda name: name == "torch")
    assert made(kernel, framework=None).framework.name == "torch"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_that_is_named_is_not_tried(framework):
    def never(token_ids, weight):
        raise AssertionError

    assert made(never, framework=framework).framework is load(framework)


@pytest.mark.torch
@pytest.mark.jax
def test_a_kernel_of_no_framework_is_told_how_each_ended():
    def broken(token_ids, weight):
        raise KeyError("x")

    with raises(
        errors.UsageError,
        "broken: got no framework that fits (torch arrays end in KeyError; jax arrays end in KeyError), expected"
        " --framework torch or --framework jax [judge]",
    ):
        made(broken, framework=None, name="broken")


@pytest.mark.torch
@pytest.mark.jax
def test_a_kernel_that_returns_no_array_is_told_what_it_returns():
    with raises(
        errors.UsageError,
        "it: got no framework that fits (torch arrays give a list; jax arrays give a list), expected"
        " --framework torch or --framework jax [judge]",
    ):
        made(lambda ids, weight: [1], framework=None, name="it")


@pytest.mark.torch
@pytest.mark.jax
def test_a_kernel_that_exits_is_none_of_the_frameworks():
    def leaves(token_ids, weight):
        raise SystemExit(3)

    with raises(
        errors.UsageError,
        "it: got no framework that fits (torch arrays end in SystemExit; jax arrays end in SystemExit), expected"
        " --framework torch or --framework jax [judge]",
    ):
        made(leaves, framework=None, name="it")


def test_without_any_framework_the_message_has_the_line_that_installs_one(monkeypatch):
    monkeypatch.setattr(module.frameworks, "installed", lambda name: False)
    with raises(
        errors.MissingFrameworkError,
        "torch: got not installed, expected it to be: pip install 'xref[torch]' [judge]",
    ):
        made(kernel, framework=None)


# Refusals


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (3, "int: got int, expected a function, or an object with forward or forward_fp32 [judge]"),
        (None, "NoneType: got NoneType, expected a function, or an object with forward or forward_fp32 [judge]"),
        (object(), "object: got object, expected a function, or an object with forward or forward_fp32 [judge]"),
        (object, "object: got object, expected a function, or an object with forward or forward_fp32 [judge]"),
        (Fails, "Fails: got RuntimeError: no driver, expected a class that is made without arguments [judge]"),
    ],
)
def test_what_is_no_kernel_is_refused(target, says):
    with raises(errors.UsageError, says):
        made(target)


def test_a_class_that_takes_arguments_is_told_so():
    got = "TypeError: TakesArguments.__init__() missing 1 required positional argument: 'vocab'"
    with raises(
        errors.UsageError, f"TakesArguments: got {got}, expected a class that is made without arguments [judge]"
    ):
        made(TakesArguments)


@pytest.mark.torch
def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(module.frameworks, "devices", lambda framework: ("cpu",))
    with raises(errors.UsageError, "--device: got cuda, expected a device that torch has here: cpu [judge]"):
        made(kernel, framework="torch", device="cuda")


@pytest.mark.torch
def test_a_device_that_no_framework_has_is_refused_where_the_framework_is_to_be_found(monkeypatch):
    monkeypatch.setattr(module.frameworks, "devices", lambda framework: ("cpu",))
    here = "; ".join(f"{name} has cpu" for name in module.frameworks.FRAMEWORKS if module.frameworks.installed(name))
    with raises(errors.UsageError, f"--device: got cuda, expected a device that is here ({here}) [judge]"):
        made(kernel, framework=None, device="cuda")


class UnprintableError(Exception):
    def __str__(self):
        raise SystemExit(3)


def leaving():
    raise SystemExit(0)


def unprintable():
    raise UnprintableError


@pytest.mark.torch
@pytest.mark.parametrize(
    ("body", "got"),
    [
        ({"__init__": lambda self: leaving()}, "SystemExit: 0, expected a class that is made without arguments"),
        ({"__init__": lambda self: unprintable()}, "UnprintableError, expected a class that is made without arguments"),
        ({"forward": property(lambda self: 1 // 0)}, "ZeroDivisionError: integer division or modulo by zero"),
    ],
    ids=["leaves", "unprintable", "property"],
)
def test_a_target_that_cannot_be_made_or_read_is_one_clear_error(body, got):
    with pytest.raises(errors.UsageError) as caught:
        made(type("Kernel", (), body), name="it")
    assert str(caught.value).startswith(f"it: got {got}")


# Modules that hold their table


@pytest.mark.torch
def test_a_module_that_holds_its_table_is_one_clear_error():
    import torch

    for module_with_table in (torch.nn.Embedding(3, 4), type("Mine", (torch.nn.Embedding,), {})(3, 4)):
        with pytest.raises(errors.UsageError) as caught:
            made(module_with_table, name="it")
        assert str(caught.value) == (
            "it: got a module that holds its own parameters and takes one argument, expected an adapter around"
            " torch.func.functional_call: three lines in docs/judging-a-kernel.md [judge]"
        )


@pytest.mark.torch
def test_a_module_with_parameters_that_takes_a_table_is_a_kernel():
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, token_ids, weight):
            return weight[token_ids] * self.scale

    assert list(made(Scaled).verbs) == ["forward"]


@pytest.mark.torch
def test_the_adapter_of_a_module_that_holds_its_table_is_a_kernel():
    import torch

    held = torch.nn.Embedding(1, 1)

    def adapter(token_ids, weight):
        return torch.func.functional_call(held, {"weight": weight}, (token_ids,))

    assert made(adapter, framework=None).framework.name == "torch"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_traits(framework):
    traits = made(WithVerbs, framework=framework).traits()
    assert (traits.name, traits.framework, traits.device, traits.verbs) == (
        "WithVerbs", framework, "cpu", ("forward", "forward_fp32", "backward"),
    )  # fmt: skip
    assert set(traits.transforms) >= {"vmap"}
    assert (traits.traces, traits.golden) == (framework == "jax", False)
