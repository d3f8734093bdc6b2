"""Tokenizers: encode a conversation to pieces, know their rows, their mask token and their decode table."""
import hashlib
import itertools
import json
import os
import sys

from .errors import BadInput, Skip, Usage

BYTE_SPECIALS = ["<|im_start|>", "<|im_end|>", "<|mask|>", "<|pad|>", "<|endoftext|>"]  # ids 256...
BYTE_ROWS = 272
BYTE_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


class ByteTokenizer:
    """Ids 0-255 are bytes; ChatML frame. Text never turns into a special token."""
    name = "bytes"
    sha256 = hashlib.sha256(b"slipstream-bytes-1").hexdigest()
    template_sha256 = hashlib.sha256(BYTE_TEMPLATE.encode()).hexdigest()
    rows, mask, aliases = BYTE_ROWS, 258, {257: "end of turn", 259: "padding", 260: "end of text"}

    def documents(self, messages, open_end, _tools):
        """One (ids, mask): an assistant's text, its end mark and the newline are supervised. With open_end
        the header of the next answer follows and nothing is: the whole is a prompt."""
        ids, mask = [], []
        for m in messages:
            head = [256, *m["role"].encode(), 10]
            body = [*m["content"].encode(), 257, 10]
            ids += head + body
            mask += [0] * len(head) + [int(m["role"] == "assistant")] * len(body)
        if open_end:
            ids += [256, *b"assistant\n"]
        return [(ids, [0] * len(ids) if open_end else mask)]

    def table(self):
        return [bytes([b]) for b in range(256)] + [s.encode() for s in BYTE_SPECIALS]


class FolderTokenizer:
    """A Hugging Face folder, through transformers or, without it, tokenizers and jinja2. Where an answer starts is
    found by rendering what a server renders: before it lies what the prompt alone has in common with the whole."""

    def __init__(self, folder, template_file, template_args):
        self.folder, self.args = folder, template_args
        self.name = os.path.basename(os.path.abspath(folder))
        if not os.path.isdir(folder):
            raise BadInput(f"{folder}: no such folder (--tokenizer takes a folder or the word bytes)")
        config = self.read_json("config.json")
        self.rows = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        settings = self.read_json("tokenizer_config.json")
        template = self.find_template(settings, template_file)
        try:
            self.load_transformers(template)
        except ImportError:
            self.load_tokenizers(settings, template)
        if not self.template:
            raise BadInput(f"{folder}: no chat template in tokenizer_config.json or chat_template.jinja "
                           "(--template FILE gives one)")
        self.template_sha256 = hashlib.sha256(self.template.encode()).hexdigest()
        names = ["tokenizer.json"] if self.has("tokenizer.json") else sorted(
            n for n in os.listdir(folder) if n in ("vocab.json", "merges.txt", "tokenizer.model", "vocab.txt"))
        digest = hashlib.sha256()
        for n in names:
            with open(os.path.join(folder, n), "rb") as f:
                digest.update(f.read())
        self.sha256 = digest.hexdigest()

    def has(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    def read_json(self, name):
        if not self.has(name):
            return {}
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as f:
                return json.load(f)
        except ValueError as e:
            raise BadInput(f"{os.path.join(self.folder, name)}: not JSON: {e}") from None

    def find_template(self, settings, template_file):
        path = template_file
        if not path and self.has("chat_template.jinja"):
            path = os.path.join(self.folder, "chat_template.jinja")
        if path:
            try:
                with open(path, encoding="utf-8") as f:
                    return f.read()
            except OSError as e:
                raise BadInput(f"{path}: {e.strerror}") from None
        template = settings.get("chat_template")
        if isinstance(template, list):  # several named ones
            template = {t["name"]: t["template"] for t in template}.get("default")
        return template

    def load_transformers(self, template):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer
        try:
            tok = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as e:
            first = str(e).splitlines()[0]
            raise BadInput(f"{self.folder}: transformers cannot load the tokenizer: {first}") from None
        self.template = template or getattr(tok, "chat_template", None)
        self.encode = lambda text: list(tok(text, add_special_tokens=False)["input_ids"])
        self.render = lambda messages, **more: tok.apply_chat_template(
            messages, chat_template=self.template, tokenize=False, **more, **self.args)
        self.mask, self.vocab = tok.mask_token_id, dict(tok.get_vocab())
        self.special = {int(i): str(t) for i, t in tok.added_tokens_decoder.items()}
        self.aliases = {tok.eos_token_id: "end of text", tok.pad_token_id: "padding"}
        backend = getattr(tok, "backend_tokenizer", None)
        self.byte_level = backend is not None and "ByteLevel" in backend.to_str()

    def load_tokenizers(self, settings, template):
        try:
            from jinja2.exceptions import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
            from tokenizers import Tokenizer
        except ImportError as e:
            raise Usage(f"--tokenizer {self.folder} needs the Python package transformers, or tokenizers and jinja2, "
                        f"in {sys.executable}: {e}") from None
        path = os.path.join(self.folder, "tokenizer.json")
        try:
            tok = Tokenizer.from_file(path)
        except Exception as e:  # the package raises plain Exception
            raise BadInput(f"{path}: {e}") from None

        def refuse(text):
            raise TemplateError(text)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = refuse
        compiled = environment.from_string(template or "")

        def text_of(name):
            value = settings.get(name)
            return value["content"] if isinstance(value, dict) else value

        names = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
        tokens = {n: text_of(n) for n in names if text_of(n)}
        self.template = template
        self.encode = lambda text: tok.encode(text, add_special_tokens=False).ids
        self.render = lambda messages, **more: compiled.render(messages=messages, **tokens, **more, **self.args)
        self.vocab = tok.get_vocab()
        self.mask = self.vocab.get(tokens.get("mask_token"))
        self.special = {int(i): t.content for i, t in tok.get_added_tokens_decoder().items()}
        self.aliases = {self.vocab.get(tokens.get("eos_token")): "end of text",
                        self.vocab.get(tokens.get("pad_token")): "padding"}
        self.byte_level = "ByteLevel" in tok.to_str()

    def documents(self, messages, open_end, tools):
        """One (ids, mask), or one per answer where the template shows earlier answers differently from the last."""
        more = {"tools": tools} if tools else {}

        def show(upto, ask):
            try:
                return self.render(messages[:upto], add_generation_prompt=ask, **more)
            except Exception as e:  # TemplateError of jinja2, which may be absent, or the template's own mistake
                reason = (str(e) or type(e).__name__).splitlines()[0]
                raise Skip(f"the template refuses it: {reason}") from None

        whole = show(len(messages), open_end)
        if open_end:
            ids = self.encode(whole)
            return [(ids, [0] * len(ids))]
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        through = [show(i + 1, False) for i in answers]
        prompts = [show(i, True) for i in answers]
        if all(whole.startswith(t) for t in through):
            ids = self.encode(whole)
            mask = [0] * len(ids)
            for text, prompt in zip(through, prompts):
                self.supervise(ids, mask, self.encode(text), self.encode(prompt))
            return [(ids, mask)]
        documents = []
        for text, prompt in zip(through, prompts):
            ids = self.encode(text)
            mask = [0] * len(ids)
            self.supervise(ids, mask, ids, self.encode(prompt))
            documents.append((ids, mask))
        return documents

    @staticmethod
    def supervise(ids, mask, through, prompt):
        start, end = common_prefix(ids, prompt), common_prefix(ids, through)
        mask[start:end] = [1] * max(end - start, 0)

    def table(self):
        """Bytes of every id; byte-level vocabularies spell a byte as one printable character."""
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        spelled = {chr(b): b for b in plain}
        spelled.update({chr(0x100 + i): b for i, b in enumerate(b for b in range(256) if b not in set(plain))})
        table = [b""] * (1 + max(itertools.chain(self.vocab.values(), self.special)))
        for word, i in self.vocab.items():
            if i in self.special:
                continue
            if self.byte_level and all(c in spelled for c in word):
                table[i] = bytes(spelled[c] for c in word)
            elif len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
                table[i] = bytes([int(word[3:5], 16)])
            else:
                table[i] = word.replace("\u2581", " ").encode("utf-8", "replace")
        for i, word in self.special.items():
            table[i] = word.encode("utf-8", "replace")
        return table


def common_prefix(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
