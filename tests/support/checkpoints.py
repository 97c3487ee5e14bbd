"""Safetensors files as tests need them, written byte by byte."""

from __future__ import annotations

import json
import struct

import numpy as np

SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "BOOL": 1}


def checkpoint(path, **tensors):
    """Write a safetensors file byte by byte; each tensor is `(code, shape)` or `(code, shape, data)`."""
    header, data = {}, b""
    for name, (code, shape, *given) in tensors.items():
        size = int(np.prod(shape, dtype=np.int64)) * SIZES[code]
        part = given[0] if given else bytes(n % 251 for n in range(size))
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
