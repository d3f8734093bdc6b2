"""`slipstream dump`: what it writes, read by stock h5py and h5dump; restarts, kills, and what goes wrong."""
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import h5py
import numpy as np

from program import BUILD, GOLDEN, ON_GPU, ROOT, Folder, command, documents, hf, run, write_config, write_shard

KILLS = int(os.environ.get("SLIP_KILLS", "6"))
LENGTHS = [20, 12, 30, 16, 39, 8, 25, 31, 18, 22, 40, 11, 35, 27, 14, 38]


def bits(dataset):
    """The three lines of data/FORMAT.md."""
    out = np.empty(dataset.shape, "<u2")
    if out.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, mtype=dataset.id.get_type())
    return out


def to_bf16(values):
    """float32 to the bits of bfloat16, to nearest, ties to even."""
    u = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16).astype("<u2")


class Dump(Folder):
    def setUp(self):
        super().setUp()
        self.tokens = write_shard(self.folder / "train.h5", documents(LENGTHS * 4), 256, 255)
        (self.folder / "drafter.json").write_text((json.dumps(self.drafter())))
        self.settings = {"target.path": GOLDEN / "tiny-qwen3", "drafter.config": self.folder / "drafter.json", "data.tokens": self.tokens,
                         "data.row_tokens": 64, "data.seed": 5, "train.precision": "fp32", "dump.dir": self.folder / "dump",
                         "dump.shard_bytes": 120000, "comm.timeout_s": 60}

    def drafter(self, taps=(0, 2)):
        from program import DRAFTER
        return {**DRAFTER, "dflash_config": {**DRAFTER["dflash_config"], "target_layer_ids": list(taps)}}

    def config(self, **changed):
        return write_config(self.folder / "dump.ini", {**self.settings, **{k.replace("_", ".", 1): v for k, v in changed.items()}})

    def dump(self, *options, code=0, ranks=None, **changed):
        done = run("dump", "--device", "cuda" if ON_GPU else "cpu", "--config", self.config(**changed), *options, ranks=ranks)
        self.assertEqual(done.code, code, done)
        return done

    def manifest(self, name="dump"):
        path = self.folder / name / "manifest.json"
        return json.loads(path.read_text()) if path.exists() else {"shards": [], "complete": False}

    def shards(self, name="dump"):
        return [self.folder / name / s["name"] for s in self.manifest(name)["shards"]]

    def contents(self, name="dump"):
        """document id -> (ids, mask, bits of its features), of all listed shards."""
        found = {}
        for path in self.shards(name):
            with h5py.File(path) as f:
                features, ids, mask = bits(f["features"]), f["input_ids"][:], f["loss_mask"][:]
                at, fat = f["doc_offsets"][:], f["feature_offsets"][:]
                for d, i in enumerate(f["document_ids"][:]):
                    self.assertNotIn(i, found)
                    found[int(i)] = (ids[at[d]:at[d + 1]].tolist(), mask[at[d]:at[d + 1]].tolist(), features[fat[d]:fat[d + 1]].tobytes())
        return found

    def listing(self, name="dump"):
        return sorted(p.name for p in (self.folder / name).iterdir())


class Shards(Dump):
    def test_stock_readers_see_what_the_target_computed(self):
        done = self.dump()
        self.assertIn("64 documents", done.err)
        self.assertGreater(len(self.shards()), 3)
        self.assertTrue(self.manifest()["complete"])
        out = self.folder / "want.safetensors"
        options = ("--device", "cuda") if ON_GPU else ()
        want_run = run("features", "--target", GOLDEN / "tiny-qwen3", "--tokens", self.tokens, "--taps", "0,2", "--out", out, *options)
        self.assertEqual(want_run.code, 0, want_run)
        want = hf.read(out)[0]["features"]
        with h5py.File(self.tokens) as f:
            ids, at = f["input_ids"][:], f["doc_offsets"][:]
        got = self.contents()
        self.assertEqual(sorted(got), list(range(64)))
        near = 0
        for d, (tokens, _, features) in got.items():
            self.assertEqual(tokens, ids[at[d]:at[d + 1]].tolist())
            have = np.frombuffer(features, "<u2").reshape(-1, 2, 64)
            exact = want[at[d]:at[d + 1]]
            near += int((have == to_bf16(exact)).sum())
            # packed into other rows, the last bits of fp32 may differ: half a step of bf16 and a little
            np.testing.assert_allclose((have.astype("<u4") << 16).view("<f4"), exact, rtol=2 ** -7.9, atol=1e-5)
        self.assertGreater(near, 0.999 * want.size)
        for path in self.shards():
            with h5py.File(path) as f:
                d = f["features"]
                np.testing.assert_array_equal((bits(d).astype("<u4") << 16).view("<f4"), d[...])
                self.assertEqual(dict(f.attrs)["taps"].tolist(), [0, 2])
        if ON_GPU and shutil.which("h5dump") is None:  # a machine of another image; tests without a GPU insist on it
            return
        text = subprocess.run(["h5dump", "-d", "/features", "-c", "1,1,4", self.shards()[0]], capture_output=True, text=True)
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn('DATATYPE  "/bfloat16"', text.stdout)
        with h5py.File(self.shards()[0]) as f:
            self.assertIn(f"{f['features'][0, 0, 0]:.4g}"[:5], text.stdout)

    def test_the_virtual_file_shows_all_of_it_and_may_move(self):
        self.dump()
        os.rename(self.folder / "dump", self.folder / "模型 ø")
        with h5py.File(self.folder / "模型 ø" / "all.h5") as f:
            self.assertTrue(f["features"].is_virtual)
            whole = bits(f["features"])
            at, ids = f["feature_offsets"][:], f["document_ids"][:]
            tokens = f["input_ids"][:]
        got = self.contents("模型 ø")
        self.assertEqual(b"".join(got[int(i)][2] for i in ids), whole.tobytes())
        self.assertEqual(sum((got[int(i)][0] for i in ids), []), tokens.tolist())
        self.assertEqual(at[-1], len(whole))

    def test_supervised_and_uint16(self):
        self.dump(dump_dir=self.folder / "all")
        self.dump(dump_dir=self.folder / "some", dump_span="supervised", dump_bf16="uint16", dump_compress="deflate")
        every, some = self.contents("all"), self.contents("some")
        for d, (ids, mask, features) in every.items():
            n = len(ids) - 2  # the last two tokens are supervised: the last anchor is the one before the last
            self.assertEqual((some[d][0], some[d][1]), (ids, mask))
            self.assertEqual(some[d][2], features[:n * 2 * 64 * 2])
        with h5py.File(self.shards("some")[0]) as f:
            self.assertEqual(f["features"].dtype, np.dtype("<u2"))
            self.assertEqual(f.attrs["dtype"], b"bfloat16")

    def test_any_number_of_ranks_writes_the_same_bytes(self):
        self.dump(dump_dir=self.folder / "one")
        self.dump(dump_dir=self.folder / "three", ranks=3)
        self.assertEqual(self.listing("one"), self.listing("three"))
        for name in self.listing("one"):
            self.assertEqual((self.folder / "one" / name).read_bytes(), (self.folder / "three" / name).read_bytes(), name)

    def test_max_bytes_is_never_exceeded(self):
        done = self.dump(dump_max_bytes=700000)
        self.assertIn("documents are left out", done.err)
        self.assertFalse(self.manifest()["complete"])
        self.assertGreaterEqual(len(self.shards()), 2)
        self.assertLessEqual(sum(p.stat().st_size for p in (self.folder / "dump").iterdir()), 700000)
        before = {p: p.stat().st_mtime_ns for p in self.shards()}
        self.dump()
        self.assertEqual(len(self.contents()), 64)
        self.assertTrue(self.manifest()["complete"])
        self.assertEqual({p: p.stat().st_mtime_ns for p in before}, before)
        again = self.dump()
        self.assertIn("nothing is left to do", again.err)


class Kills(Dump):
    def test_at_any_instant(self):
        self.dump(dump_dir=self.folder / "whole")
        whole, listing = self.contents("whole"), self.listing("whole")
        rng, kills, seen, mid = random.Random(int(os.environ.get("SLIP_KILL_SEED", "1"))), 0, {}, 0
        while kills < KILLS:
            started = time.monotonic()
            job = subprocess.Popen(command("dump", "--device", "cpu", "--config", self.config()), cwd=ROOT, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
            instant = rng.choice(["features-000000.h5.partial", *listing])  # somewhere after this file is there
            while job.poll() is None and not (self.folder / "dump" / instant).exists():
                time.sleep(0.0005)
            time.sleep(rng.random() * 0.02)
            job.send_signal(signal.SIGKILL)
            error = job.communicate()[1]
            if job.returncode == -signal.SIGKILL:
                kills += 1
            else:
                self.assertEqual(job.returncode, 0, error)
            got = self.contents()
            mid += 0 < len(got) < len(whole)
            for d, content in got.items():
                self.assertEqual(content, whole[d])
            for path in self.shards():
                if path.name not in seen.setdefault(id(rng), set()):
                    self.assertEqual(subprocess.run(["h5dump", "-H", path], capture_output=True).returncode, 0)
                    seen[id(rng)].add(path.name)
            self.assertLessEqual(len(list((self.folder / "dump").glob("features-*.partial"))), 1)
            if self.manifest()["complete"]:
                shutil.rmtree(self.folder / "dump")
                seen.clear()
            self.assertLess(time.monotonic() - started, 60)
        before = {p: p.stat().st_mtime_ns for p in self.shards()}
        self.dump()
        self.assertEqual(self.contents(), whole)
        self.assertEqual({p: p.stat().st_mtime_ns for p in before}, before)  # nothing is computed again
        self.assertEqual(self.listing(), listing)
        if KILLS >= 20:
            self.assertGreater(mid, 0)
        print(f"{kills} kills, {mid} of them between the first and the last shard", file=sys.stderr)

    def test_a_stop_ends_the_open_shard_and_is_gone_on_from(self):
        slow = {"data_row_tokens": 40}
        self.dump(dump_dir=self.folder / "whole", **slow)
        environment = {**os.environ, "SLIP_TEST_FAULT": "capture:9:0:term"}
        done = subprocess.run(command("dump", "--device", "cpu", "--config", self.config(**slow)), cwd=ROOT, capture_output=True, text=True,
                              env=environment, timeout=60)
        self.assertEqual(done.returncode, 75, done.stderr)
        there = self.contents()
        self.assertEqual(len(there), len(list(there)))
        self.assertGreaterEqual(len(there), 9)
        self.assertLess(len(there), 64)
        self.assertTrue((self.folder / "dump" / "all.h5").exists())
        self.dump(**slow)
        self.assertEqual(self.contents(), self.contents("whole"))

    def test_a_renamed_shard_that_was_not_listed_is_listed(self):
        self.dump()
        whole = self.contents()
        manifest = self.manifest()
        lost = manifest["shards"].pop()
        manifest["complete"] = False
        (self.folder / "dump" / "manifest.json").write_text(json.dumps(manifest))
        done = self.dump()
        self.assertIn(f"{lost['name']}: complete, and listed now", done.err)
        self.assertEqual(self.contents(), whole)
        # one that is broken does not belong: its documents are computed again
        (self.folder / "dump" / "manifest.json").write_text(json.dumps(manifest))
        path = self.folder / "dump" / lost["name"]
        with h5py.File(path) as f:
            place = f["features"].id.get_chunk_info(0).byte_offset
        data = bytearray(path.read_bytes())
        data[place + 7] ^= 4
        path.write_bytes(data)
        done = self.dump()
        self.assertIn("computed again", done.err)
        self.assertEqual(self.contents(), whole)


class Faults(Dump):
    def refused(self, code, *parts, **changed):
        before = self.tree()
        done = self.dump(code=code, **changed)
        lines = [line for line in done.err.splitlines() if "dump to" not in line and "warning" not in line]
        for part in parts:
            self.assertIn(str(part), lines[-1], done)
        self.assertEqual([p for p in before if p not in self.tree()], [])
        return done

    def test_another_dumps_folder(self):
        self.dump()
        whole = self.contents()
        (self.folder / "drafter.json").write_text(json.dumps(self.drafter((0, 1))))
        self.refused(2, "dump", "taps is [0, 1]", "[0, 2]", "another folder")
        (self.folder / "drafter.json").write_text(json.dumps(self.drafter()))
        self.refused(2, "architecture", "llama", "qwen3", "target_fingerprint", target_path=GOLDEN / "tiny-llama")
        self.refused(2, "seed is 6, but 5", data_seed=6)
        self.refused(2, "span", dump_span="supervised")
        self.assertEqual(self.contents(), whole)

    def test_broken_listed_shards(self):
        self.dump()
        whole, path = self.contents(), self.shards()[1]
        data = path.read_bytes()
        path.write_bytes(data[:-100])
        self.refused(3, path, len(data) - 100, len(data), "remove the file")
        path.unlink()
        done = self.dump()
        self.assertIn("listed and missing", done.err)
        self.assertEqual(self.contents(), whole)
        path = self.shards()[0]
        with h5py.File(path, "r+") as f:
            f.attrs.modify("format_version", np.int64(2))
        self.refused(3, path, "format_version is 2, this program reads 1")

    def test_wrong_settings(self):
        self.refused(2, "dump.shard_bytes: 66000", "needs", dump_shard_bytes=66000, data_row_tokens=600)
        self.refused(2, "dump.span", dump_span="half")
        self.refused(3, "no such file", data_tokens=self.folder / "absent.h5")
        settings = {k: v for k, v in self.settings.items() if k != "dump.dir"}
        done = run("dump", "--config", write_config(self.folder / "dump.ini", settings))
        self.assertEqual(done.code, 2, done)
        self.assertIn("dump.dir: not set", done.err)

    def mounted(self, options):
        place = self.folder / "mount"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode != 0:
            self.skipTest("only root can mount")
        self.addCleanup(subprocess.run, ["umount", place])
        return place

    def test_a_full_disk(self):
        place = self.mounted("size=700k")
        self.refused(1, place / "dump", "are needed", "are free there", dump_dir=place / "dump")
        os.symlink(place / "dump", self.folder / "link")
        # another program fills the disk while the dump runs
        job = subprocess.Popen(command("dump", "--device", "cpu", "--config", self.config(dump_dir=place / "dump", dump_max_bytes=650000)), cwd=ROOT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while job.poll() is None and not list((place / "dump").glob("features-000000.h5*")):
            time.sleep(0.001)
        fill = open(place / "fill", "wb", buffering=0)
        try:
            while True:
                fill.write(bytes(4096))
        except OSError:
            fill.close()
        error = job.communicate(timeout=60)[1]
        if job.returncode != 0:  # it may have been faster
            self.assertEqual(job.returncode, 1, error)
            self.assertRegex(error.splitlines()[-1], r"features-\d+.h5.*bytes|manifest|all.h5")
        for path in self.shards("link"):
            with h5py.File(path) as f:
                bits(f["features"])

    def test_a_file_that_may_not_grow(self):
        """HDF5's own write fails in the middle of a shard: one line, nothing half-made is listed, no crash."""
        place = self.folder / "large"
        done = subprocess.run(command("dump", "--device", "cpu", "--config", "configs/tiny.ini", "--set", f"dump.dir={place}"), cwd=ROOT,
                              capture_output=True, text=True, timeout=100,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (12_000_000, 12_000_000)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], r"features-000000.h5.partial: .*File too large.*bytes are free there")
        self.assertEqual(self.manifest("large")["shards"], [])

    def test_a_folder_that_cannot_be_written(self):
        place = self.mounted("size=1m,ro")
        self.refused(1, place / "dump", "Read-only file system", dump_dir=place / "dump")


if __name__ == "__main__":
    unittest.main()
