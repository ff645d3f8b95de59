"""Small pictures as PNG, in the page itself (ISO/IEC 15948)."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import ArrayLike


def png_uri(levels: ArrayLike) -> str:
    """A picture as a data URI.

    Args:
        levels: (rows, columns), or (1 or 3, rows, columns); from 0, which is black, to
            1.
    """
    picture = np.asarray(levels, dtype=np.float64)
    if picture.ndim == 2:
        picture = picture[None]
    channels, rows, columns = picture.shape
    bytes_ = np.rint(picture.clip(0.0, 1.0) * 255).astype(np.uint8)
    lines = bytes_.transpose(1, 2, 0).reshape(rows, columns * channels)
    # Every line begins with the number of its filter; 0 is none.
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    colour = 0 if channels == 1 else 2
    header = struct.pack(">IIBBBBB", columns, rows, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    length = struct.pack(">I", len(content))
    return length + kind + content + struct.pack(">I", zlib.crc32(kind + content))
