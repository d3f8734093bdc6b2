"""The shard (FORMAT.md, chapter 1) as a file that is whole or not there."""
import itertools
import os
import shutil
import sys
import zlib

from .errors import CannotWrite

SYSTEM_PYTHON = "/usr/bin/python3"
WRITER = "data/prepare 1"
FLUSH_TOKENS = 1 << 20
CHUNK = 65536


def import_h5py(program):
    """h5py; where this Python has none, the program begins again under the system's."""
    try:
        import h5py
        return h5py
    except ImportError:
        if sys.executable != SYSTEM_PYTHON and os.path.exists(SYSTEM_PYTHON):
            os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, program] + sys.argv[1:])
        raise SystemExit("data/prepare: the Python package h5py is missing: install python3-h5py") from None


class Shard:
    """Takes documents into an HDF5 image in memory (deflated, about one byte a token) and writes it in one piece:
    HDF5 1.10 crashes when its own writes fail, on a full disk for example."""

    def __init__(self, path, h5py):
        import numpy
        self.path, self.np, self.h5py = path, numpy, h5py
        self.file = h5py.File(path, "w", driver="core", backing_store=False, block_size=1 << 22,
                              libver=("earliest", "v110"))
        self.ids, self.mask, self.ends, self.families = [], [], [0], []
        self.tokens = self.supervised = self.flushed = 0
        self.crc = {"input_ids": 0, "loss_mask": 0}

    def add(self, ids, mask, family):
        self.ids += ids
        self.mask += mask
        self.tokens += len(ids)
        self.supervised += sum(mask)
        self.ends.append(self.tokens)
        self.families.append(family)
        if len(self.ids) >= FLUSH_TOKENS:
            self.flush()

    def flush(self):
        if not self.flushed:
            for name, kind in (("input_ids", "<i4"), ("loss_mask", "u1")):
                self.file.create_dataset(name, (0,), kind, maxshape=(None,), **storage(len(self.ids)))
        for name, values, kind in (("input_ids", self.ids, "<i4"), ("loss_mask", self.mask, "u1")):
            values = self.np.asarray(values, kind)
            self.file[name].resize((self.flushed + len(values),))
            self.file[name][self.flushed:] = values
            self.crc[name] = zlib.crc32(values.tobytes(), self.crc[name])
        self.flushed += len(self.ids)
        self.ids, self.mask = [], []

    def whole(self, name, values, kind):
        values = self.np.asarray(values, kind)
        dataset = self.file.create_dataset(name, data=values, **storage(len(values)))
        dataset.attrs["crc32"] = self.np.int64(zlib.crc32(values.tobytes()))

    def text(self, value):
        raw = value.encode()
        return self.np.array(raw, self.h5py.string_dtype("utf-8", max(len(raw), 1)))

    def finish(self, attributes, table, rows):
        self.flush()
        self.whole("doc_offsets", self.ends, "<i8")
        for name, crc in self.crc.items():
            self.file[name].attrs["crc32"] = self.np.int64(crc)
        if table:
            table = (table + [b""] * rows)[:rows]
            self.whole("token_bytes", self.np.frombuffer(b"".join(table), "u1"), "u1")
            self.whole("token_byte_offsets", [0, *itertools.accumulate(map(len, table))], "<i8")
        names = list(dict.fromkeys(f for f in self.families if f is not None))
        if names:
            index = {n: i for i, n in enumerate(names)} | {None: -1}
            self.whole("family", [index[f] for f in self.families], "<i4")
            longest = max(len(n.encode()) for n in names)
            kind = self.h5py.string_dtype("utf-8", max(longest, 1))
            self.file.create_dataset("family_names", data=self.np.array([n.encode() for n in names], kind))
        for name, value in attributes.items():
            self.file.attrs[name] = self.text(value) if isinstance(value, str) else self.np.int64(value)
        self.file.flush()
        publish(self.path, self.file.id.get_file_image())


def storage(size):
    return dict(chunks=(min(CHUNK, size),), shuffle=True, compression="gzip", compression_opts=4) if size else {}


def publish(path, data):
    """Writes PATH.partial, then gives it its name: PATH is whole or not there."""
    partial, folder = path + ".partial", os.path.dirname(os.path.abspath(path))
    try:
        with open(partial, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.rename(partial, path)
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    except OSError as e:
        free = shutil.disk_usage(folder).free
        raise CannotWrite(f"{partial}: {e.strerror}: {len(data)} bytes needed, {free} free, nothing written") from None
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def attributes_of(options, shard, counts):
    t = options.tokenizer
    return {
        "format": "slipstream-tokens", "format_version": 1,
        "vocab_size": options.vocab_size, "mask_token_id": options.mask_token,
        "tokenizer": t.name if t else "none",
        "tokenizer_sha256": t.sha256 if t else "",
        "template_sha256": t.template_sha256 if t else "",
        "source": "\n".join(os.path.basename(p) for p in options.input), "writer": WRITER,
        "documents": len(shard.ends) - 1, "tokens": shard.tokens, "supervised_tokens": shard.supervised,
        "max_length": options.max_length, "prompts": int(options.prompts), **counts,
    }
