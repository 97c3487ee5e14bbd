"""Messages between two processes over a pair of sockets: MessagePack, and arrays beside it where they are large.

Nothing is ever pickled, since the other end may be anybody's code. A message is its length, the number of files that
come with it, and its bytes; an array of more than a MiB is a file in memory whose descriptor is sent along. The
receiver maps such a file if its writer has sealed it, and reads a copy of any other: who could still cut it short would
end the reader by SIGBUS.

Not promised: that what arrives is true.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import re
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

__all__ = ["Channel", "GarbledError"]

Array = np.ndarray[Any, np.dtype[Any]]
_T = TypeVar("_T")

_LARGE = 1 << 20  # bytes of an array that travels in a file of its own
_FILES = 200  # that come with one message; the kernel takes 253
_LOOK = 0.5  # seconds between two looks at the other process
_MOST = 1 << 29  # bytes of a message without its files
_HEADER = struct.Struct("<QI")
_DTYPE = re.compile(r"[<>|=]?[biufc][0-9]{1,2}")
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # <linux/fcntl.h>: against more seals, shrinking, growing and writing
_ADD_SEALS, _GET_SEALS = 1033, 1034


class GarbledError(Exception):
    """What came is no message."""


class Channel:
    """One end of a pair of sockets."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: object, *, seconds: float | None = None) -> None:
        """Send a message of msgspec's, with any arrays in it.

        Raises:
            OSError: the other end is closed, or does not read in time (TimeoutError).
        """
        files: list[int] = []

        def encoded(value: object) -> object:
            if not isinstance(value, np.ndarray):
                raise NotImplementedError(f"{type(value).__name__} in a message")
            if value.nbytes <= _LARGE or len(files) >= _FILES:
                return value.dtype.str, value.shape, value.tobytes()
            files.append(_file_of(value))
            return value.dtype.str, value.shape, len(files) - 1

        try:
            data = msgspec.msgpack.encode(message, enc_hook=encoded)
            self._end.settimeout(seconds)
            socket.send_fds(self._end, [_HEADER.pack(len(data), len(files))], files)
            self._end.sendall(data)
        finally:
            _close(files)

    def receive(self, kind: type[_T], *, seconds: float = math.inf, alive: Callable[[], bool] = lambda: True) -> _T:
        """Return the next message, which must be of this type; its arrays may be written.

        Raises:
            TimeoutError: it is not there in time.
            EOFError: the other end is closed, or is not and its process is no longer alive.
            GarbledError: it is none of this type.
        """
        files: list[int] = []
        part = functools.partial(self._bytes, deadline=time.monotonic() + seconds, alive=alive, files=files)
        try:
            length, count = _HEADER.unpack(part(_HEADER.size))
            if length > _MOST or count > _FILES:
                raise GarbledError(f"a message of {length} bytes and {count} files")
            data = part(length)
            if len(files) != count:
                raise GarbledError(f"{len(files)} files where {count} were announced")
            return msgspec.msgpack.decode(data, type=kind, dec_hook=lambda _, value: _array_of(value, files))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise GarbledError(str(error)) from error
        finally:
            _close(files)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _bytes(self, count: int, *, deadline: float, alive: Callable[[], bool], files: list[int]) -> bytearray:
        data = bytearray(count)
        view, filled = memoryview(data), 0
        while filled < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._end.settimeout(min(left, _LOOK))
            try:
                part, found, *_ = socket.recv_fds(self._end, min(count - filled, 1 << 20), _FILES)
            except TimeoutError:
                if not alive():  # whatever else holds the other end
                    raise EOFError from None
                continue
            except ConnectionError as error:
                raise EOFError from error
            files += found
            if not part:
                raise EOFError
            view[filled : filled + len(part)] = part
            filled += len(part)
        return data


def _close(files: list[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)


def _file_of(array: Array) -> int:
    """Return the descriptor of a file that holds an array's elements and, where the system can, will never change."""
    sealed = hasattr(os, "memfd_create")
    if sealed:
        file = os.memfd_create("array", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while view:
        view = view[os.write(file, view[: 1 << 30]) :]
    if sealed:
        import fcntl

        fcntl.fcntl(file, _ADD_SEALS, _SEALS)
    return file


def _array_of(value: object, files: list[int]) -> Array:
    """Return the array that a message describes by dtype, shape, and bytes or the number of a file.

    Raises:
        ValueError: it describes none.
    """
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise ValueError("an array of other than three parts")
    name, shape, held = value
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ValueError(f"an array of dtype {name!r}")
    if not isinstance(shape, list | tuple) or not all(type(size) is int and 0 <= size < 1 << 60 for size in shape):
        raise ValueError("an array of no shape")
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise ValueError(str(error)) from error
    count = math.prod(shape)
    size = count * dtype.itemsize
    if isinstance(held, bytes):
        if len(held) != size:
            raise ValueError(f"{len(held)} bytes for an array of {size}")
        return np.frombuffer(bytearray(held), dtype).reshape(shape)
    if type(held) is not int or not 0 <= held < len(files) or os.fstat(files[held]).st_size != size or not size:
        raise ValueError(f"an array of {size} bytes in no file of that size")
    if _is_sealed(files[held]):
        pages = mmap.mmap(files[held], size, access=mmap.ACCESS_COPY)
    else:
        pages = _read(files[held], size)
    return np.frombuffer(pages, dtype, count).reshape(shape)


def _is_sealed(file: int) -> bool:
    try:
        import fcntl

        return fcntl.fcntl(file, _GET_SEALS) & _SEALS == _SEALS
    except (ImportError, OSError):  # no seals here, or a file that can have none
        return False


def _read(file: int, size: int) -> mmap.mmap:
    pages = mmap.mmap(-1, size, access=mmap.ACCESS_COPY)
    view, read = memoryview(pages), 0
    while read < size:
        part = os.preadv(file, [view[read : read + (1 << 30)]], read)
        if not part:
            raise ValueError("a file that ends early")
        read += part
    return pages
