"""The embedded documents: what the scripts of data/tiny say about them, checked against the files.

Run: python3 tests/data/test_tiny.py (a Python with h5py and numpy; some ten seconds).
"""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import h5py
except ImportError:
    if sys.executable == "/usr/bin/python3":
        raise
    os.execv("/usr/bin/python3", ["/usr/bin/python3", os.path.abspath(__file__)] + sys.argv[1:])

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data", "tiny")


def run(script, *arguments):
    return subprocess.run([sys.executable, os.path.join(TINY, script), *arguments], check=True, text=True,
                          capture_output=True, timeout=300)


def documents(path):
    with h5py.File(path, "r") as f:
        ids, mask, at = (f[n][:] for n in ("input_ids", "loss_mask", "doc_offsets"))
    return [(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in zip(at, at[1:])]


def questions(ids):
    text = b"".join(bytes([i]) if i < 256 else {256: b"\1", 257: b"\2"}[i] for i in ids)
    return [q.decode() for q in re.findall(b"\1user\n(.*?)\2\n", text, re.DOTALL)]


class Tiny(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def test_sizes(self):
        for name, count, tokens, supervised in (("train", 1400, 308998, 130963), ("heldout", 128, 28040, 11895)):
            made = documents(os.path.join(TINY, name + ".h5"))
            self.assertEqual(len(made), count)
            self.assertEqual(sum(len(i) for i, _ in made), tokens)
            self.assertEqual(sum(sum(m) for _, m in made), supervised)
            self.assertLessEqual(max(len(i) for i, _ in made), 288)
            # every document has at least 10 anchors: two consecutive supervised tokens
            self.assertGreaterEqual(min(sum(a and b for a, b in zip(m, m[1:])) for _, m in made), 10)

    def test_held_out_documents_are_not_in_training(self):
        train = {tuple(i) for i, _ in documents(os.path.join(TINY, "train.h5"))}
        self.assertFalse(train & {tuple(i) for i, _ in documents(os.path.join(TINY, "heldout.h5"))})

    def test_prompts_come_from_their_lines(self):
        with open(os.path.join(TINY, "prompts.jsonl"), encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        made = documents(os.path.join(TINY, "prompts.h5"))
        self.assertEqual([questions(i) for i, _ in made], [[x["messages"][0]["content"]] for x in lines])
        self.assertTrue(all(bytes(i[-10:]) == b"assistant\n" and not any(m) for i, m in made))
        with h5py.File(os.path.join(TINY, "prompts.h5"), "r") as f:
            names = list(f["family_names"].asstr())
            self.assertEqual([names[i] for i in f["family"][:]], [x["family"] for x in lines])
        self.assertEqual(collections.Counter(collections.Counter(x["family"] for x in lines).values()), {4: 23, 8: 1})

    def test_the_target_gives_the_stored_answers(self):
        """answer.py on the questions of the first held-out documents, token by token."""
        want = documents(os.path.join(TINY, "heldout.h5"))[:6]
        asked, out = os.path.join(self.folder, "q.jsonl"), os.path.join(self.folder, "a.jsonl")
        with open(asked, "w", encoding="utf-8") as f:
            for ids, _ in want:
                turns = [{"role": "user", "content": q} for q in questions(ids)]
                f.write(json.dumps({"messages": turns}) + "\n")
        run("answer.py", "--target", os.path.join(TINY, "target"), "--input", asked, "--out", out)
        with open(out, encoding="utf-8") as f:
            got = [json.loads(line) for line in f]
        self.assertEqual([(x["input_ids"], x["loss_mask"]) for x in got], want)

    def test_corpus(self):
        """All 23 families occur, documents fit, the same seed gives the same bytes."""
        out = [os.path.join(self.folder, n) for n in "ab"]
        said = [run("make_corpus.py", "--out", o, "--documents", "300").stderr for o in out]
        with open(out[0], "rb") as a, open(out[1], "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.assertNotIn("never occur", said[0])
        self.assertEqual(len(re.findall(r"[a-z]+ \d+(?:, |$)", said[0].split("questions: ")[1].strip())), 23)
        with open(out[0], encoding="utf-8") as f:
            pairs = [m for line in f for m in json.loads(line)["messages"]]
        sums = [re.fullmatch(r"(\d+) ([+-]) (\d+) = (\d+)\.", m["content"]) for m in pairs]
        sums = [m.groups() for m in sums if m]
        self.assertGreater(len(sums), 20)
        for a, sign, b, c in sums:
            self.assertEqual(int(a) + int(b) if sign == "+" else int(a) - int(b), int(c))


if __name__ == "__main__":
    unittest.main()
