"""data/prepare, run as a user runs it; its shards read back with h5py and with h5dump.

Run: python3 tests/data/test_prepare.py (a Python with h5py; Debian: /usr/bin/python3 with python3-h5py).
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zlib

try:
    import h5py
except ImportError:
    if sys.executable == "/usr/bin/python3":
        raise
    os.execv("/usr/bin/python3", ["/usr/bin/python3", os.path.abspath(__file__)] + sys.argv[1:])

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREPARE = os.path.join(ROOT, "data", "prepare")
TARGET = os.path.join(ROOT, "data", "tiny", "target")
START, END, NEWLINE = 256, 257, 10

# A stand-in for the package transformers: words are tokens; the template can be strict, or show the last answer
# differently from the others.
STUB = '''
class AutoTokenizer:
    mask_token_id, eos_token_id, pad_token_id, chat_template = 30, 3, None, None
    words = ["<unk>", "S", "U", "E", "A", "sys", "q1", "q2", "a1", "a2", "b1", "T"]
    added_tokens_decoder = {}
    @staticmethod
    def from_pretrained(folder, local_files_only):
        return AutoTokenizer()
    def get_vocab(self):
        return {w: i for i, w in enumerate(self.words)}
    def __call__(self, text, add_special_tokens):
        return {"input_ids": [self.words.index(w) for w in text.split()]}
    def apply_chat_template(self, messages, chat_template, tokenize, add_generation_prompt, **more):
        text = ""
        for i, m in enumerate(messages):
            if "strict" in chat_template and m["role"] == "system" and i > 0:
                raise ValueError("System message must come first")
            last = "thinking" in chat_template and m["role"] == "assistant" and i + 1 == len(messages)
            head = {"system": "S", "user": "U", "assistant": "A"}[m["role"]]
            text += head + (" T " if last else " ") + m["content"] + " E "
        return text + ("A " if add_generation_prompt else "")
'''


def header(role):
    return [START, *role.encode(), NEWLINE]


def turn(role, text):
    return header(role) + [*text.encode(), END, NEWLINE]


def anchors(mask):
    return [i for i in range(len(mask) - 1) if mask[i] and mask[i + 1]]


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = os.path.join(self.folder, "out.h5")

    def write(self, lines, name="in.jsonl"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.writelines((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
        return path

    def run_prepare(self, *arguments, env=None):
        return subprocess.run([PREPARE, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env={**os.environ, **(env or {})})

    def prepare(self, lines, *arguments, **more):
        """Runs on the lines, expects success, returns (documents as [(ids, mask)], attributes, stderr)."""
        done = self.run_prepare("--input", self.write(lines), "--out", self.out, *arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "")
        return (*self.read(), done.stderr)

    def refuse(self, code, lines, *arguments):
        """Runs on the lines, expects the exit code and no file, returns stderr."""
        done = self.run_prepare("--input", self.write(lines), "--out", self.out, *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual([n for n in os.listdir(self.folder) if n != "in.jsonl"], [])
        return done.stderr

    def read(self):
        with h5py.File(self.out, "r") as f:
            ids, mask, at = (f[n][:] for n in ("input_ids", "loss_mask", "doc_offsets"))
            self.assertEqual((ids.dtype, mask.dtype, at.dtype), ("<i4", "u1", "<i8"))
            for name in f:
                if name != "family_names":
                    self.assertEqual(f[name].attrs["crc32"], zlib.crc32(f[name][:].tobytes()), name)
            attributes = {k: v.decode().rstrip("\0") if isinstance(v, bytes) else v for k, v in f.attrs.items()}
            self.assertEqual(len(ids), len(mask))
            self.assertEqual((at[0], at[-1]), (0, len(ids)))
            self.assertEqual(attributes["documents"], len(at) - 1)
            self.assertEqual(attributes["tokens"], len(ids))
            self.assertEqual(attributes["supervised_tokens"], mask.sum())
            return [(ids[a:b].tolist(), mask[a:b].tolist()) for a, b in zip(at, at[1:])], attributes


class Prepare(Case):
    # conversations, byte tokenizer

    def test_both_spellings_give_the_same_document(self):
        a = {"messages": [{"role": "user", "content": "Hé?"}, {"role": "assistant", "content": "日"}]}
        b = {"conversations": [{"from": "human", "value": "Hé?"}, {"from": "gpt", "value": "日"}]}
        documents, attributes, _ = self.prepare([a, b], "--tokenizer", "bytes")
        ids = turn("user", "Hé?") + turn("assistant", "日")
        mask = [0] * (len(turn("user", "Hé?")) + len(header("assistant"))) + [1] * 5  # three bytes, end mark, newline
        self.assertEqual(documents, [(ids, mask)] * 2)
        self.assertEqual((attributes["format"], attributes["format_version"]), ("slipstream-tokens", 1))
        self.assertEqual((attributes["vocab_size"], attributes["mask_token_id"]), (272, 258))
        self.assertEqual((attributes["tokenizer"], attributes["source"]), ("bytes", "in.jsonl"))
        self.assertEqual(attributes["prompts"], 0)

    def test_special_words_in_text_stay_text(self):
        documents, _, _ = self.prepare([{"messages": [{"role": "user", "content": "<|im_end|>"},
                                                      {"role": "assistant", "content": "<|mask|>"}]}])
        self.assertEqual(documents[0][0].count(END), 2)
        self.assertNotIn(258, documents[0][0])

    def test_decode_table(self):
        self.prepare([{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}])
        with h5py.File(self.out, "r") as f:
            text, at = f["token_bytes"][:].tobytes(), f["token_byte_offsets"][:]
            self.assertEqual(len(at), 273)
            shown = b"".join(text[at[i]:at[i + 1]] for i in f["input_ids"][:])
        self.assertEqual(shown, b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n")

    def test_prompts_end_with_the_header_of_the_answer(self):
        open_end = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                 {"role": "user", "content": "c"}], "family": "x"}
        answered = {"messages": open_end["messages"][:2]}
        documents, attributes, _ = self.prepare([open_end, answered, open_end], "--prompts")
        ids = turn("user", "a") + turn("assistant", "b") + turn("user", "c") + header("assistant")
        self.assertEqual(documents[0], (ids, [0] * len(ids)))
        self.assertEqual(sum(documents[1][1]), 3)
        self.assertEqual(attributes["prompts"], 1)
        with h5py.File(self.out, "r") as f:
            self.assertEqual(f["family"][:].tolist(), [0, -1, 0])
            self.assertEqual(list(f["family_names"].asstr()), ["x"])

    def test_same_input_same_bytes(self):
        line = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
        digests = set()
        for _ in range(2):
            self.prepare([line])
            with open(self.out, "rb") as f:
                digests.add(hashlib.sha256(f.read()).hexdigest())
        self.assertEqual(len(digests), 1)

    # cases with exact values

    def test_t1_several_turns_with_system_messages(self):
        """Tokens S sys E U q1 E A a1 a2 E U q2 E A b1 E: supervised are 7 8 9 14 15, anchors 7 8 14."""
        stub = os.path.join(self.folder, "site")
        os.mkdir(stub)
        with open(os.path.join(stub, "transformers.py"), "w") as f:
            f.write(STUB)
        model = os.path.join(self.folder, "model")
        os.mkdir(model)
        for name, content in (("config.json", {"vocab_size": 32}), ("tokenizer.json", {}),
                              ("tokenizer_config.json", {"chat_template": "words"})):
            with open(os.path.join(model, name), "w") as f:
                json.dump(content, f)
        say = [("system", "sys"), ("user", "q1"), ("assistant", "a1 a2"), ("user", "q2"), ("assistant", "b1")]
        line = {"messages": [{"role": r, "content": c} for r, c in say]}
        second = {"messages": line["messages"][:3] + [{"role": "system", "content": "sys"}] + line["messages"][3:]}
        use, env = ("--tokenizer", model), {"PYTHONPATH": stub}
        documents, attributes, _ = self.prepare([line, second], *use, env=env)
        ids, mask = documents[0]
        self.assertEqual(ids, [1, 5, 3, 2, 6, 3, 4, 8, 9, 3, 2, 7, 3, 4, 10, 3])
        self.assertEqual([i for i, m in enumerate(mask) if m], [7, 8, 9, 14, 15])
        self.assertEqual(anchors(mask), [7, 8, 14])
        self.assertEqual(documents[1][1], [0] * 7 + [1] * 3 + [0] * 3 + [0] * 4 + [1] * 2)
        self.assertEqual((attributes["vocab_size"], attributes["mask_token_id"]), (32, 30))
        self.assertEqual(attributes["tokenizer"], "model")

        template = os.path.join(self.folder, "template")
        with open(template, "w") as f:
            f.write("strict")
        documents, attributes, said = self.prepare([line, second], *use, "--template", template, env=env)
        self.assertEqual((documents, attributes["skipped_conversations"]), ([(ids, mask)], 1))
        self.assertIn("in.jsonl:2: skipped: the template refuses it: System message must come first", said)

        with open(template, "w") as f:
            f.write("thinking")  # the last answer is shown with a T: one document per answer, each as a server sees it
        documents, attributes, _ = self.prepare([line], *use, "--template", template, env=env)
        self.assertEqual(documents, [([1, 5, 3, 2, 6, 3, 4, 11, 8, 9, 3], [0] * 7 + [1] * 4),
                                     ([1, 5, 3, 2, 6, 3, 4, 8, 9, 3, 2, 7, 3, 4, 11, 10, 3], [0] * 14 + [1] * 3)])
        self.assertEqual(attributes["expanded_conversations"], 1)

    def test_t1_with_bytes(self):
        pieces = [(header("system"), 0), ([*b"sys", END, NEWLINE], 0), (header("user"), 0), ([*b"q1", END, NEWLINE], 0),
                  (header("assistant"), 0), ([*b"a1 a2", END, NEWLINE], 1), (header("user"), 0),
                  ([*b"q2", END, NEWLINE], 0), (header("assistant"), 0), ([*b"b1", END, NEWLINE], 1)]
        say = [("system", "sys"), ("user", "q1"), ("assistant", "a1 a2"), ("user", "q2"), ("assistant", "b1")]
        documents, _, _ = self.prepare([{"messages": [{"role": r, "content": c} for r, c in say]}])
        self.assertEqual(documents, [(sum((p for p, _ in pieces), []), sum(([m] * len(p) for p, m in pieces), []))])

    def test_t3_odd_rows(self):
        good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
        early = {"messages": [{"role": "assistant", "content": "hello"}] + good["messages"]}
        named = {"messages": [good["messages"][0], {"role": "my_model", "content": "a"}]}
        documents, attributes, said = self.prepare([good, early, named])
        self.assertEqual(documents[0], documents[1])
        self.assertEqual(len(documents), 2)
        self.assertEqual((attributes["mapped_conversations"], attributes["skipped_conversations"]), (1, 1))
        self.assertEqual(said.count("in.jsonl:2: mapped"), 1)
        self.assertEqual(said.count('in.jsonl:3: skipped: unknown role "my_model"'), 1)
        documents, _, _ = self.prepare([good, early, named], "--role", "my_model=assistant")
        self.assertEqual(documents, [documents[0]] * 3)

    def test_t4_validator(self):
        good = {"id": "a", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}
        lines = [good,
                 {"id": "b", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 2]},
                 {"id": "c", "input_ids": [1, -2, 3], "loss_mask": [0, 1, 1]},
                 {"id": "d", "input_ids": [1, 2, 300], "loss_mask": [0, 1, 1]},
                 {"id": "e", "input_ids": [1] * 10, "loss_mask": [1] * 9},
                 {"id": "f", "input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]},
                 {"id": "a", "input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}]
        need = ("--vocab-size", 300, "--mask-token", 299)
        said = self.refuse(3, lines, *need)
        for row, text in ((2, "loss_mask[2] is 2"), (3, "input_ids[1] is -2, below 0"),
                          (4, "input_ids[2] is 300, vocab_size is 300"), (5, "10 vs 9"),
                          (6, "no two consecutive supervised tokens"), (7, 'duplicate id "a"')):
            self.assertRegex(said, rf"in\.jsonl:{row}: [^\n]*{text.replace('[', chr(92) + '[')}")
        self.assertIn("5 bad lines", said)
        documents, attributes, _ = self.prepare(lines, *need, "--skip-bad")
        self.assertEqual(documents, [([1, 2, 3], [0, 1, 1])])
        self.assertEqual((attributes["bad_lines"], attributes["dropped_no_supervision"]), (5, 1))

    def test_a1_truncation_removes_the_whole_answer(self):
        cut = {"input_ids": list(range(14)), "loss_mask": [0] * 10 + [1] * 4}
        fine = {"input_ids": list(range(8)), "loss_mask": [0] * 4 + [1] * 4}
        need = ("--vocab-size", 16, "--mask-token", 15, "--max-length", 8)
        documents, attributes, said = self.prepare([fine, fine, cut, fine, fine], *need)
        self.assertEqual(len(documents), 4)
        self.assertEqual(attributes["dropped_no_supervision"], 1)
        self.assertIn("in.jsonl:3: dropped: no two consecutive supervised tokens", said)
        os.unlink(self.out)
        said = self.refuse(3, [cut], *need)
        self.assertIn("no document left (1 dropped no supervision; 1 truncated documents)", said)

    def test_b8_padded_vocabulary(self):
        """16 rows: id 15 is fine though no text has it, id 16 is refused with line and position."""
        line = {"input_ids": [2, 12, 15], "loss_mask": [0, 1, 1]}
        need = ("--vocab-size", 16, "--mask-token", 15)
        documents, attributes, _ = self.prepare([line], *need)
        self.assertEqual(documents, [([2, 12, 15], [0, 1, 1])])
        self.assertEqual(attributes["mask_tokens_in_text"], 1)
        os.unlink(self.out)
        said = self.refuse(3, [line, {"input_ids": [2, 16], "loss_mask": [1, 1]}], *need)
        self.assertIn("in.jsonl:2: bad line: input_ids[1] is 16, vocab_size is 16", said)
        for mask in (16, -1):
            self.assertIn("16 rows", self.refuse(2, [line], "--vocab-size", 16, "--mask-token", mask))

    def test_f9_unicode_and_spaces_in_paths(self):
        folder = os.path.join(self.folder, "模型 ø", "日本 語")
        os.makedirs(folder)
        source, out = os.path.join(folder, "fråga 1.jsonl"), os.path.join(folder, "長" * 60 + "x" * 17 + ".h5")
        line = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
        shutil.copy(self.write([line]), source)
        self.assertEqual(len(os.path.basename(out).encode()), 200)
        done = self.run_prepare("--input", source, "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(out, done.stderr)
        with h5py.File(out, "r") as f:
            self.assertEqual(f.attrs["source"].decode(), "fråga 1.jsonl")

    # the file

    def test_read_by_h5dump(self):
        self.prepare([{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}], "--vocab-size", 9, "--mask-token", 8)
        if not shutil.which("h5dump"):
            self.skipTest("no h5dump here (hdf5-tools)")
        shown = subprocess.run(["h5dump", "-p", "-d", "/input_ids", "-a", "/format", self.out],
                               capture_output=True, text=True)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        for part in ("H5T_STD_I32LE", "COMPRESSION DEFLATE { LEVEL 4 }", "(0): 5, 6, 7", '"slipstream-tokens"'):
            self.assertIn(part, shown.stdout)

    def test_many_documents_in_order_over_several_chunks(self):
        lines = [{"input_ids": [i % 97, i // 97 % 97] + [i % 7] * (i % 50), "loss_mask": [1, 1] + [0] * (i % 50)}
                 for i in range(9000)]
        documents, _, _ = self.prepare(lines, "--vocab-size", 100, "--mask-token", 99)
        self.assertGreater(sum(len(i) for i, _ in documents), 3 * 65536)
        self.assertEqual(documents, [(x["input_ids"], x["loss_mask"]) for x in lines])

    def test_full_disk_leaves_nothing(self):
        """Files may not grow past some KiB here: exit code 1, one line with path and sizes, the old file stays."""
        self.prepare([{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}], "--vocab-size", 9, "--mask-token", 8)
        before = os.path.getsize(self.out)
        path = self.write([{"input_ids": [1, 2], "loss_mask": [1, 1]}])
        command = f'ulimit -f 4; exec "{PREPARE}" --input "{path}" --out "{self.out}" --vocab-size 9 --mask-token 8'
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"^data/prepare: .*out\.h5\.partial: File too large: \d+ bytes needed, \d+ free")
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.jsonl", "out.h5"])
        self.assertEqual(os.path.getsize(self.out), before)

    # wrong usage and bad input

    def test_usage(self):
        ids = [{"input_ids": [1, 2], "loss_mask": [1, 1]}]
        self.assertIn("need --vocab-size and --mask-token", self.refuse(2, ids))
        self.assertIn("--nonsense", self.refuse(2, ids, "--nonsense"))
        for options, said in ((("--max-lenght", 5), "data/prepare: unknown option --max-lenght; the nearest is --max-length ("),
                              (("--max-length", "x"), "argument --max-length: invalid int value: 'x' (")):
            self.assertRegex(self.refuse(2, ids, *options), f"(?s)^[^\n]*{re.escape(said)}[^\n]*\n$")
        self.assertIn("negative", self.refuse(2, ids, "--max-length", -1))
        self.assertIn("--role", self.refuse(2, ids, "--role", "x"))
        done = self.run_prepare("--input", self.write(ids), "--out", os.path.join(self.folder, "no", "x.h5"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("does not exist", done.stderr)

    def test_missing_files(self):
        done = self.run_prepare("--input", os.path.join(self.folder, "no.jsonl"), "--out", self.out)
        self.assertEqual(done.returncode, 3)
        self.assertIn("no.jsonl: No such file", done.stderr)
        path = self.write([{"messages": []}])
        done = self.run_prepare("--input", path, "--out", self.out, "--tokenizer", self.folder + "/no")
        self.assertEqual(done.returncode, 3)
        self.assertIn("no such folder", done.stderr)

    def test_bad_lines_are_named(self):
        good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
        for line, text in (('{"messages": [', "not JSON"), ("[1]", "a line is an object, found list"),
                           ({"x": 1}, "neither"),
                           ({"messages": [{"role": "user"}]}, "message 0 has no text"),
                           ({"messages": ["q"]}, "message 0 is an object, found str"),
                           ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "not Unicode text"),
                           ({"input_ids": [1], "loss_mask": [1]}, "holds tokens, the first line held conversations")):
            self.assertRegex(self.refuse(3, [good, "", line]), rf"in\.jsonl:3: bad line: .*{text}")
        need = ("--vocab-size", 9, "--mask-token", 8)
        for line, text in (({"input_ids": [1.5, 2], "loss_mask": [1, 1]}, r"input_ids\[0\] is 1.5, not a whole number"),
                           ({"input_ids": [1, True], "loss_mask": [1, 1]}, r"input_ids\[1\] is true"),
                           ({"input_ids": "12", "loss_mask": [1, 1]}, "input_ids is a list, found str"),
                           ({"input_ids": [1, 2]}, "input_ids without loss_mask"),
                           ({"input_ids": [1, 10**30], "loss_mask": [1, 1]},
                            r"input_ids\[1\] is 10{30}, vocab_size is 9")):
            self.assertRegex(self.refuse(3, [line], *need), rf"in\.jsonl:1: bad line: {text}")

    def test_conversation_id_outside_the_vocabulary(self):
        said = self.refuse(3, [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}],
                           "--tokenizer", "bytes", "--vocab-size", 257, "--mask-token", 0)
        self.assertIn("in.jsonl:1: bad line: token[7] is 257, vocab_size is 257", said)

    def test_python_without_h5py(self):
        """A python3 first on PATH that lacks h5py: the tool finds the system's."""
        site = os.path.join(self.folder, "site")
        os.mkdir(site)
        with open(os.path.join(site, "python3"), "w") as f:  # -S -E: no site-packages
            f.write('#!/bin/bash\nexec -a "$0" /usr/bin/python3 -S -E "$@"\n')
        os.chmod(os.path.join(site, "python3"), 0o755)
        self.prepare([{"input_ids": [5, 6], "loss_mask": [1, 1]}], "--vocab-size", 9, "--mask-token", 8,
                     env={"PATH": site + ":" + os.environ["PATH"]})


def conversations(count, words=40):
    return [{"messages": [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": f"answer {i * i} " * (1 + i % words)}],
             "family": "even" if i % 2 == 0 else "odd"} for i in range(count)]


class Whole(Case):
    """What concerns all lines together."""

    def test_any_number_of_jobs_writes_the_same_bytes(self):
        lines = conversations(500) + [{"messages": [{"role": "system", "content": "nobody asks"}]}] * 3
        seen = []
        for jobs in (1, 2, 3):
            _, attributes, said = self.prepare(lines, "--jobs", jobs)
            self.assertEqual((attributes["documents"], attributes["skipped_conversations"]), (500, 3))
            with open(self.out, "rb") as f:
                seen.append((f.read(), said.partition("\n" + self.out)[0]))
        self.assertEqual(seen[0], seen[1])
        self.assertEqual(seen[0], seen[2])

    def test_bad_lines_under_any_number_of_jobs(self):
        lines = [{**c, "id": i} for i, c in enumerate(conversations(200))]
        lines[150]["id"] = 20
        lines[60] = {"messages": 3}
        said = {self.refuse(3, lines, "--jobs", jobs) for jobs in (1, 3)}
        self.assertEqual(len(said), 1)
        self.assertRegex(said.pop(), r"(?s)in\.jsonl:61: bad line: .*in\.jsonl:151: bad line: duplicate id 20, first at \S+in\.jsonl:21\n.*2 bad lines")

    def test_held_out(self):
        aside = os.path.join(self.folder, "aside.h5")
        lines = conversations(400) + conversations(400)  # each twice: both go the same way
        kept, attributes, said = self.prepare(lines, "--held-out", aside, "--held-out-share", 0.2)
        with h5py.File(aside, "r") as f:
            at, ids = f["doc_offsets"][:], f["input_ids"][:]
            self.assertEqual(f.attrs["documents"] + attributes["documents"], 800)
            self.assertEqual(sorted(set(f["family"][:])), [0, 1])
        other = [ids[a:b].tolist() for a, b in zip(at, at[1:])]
        self.assertTrue(100 < len(other) < 220, len(other))
        self.assertEqual([x for x in other if x in [i for i, _ in kept]], [])
        self.assertIn(f"{aside}: {len(other)} documents", said)
        again = self.prepare(list(reversed(lines)), "--held-out", aside, "--held-out-share", 0.2)[0]
        self.assertEqual(sorted(again), sorted(kept))  # content decides, not the order

    def test_duplicates(self):
        documents, attributes, said = self.prepare(conversations(20) + conversations(25), "--drop-duplicates")
        self.assertEqual((len(documents), attributes["dropped_duplicates"]), (25, 20))
        self.assertIn("in.jsonl:21: dropped: the same tokens and mask as a document before", said)
        self.assertEqual(len(self.prepare(conversations(20) + conversations(25))[0]), 45)  # nothing is removed unless asked

    def test_show(self):
        done = self.run_prepare("--input", self.write(conversations(3)), "--out", self.out, "--show", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        path = os.path.join(self.folder, "in.jsonl")
        self.assertEqual(done.stdout, f"---- {path}:1\n<|im_start|>user\nquestion 0<|im_end|>\n<|im_start|>assistant\n[[answer 0 <|im_end|>\n]]\n"
                         f"---- {path}:2\n<|im_start|>user\nquestion 1<|im_end|>\n<|im_start|>assistant\n[[answer 1 answer 1 <|im_end|>\n]]\n")

    def test_summary(self):
        lines = [{"input_ids": [1] * n, "loss_mask": [1] * n} for n in (3000, 1000, 2000, 2000, 5000)]
        said = self.prepare(lines, "--vocab-size", 4, "--mask-token", 3)[2]
        self.assertIn("length 1000 to 5000, mean 2600; 10 % up to 1000, 50 % up to 2000", said)
        self.assertIn("2 rows of 4096 tokens, 97.7 % full; 1 documents are longer", said)


if __name__ == "__main__":
    unittest.main()
