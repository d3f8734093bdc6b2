"""What the tests of `slipstream inspect` share: calling it, and safetensors files as raw bytes."""
import json
import os
import shutil
import struct

import numpy as np

from program import Folder, run

TINY, GOLDEN = "data/tiny", "tests/golden"  # run() starts the program in the project root
NUMPY = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "u1", "I8": "i1", "BOOL": "u1", "U64": "<u8"}


def write_tensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)."""
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def read_tensors(path):
    """name -> (dtype, shape, bytes)."""
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items()}


def numbers(dtype, data):
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("u4") << 16).view("f4").astype("f8")
    return np.frombuffer(data, NUMPY[dtype]).astype("f8")


class Inspect(Folder):
    def facts(self, *arguments, code=0):
        done = run("inspect", "--json", *arguments)
        self.assertEqual(done.code, code, done)
        found = [json.loads(line) for line in done.out.splitlines()]
        return found[0] if len(found) == 1 else found

    def text(self, *arguments, code=0):
        done = run("inspect", *arguments)
        self.assertEqual(done.code, code, done)
        return done.out

    def refused(self, *arguments, code=3):
        """Nothing shown and one line of complaint, which is returned."""
        done = run("inspect", *arguments)
        self.assertEqual((done.code, done.out), (code, ""), done)
        self.assertEqual(len(done.err.splitlines()), 1, done)
        return done.err

    def copy(self, path):
        to = os.path.join(self.folder, os.path.basename(path))
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, to)
        return to
