"""Torch's own settings, put back after a test."""

from __future__ import annotations

import pytest


@pytest.fixture
def settings_of_torch():
    """Put torch's own settings back."""
    import torch

    threads, default = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(default)
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(False)
