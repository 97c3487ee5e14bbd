"""Kernels of the embedding as source, for commands that load a file."""

RIGHT = """
import torch


def kernel(token_ids, weight):
    if token_ids.is_floating_point() or token_ids.is_complex() or token_ids.dtype == torch.bool:
        raise TypeError
    ids = token_ids.long()
    if ((ids < 0) | (ids >= weight.shape[0])).any():
        raise IndexError
    return weight.index_select(0, ids.reshape(-1)).reshape(*ids.shape, weight.shape[1])
"""
WRONG = """
import os
import sys

import torch
import torch.nn.functional as F

print("loaded")


def kernel(token_ids, weight):
    sys.stdout.write("a beep\\n")
    os.write(1, b"a beep\\n")
    out = F.embedding(token_ids.clamp(0, weight.shape[0] - 1).long(), weight)
    return torch.where(token_ids[..., None] == 0, 0, out)
"""
