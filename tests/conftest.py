"""The option `--xref-device`, and what tests need of devices and of the real table.

Tests that need a framework carry its marker, `torch` or `jax`, and load it when they run, not when they are collected.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from xref import errors, operators
from xref.engine import frameworks
from xref.verifying.golden import Golden, golden_of

KINDS = ("cpu", "cuda", "tpu")
MARKERS = {
    "torch": "needs PyTorch; deselected by -m 'not torch' where it is not installed",
    "jax": "needs JAX; deselected by -m 'not jax' where it is not installed",
}


def pytest_addoption(parser):
    parser.addoption(
        "--xref-device",
        action="append",
        metavar="KIND",
        help=f"run on this kind of device ({', '.join(KINDS)}; repeatable, or apart by commas); one that is not there"
        " fails. Default: the CPU and whatever else the installed frameworks have.",
    )


def pytest_configure(config):
    registered = {line.partition(":")[0] for line in config.getini("markers")}
    for name, meaning in MARKERS.items():
        if name not in registered:
            config.addinivalue_line("markers", f"{name}: {meaning}")
    for kind in asked_devices(config):
        if kind not in KINDS:
            raise pytest.UsageError(errors.message("--xref-device", kind, f"one of {', '.join(KINDS)}", "pytest"))


def asked_devices(config) -> tuple[str, ...]:
    """Return the kinds of device that the command line asks for."""
    given = config.getoption("--xref-device") or []
    return tuple(dict.fromkeys(kind.strip() for words in given for kind in words.split(",") if kind.strip()))


@functools.cache
def present_devices() -> dict[str, tuple[str, ...]]:
    """Return the kinds of device that each installed framework has here, by its name."""
    names = [name for name in frameworks.FRAMEWORKS if frameworks.installed(name)]
    return {name: frameworks.devices(frameworks.load(name, "pytest"), "pytest") for name in names}


def has_device(kind: str) -> bool:
    return kind == "cpu" or any(kind in devices for devices in present_devices().values())


@pytest.hookimpl(trylast=True)  # after the marks, so that the device is the last part of an id
def pytest_generate_tests(metafunc):
    asked = asked_devices(metafunc.config)
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", asked or [kind for kind in KINDS if has_device(kind)])
    if "device_kind" in metafunc.fixturenames:
        metafunc.parametrize("device_kind", asked or KINDS)


def absence(kind: str) -> str:
    there = "; ".join(f"{name} has {', '.join(devices)}" for name, devices in present_devices().items())
    expected = f"a device that is here ({there or 'no framework is installed'})"
    return errors.message("--xref-device", kind, expected, "pytest")


# The fixtures below give functions, so that what is missing fails the test itself and not its set-up.


@pytest.fixture
def present(device_kind, request):
    """Return the kind of device, if a framework has it; else skip, or where it was asked for fail."""

    def kind() -> str:
        if not has_device(device_kind):
            (pytest.fail if asked_devices(request.config) else pytest.skip)(absence(device_kind))
        return device_kind

    return kind


@pytest.fixture
def goldens(device, request):
    """Return the embedding's on the device; a framework that has no such kind anywhere is on the CPU, as in `verify`.

    By default so is one that merely lacks it here, as long as the other has it.
    """

    def both() -> list[Golden]:
        if not has_device(device):
            pytest.fail(absence(device))
        chosen = []
        for name in frameworks.FRAMEWORKS:
            framework = frameworks.load(name, "pytest")
            here = device in framework.arrays.devices()
            if not here and framework.arrays.supports(device) and asked_devices(request.config):
                pytest.fail(absence(device))
            chosen.append(golden_of(operators.find("embedding"), framework, device if here else "cpu"))
        return chosen

    return both


@pytest.fixture
def real_table():
    """Return the path of a real checkpoint's table, float16 [32000, 256]: see the Makefile."""

    def path() -> Path:
        given = os.environ.get("XREF_REAL_TABLE", "")
        if not Path(given).is_file():
            expected = "the real table's file: `make test` fetches it"
            pytest.fail(errors.message("XREF_REAL_TABLE", repr(given), expected, "pytest"))
        return Path(given)

    return path
