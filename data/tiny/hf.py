"""safetensors files with numpy alone: bfloat16 is read as float32, and written from float32 with ties to even."""
import json
import os
import struct

import numpy as np

KINDS = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1", "BF16": "<u2"}
NAMES = {np.dtype(k): n for n, k in KINDS.items() if n != "BF16"}


def read(path):
    """({name: array}, {metadata})."""
    with open(path, "rb") as f:
        raw = f.read()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        data = np.frombuffer(raw[8 + size + begin:8 + size + end], KINDS[t["dtype"]])
        if t["dtype"] == "BF16":
            data = (data.astype("<u4") << 16).view("<f4")
        tensors[name] = data.reshape(t["shape"])
    return tensors, header.get("__metadata__", {})


def bfloat16_bits(x):
    """float32 → the upper 16 bits, rounded to nearest, ties to even (no NaN expected)."""
    bits = np.ascontiguousarray(x, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write(path, tensors, bfloat16=(), **metadata):
    """Writes {name: array}; the names in `bfloat16` are stored so. Tensors lie in the order of the mapping."""
    header, blobs, at = {"__metadata__": {"format": "pt", **metadata}}, [], 0
    for name, x in tensors.items():
        x = np.asarray(x)
        kind = "BF16" if name in bfloat16 else NAMES[x.dtype]
        blob = (bfloat16_bits(x) if kind == "BF16" else np.ascontiguousarray(x)).tobytes()
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".partial", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    os.rename(path + ".partial", path)
