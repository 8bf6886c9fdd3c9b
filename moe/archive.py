"""Arrays out of an .npz that may be anything: no pickles, no more than a bound, one line for what cannot be read."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placement.errors import InputError

_UNREADABLE = (
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    OSError,
    OverflowError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def unpacked(raw: bytes, most_bytes: int, wanted: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of these names, or all."""
    try:
        with np.lib.npyio.NpzFile(io.BytesIO(raw), allow_pickle=False) as data:
            assert data.zip is not None
            sizes = [entry.file_size for entry in data.zip.infolist()]
            if sum(sizes) <= most_bytes:
                arrays = {name: data[name] for name in data.files if wanted is None or name in wanted}
    except _UNREADABLE as error:
        raise InputError("not a readable .npz without pickles") from error
    if sum(sizes) > most_bytes:
        raise InputError(f"unpacks to {sum(sizes)} bytes; at most {most_bytes} are read")
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InputError("holds something that is no array")
    return arrays
