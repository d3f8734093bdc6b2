"""log.tensorboard: what the event files hold, read by a decoder of a few lines and by TensorBoard itself."""
import json
import os
import struct
import sys
import time
import unittest
from unittest import mock

from program import ROOT, Folder

sys.path.insert(0, str(ROOT / "tests" / "support"))
import pip_packages  # noqa: E402


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The events of a file, as bytes; one that is cut at the end is left out."""
    at = 0
    while at + 12 <= len(data):
        length, check = struct.unpack_from("<QI", data, at)
        assert check == masked_crc32c(data[at:at + 8]), at
        if at + 16 + length > len(data):
            return
        event = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(event), at
        yield event
        at += 16 + length


def fields(message):
    """(number, value) of a protocol buffer: ints, floats by width, bytes."""
    def varint(at):
        value = shift = 0
        while True:
            value, shift, at = value | (message[at] & 127) << shift, shift + 7, at + 1
            if message[at - 1] < 128:
                return value, at

    at = 0
    while at < len(message):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
        elif key & 7 == 2:
            size, at = varint(at)
            value, at = message[at:at + size], at + size
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[key & 7]
            value, at = struct.unpack_from(form, message, at)[0], at + size
        yield key >> 3, value


def read_as_tensorboard(directory):
    """{tag: [(step, value, wall time)]}: files in the order of their names; a START drops its step and later ones."""
    out = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        version, *events = [dict(fields(e)) for e in records(path.read_bytes())]
        assert version[3] == b"brain.Event:2", version
        for event in events:
            if 7 in event:
                assert dict(fields(event[7])) == {1: 1}
                out = {tag: [p for p in points if p[0] < event[2]] for tag, points in out.items()}
                continue
            for _, value in fields(event[5]):
                value = dict(fields(value))
                out.setdefault(value[1].decode(), []).append((event[2], value[2], event[1]))
    return out


class EventFiles(Folder):
    def settings(self, **more):
        return {**self.small_run(), "train.steps": 6, "eval.tokens": self.folder / "train.h5", "eval.every_steps": 3,
                "checkpoint.every_steps": 2, "log.tensorboard": "true", **more}

    def a_run(self):
        done = self.train(self.settings(), "--device", "cpu")
        self.assertEqual(done.code, 0, done)
        return self.folder / "run"

    def killed_and_resumed(self):
        settings = self.settings()
        with mock.patch.dict(os.environ, {"SLIP_TEST_FAULT": "train:6:0:kill"}):
            self.assertNotEqual(self.train(settings, "--device", "cpu").code, 0)
        first, = (self.folder / "run").glob("events.*")
        first.write_bytes(first.read_bytes()[:-5])  # as if the kill had come within a write
        done = self.train(settings, "--device", "cpu", "--resume", "auto")
        self.assertEqual(done.code, 0, done)
        self.assertEqual(len(list((self.folder / "run").glob("events.*"))), 2)
        return self.folder / "run"

    def check(self, got, directory):
        """`got`: {tag: [(step, value)]}, of the files in a run directory."""
        def lines(name):
            return [json.loads(line) for line in (directory / name).read_text().splitlines()]

        metrics, evaluations = lines("metrics.jsonl"), lines("eval.jsonl")
        self.assertEqual(([m["step"] for m in metrics], [e["step"] for e in evaluations]), ([1, 2, 3, 4, 5, 6], [0, 3, 6]))
        want = {}
        for prefix, rows in (("train", metrics), ("eval", evaluations)):
            for row in rows:
                flat = {k: v for k, v in row.items() if isinstance(v, (int, float)) and k != "step"}
                flat.update({f"{k}/{i}": x for k in ("slot_accuracy", "slot_loss") for i, x in enumerate(row.get(k, []), 1)})
                for tag, value in flat.items():
                    want.setdefault(f"{prefix}/{tag}", []).append((row["step"], value))
        for tag in ("train/loss", "train/lr", "train/tokens_per_s", "train/slot_accuracy/3", "eval/acceptance_length"):
            self.assertIn(tag, want)
        self.assertEqual(sorted(got), sorted(want))
        for tag, points in want.items():
            self.assertEqual(got[tag], [(step, struct.unpack("<f", struct.pack("<f", v))[0]) for step, v in points], tag)

    def test_a_run(self):
        began = time.time()
        directory = self.a_run()
        read = read_as_tensorboard(directory)
        self.check({tag: [p[:2] for p in points] for tag, points in read.items()}, directory)
        walls = [p[2] for p in read["train/loss"]]
        self.assertEqual(walls, sorted(walls))
        self.assertTrue(began <= walls[0] and walls[-1] <= time.time())

    def test_a_kill_and_resume(self):
        directory = self.killed_and_resumed()
        self.check({tag: [p[:2] for p in points] for tag, points in read_as_tensorboard(directory).items()}, directory)

    def test_not_unless_asked(self):
        self.assertEqual(self.train(self.small_run(), "--device", "cpu").code, 0)
        self.assertEqual([p for p in self.tree() if "tfevents" in p], [])

    def tensorboard(self, directory):
        """The same by TensorBoard's own reader."""
        why = pip_packages.fetch("tensorboard", "tensorboard==2.21.0", "protobuf==7.36.2", "absl-py==2.5.1")
        if why is not None:
            self.skipTest(why)
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        reader = EventAccumulator(str(directory))
        reader.Reload()
        self.check({tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}, directory)

    def test_tensorboard_reads_a_run(self):
        self.tensorboard(self.a_run())

    def test_tensorboard_reads_a_resumed_run(self):
        self.tensorboard(self.killed_and_resumed())


unittest.main(verbosity=2)
