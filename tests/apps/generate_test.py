"""`generate`: token shards of the target's own answers, the same with and without a drafter, on any ranks and after a kill."""
import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

import h5py

from program import DEVICE, GOLDEN, ROOT, Folder, command, run, write_shard

TARGET, PROMPTS, TRAINED = ROOT / "data/tiny/target", ROOT / "data/tiny/prompts.h5", GOLDEN / "tiny-drafter"
WANT = json.loads((GOLDEN / "tiny-decode.json").read_text())["prompts"]


class Generate(Folder):
    def arguments(self, name, *options, prompts=PROMPTS):
        return ("generate", "--target", TARGET, "--prompts", prompts, "--out", self.folder / name, "--device", DEVICE, *options)

    def generate(self, name, *options, code=0, ranks=None, prompts=PROMPTS):
        done = run(*self.arguments(name, *options, prompts=prompts), ranks=ranks)
        self.assertEqual(done.code, code, done)
        if code == 0:
            self.assertEqual([p for p in self.tree() if "journal" in p or "partial" in p], [])
        return done

    def documents(self, name):
        with h5py.File(self.folder / name) as f:
            ids, mask, at = (f[n][:].tolist() for n in ("input_ids", "loss_mask", "doc_offsets"))
        return [(ids[a:b], mask[a:b]) for a, b in zip(at, at[1:])]

    def test_the_answers_are_the_targets(self):
        done = self.generate("plain.h5", "--documents", 20, "--max-new", 100)
        self.assertIn("20 documents", done.err)
        with h5py.File(PROMPTS) as f:
            at, ids = f["doc_offsets"][:], f["input_ids"][:].tolist()
        for i, (got, mask) in enumerate(self.documents("plain.h5")):
            prompt = ids[at[i]:at[i + 1]]
            answer = got[len(prompt):]
            self.assertEqual((got[:len(prompt)], mask), (prompt, [0] * len(prompt) + [1] * len(answer)))
            self.assertEqual("".join("<|im_end|>" if t == 257 else chr(t) for t in answer), WANT[i]["output"])
        # the same bytes with a drafter, on three ranks, and what is there is not written again
        self.generate("drafter.h5", "--documents", 20, "--max-new", 100, "--drafter", TRAINED)
        self.generate("ranks.h5", "--documents", 20, "--max-new", 100, "--drafter", TRAINED, ranks=3)
        for other in ("drafter.h5", "ranks.h5"):
            self.assertEqual(self.documents(other), self.documents("plain.h5"))
        self.assertEqual((self.folder / "ranks.h5").read_bytes(), (self.folder / "drafter.h5").read_bytes())
        before = (self.folder / "plain.h5").stat().st_mtime_ns
        self.assertIn("nothing to do", self.generate("plain.h5", "--documents", 20, "--max-new", 100).err)
        self.assertIn("other settings", self.generate("plain.h5", "--documents", 20, "--max-new", 99, code=2).err)
        self.assertEqual((self.folder / "plain.h5").stat().st_mtime_ns, before)

    def test_readers_take_it(self):
        self.generate("a.h5", "--documents", 12, "--max-new", 60)
        done = run("inspect", self.folder / "a.h5", "--json", "--verify")
        self.assertEqual(done.code, 0, done)
        facts = json.loads(done.out)
        self.assertEqual(facts.get("documents", facts), 12, facts)
        with h5py.File(self.folder / "a.h5") as f, h5py.File(PROMPTS) as p:
            self.assertEqual(f.attrs["tokenizer_sha256"], p.attrs["tokenizer_sha256"])
            self.assertEqual(f["token_bytes"][:].tolist(), p["token_bytes"][:].tolist())
            names = [n.decode() for n in f["family_names"][:]]
            self.assertEqual([names[i] for i in f["family"][:]], [w["task"] for w in WANT[:12]])
            self.assertEqual({f[d].dtype.str for d in ("input_ids", "loss_mask", "doc_offsets", "family")}, {"<i4", "|u1", "<i8"})
        settings = ["train", "--config", ROOT / "configs/tiny.ini", "--device", DEVICE]
        for pair in (f"data.tokens={self.folder}/a.h5", f"log.dir={self.folder}/run", "train.steps=1", "eval.tokens=", "eval.prompts="):
            settings += ["--set", pair]
        self.assertEqual(run(*settings).code, 0)
        again = self.generate("again.h5", "--max-new", 60, prompts=self.folder / "a.h5")  # answers are left out of prompts
        self.assertIn("12 documents", again.err)
        self.assertEqual(self.documents("again.h5"), self.documents("a.h5"))

    def test_sampling_is_seeded_and_lossless(self):
        sampled = ["--documents", 8, "--max-new", 30, "--temperature", 0.9]
        for name, more in (("a.h5", ["--seed", 1]), ("b.h5", ["--seed", 1, "--drafter", TRAINED]), ("c.h5", ["--seed", 2])):
            self.generate(name, *sampled, *more)
        self.assertEqual(self.documents("a.h5"), self.documents("b.h5"))
        self.assertNotEqual(self.documents("a.h5"), self.documents("c.h5"))

    def test_weights_are_read_once(self):
        weights = [TARGET / "model.safetensors", TRAINED / "model.safetensors"]
        options = "--documents", 12, "--max-new", 60, "--drafter", TRAINED
        self.assert_one_reads(weights, 2, *self.arguments("two.h5", *options))
        self.generate("one.h5", *options)
        self.assertEqual((self.folder / "two.h5").read_bytes(), (self.folder / "one.h5").read_bytes())

    def test_more_ranks_than_prompts(self):
        for name, ranks in (("one.h5", None), ("three.h5", 3)):  # the third loads nothing
            self.generate(name, "--documents", 2, "--max-new", 20, "--drafter", TRAINED, ranks=ranks)
        self.assertEqual((self.folder / "three.h5").read_bytes(), (self.folder / "one.h5").read_bytes())

    def test_goes_on_after_a_kill(self):
        self.generate("whole.h5", "--max-new", 150)
        for ranks, more in ((None, 2), (2, None)):
            name = f"killed{ranks}.h5"
            start = command(*self.arguments(name, "--max-new", 150), ranks=ranks)
            job = subprocess.Popen(start, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            answers = lambda: sum(p.read_bytes().count(b"\n") - 1 for p in self.folder.glob(name + ".journal-*[0-9]"))  # not what is about to be renamed
            while answers() < 10:
                self.assertIsNone(job.poll(), "it ended before it was killed")
                time.sleep(0.002)
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    if words[0].endswith(b"/slipstream") and str(self.folder / name).encode() in words:
                        os.kill(int(folder.name), signal.SIGKILL)
                except OSError:  # it ended meanwhile
                    continue
            self.assertNotEqual(job.wait(timeout=60), 0)
            self.assertFalse((self.folder / name).exists())
            journal = sorted(self.folder.glob(name + ".journal-*"))[0]
            with open(journal, "ab") as f:
                f.write(b'{"document":99,"ids":[1,')  # cut in the middle of an answer
            self.assertIn("other settings", self.generate(name, "--max-new", 149, code=2).err)
            done = self.generate(name, "--max-new", 150, ranks=more)
            self.assertRegex(done.err, r"going on: \d\d of 100 answers")
            self.assertEqual((self.folder / name).read_bytes(), (self.folder / "whole.h5").read_bytes())

    def test_refusals(self):
        begins = write_shard(self.folder / "begins.h5", [([65, 66, 67], [1, 1, 1])], 272, 258)
        for code, part, options in [(3, "begins.h5", ["--prompts", begins]), (3, "absent", ["--drafter", "absent"]), (2, "--block", ["--block", 2]),
                                    (2, "--max-new", ["--max-new", 0]), (2, "no folder", ["--out", self.folder / "no/where.h5"])]:
            given = {"--target": TARGET, "--prompts": PROMPTS, "--out": self.folder / "x.h5", "--device": DEVICE}
            given.update(zip(options[::2], options[1::2]))
            done = run("generate", *[x for pair in given.items() for x in pair])
            with self.subTest(part):
                self.assertEqual((done.code, len(done.err.splitlines()), part in done.err), (code, 1, True), done)
                self.assertEqual(self.tree(), ["begins.h5"])



unittest.main(verbosity=2)
