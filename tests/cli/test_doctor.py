"""`xref doctor` shows what a machine has and how to get what it lacks, the more so where something is broken."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from xref import __version__
from xref.cli import app, doctor
from xref.engine import frameworks

SETTINGS = {
    "torch": {"threads", "deterministic algorithms", "TF32 matrix products", "CUDA build", "ROCm build"},
    "jax": {
        "jax_enable_x64",
        "jax_debug_nans (off while verify runs)",
        "default matmul precision",
        "XLA_FLAGS",
        "XLA_PYTHON_CLIENT_PREALLOCATE (false by xref if not set)",
    },
}
EACH = [pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax)]


def found(of):
    return {name: value for what, name, value in doctor.findings() if what == of}


@pytest.fixture
def no_framework(monkeypatch):
    monkeypatch.setattr(frameworks, "installed", lambda name: False)


def test_versions_of_xref_python_and_the_libraries_are_told(no_framework):
    assert found("xref") == {"version": __version__}
    assert found("python") == {"version": platform.python_version()}
    assert found("numpy") == {"version": np.__version__}
    assert found("ml_dtypes").keys() == found("safetensors").keys() == {"version"}


@pytest.mark.parametrize("name", EACH)
def test_a_frameworks_version_devices_and_settings_are_told(name):
    rows = found(name)
    assert rows["version"] == frameworks.load(name).arrays.version()
    assert "cpu (CPU)" in rows["devices"]
    assert set(rows) == {"version", "devices", *SETTINGS[name]}


@pytest.mark.torch
def test_settings_are_those_in_force():
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    try:
        for on in (True, False):
            torch.use_deterministic_algorithms(on)
            assert found("torch")["deterministic algorithms"] == str(on)
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("name", frameworks.FRAMEWORKS)
def test_a_missing_framework_is_shown_with_the_line_that_installs_it(name, no_framework):
    message = f"{name}: got not installed, expected it to be: pip install 'xref[{name}]' [doctor]"
    assert found(name) == {"missing": message}
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert message in result.stdout


@pytest.mark.torch
def test_a_framework_that_does_not_import_is_shown(monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(frameworks, "_loaded", broken)
    assert found("torch") == {
        "missing": "torch: got an import error (libcudart.so.13: cannot open shared object file),"
        " expected it to import [doctor]"
    }


@pytest.mark.torch
def test_devices_that_cannot_be_told_do_not_hide_the_rest(monkeypatch):
    def broken():
        raise RuntimeError("no backend")

    monkeypatch.setattr(frameworks.load("torch").arrays, "devices", broken)
    rows = found("torch")
    assert rows["devices"] == "torch devices: got an error (no backend), expected a list of them [doctor]"
    assert rows["threads"]


@pytest.mark.jax
def test_a_platform_that_jax_has_not_is_shown_and_not_a_crash():
    code = "import sys; sys.modules['torch'] = None\nfrom xref.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, "doctor"],
        env={**os.environ, "JAX_PLATFORMS": "nonsense"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "jax devices: got an error (" in done.stdout
    assert "pip install 'xref[torch]' [doctor]" in " ".join(done.stdout.split())
