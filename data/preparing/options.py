"""The command line, and what follows from it and the input: kind of lines, tokenizer, rows, mask token."""
import argparse
import difflib
import json
import os
import sys

from .errors import BadLine, Usage
from .lines import parsed, read_lines
from .talk import Progress
from .tokenizers import ByteTokenizer, FolderTokenizer

ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool",
         "human": "user", "gpt": "assistant"}


class Parser(argparse.ArgumentParser):
    """One line for what is wrong, and the nearest option to a misspelt one."""

    def parse_args(self, argv):
        known = [s for action in self._actions for s in action.option_strings]
        for word in argv:
            name = word.split("=")[0]
            if name.startswith("--") and name != "--" and name not in known:
                near = difflib.get_close_matches(name, known, 1)
                self.error(f"unknown option {name}" + (f"; the nearest is {near[0]}" if near else ""))
        return super().parse_args(argv)

    def error(self, message):
        raise Usage(f"{message} (data/prepare --help shows the options)")


def parse_options(argv, about):
    p = Parser(prog="data/prepare", description=about, allow_abbrev=False,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--input", nargs="+", action="extend", required=True, metavar="FILE.jsonl")
    p.add_argument("--out", required=True, metavar="FILE.h5")
    p.add_argument("--tokenizer", metavar="DIR|bytes",
                   help="a Hugging Face folder, or the built-in byte tokenizer (default for conversations)")
    p.add_argument("--vocab-size", type=int, metavar="V",
                   help="rows of the target's embedding; default: config.json in DIR, 272 for bytes")
    p.add_argument("--mask-token", type=int, metavar="ID", help="default: the tokenizer's mask token, 258 for bytes")
    p.add_argument("--max-length", type=int, default=0, metavar="N", help="cut documents to N tokens (0: do not)")
    p.add_argument("--prompts", action="store_true",
                   help="keep documents without supervised tokens; a conversation that ends with a question becomes "
                        "one, with the header of the answer at its end")
    p.add_argument("--role", action="append", default=[], metavar="NAME=ROLE",
                   help="read role NAME as system, user, assistant or tool")
    p.add_argument("--template", metavar="FILE", help="a Jinja chat template instead of the folder's")
    p.add_argument("--template-args", type=json.loads, default={}, metavar="JSON",
                   help='for example {"enable_thinking": false}')
    p.add_argument("--drop-duplicates", action="store_true",
                   help="keep the first of documents with the same tokens and mask")
    p.add_argument("--held-out", metavar="FILE.h5", help="write a share of the documents there instead, for eval.tokens")
    p.add_argument("--held-out-share", type=float, default=0.01, metavar="SHARE",
                   help="of --held-out, 0.01 unless told; a document's content decides, so equal ones stay together")
    p.add_argument("--show", type=int, default=0, metavar="N",
                   help="print the first N documents, what is trained in green (between [[ ]] where output is no terminal)")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                   help="processes that render and tokenize; the shard is the same for any number")
    p.add_argument("--skip-bad", action="store_true",
                   help="leave out and count lines that break the rules, instead of exit code 3")
    o = p.parse_args(argv)
    o.roles = dict(ROLES)
    for pair in o.role:
        name, _, role = pair.partition("=")
        if role not in ("system", "user", "assistant", "tool"):
            raise Usage(f"--role {pair}: expected NAME=ROLE with system, user, assistant or tool")
        o.roles[name] = role
    if o.max_length < 0:
        raise Usage(f"--max-length {o.max_length}: negative")
    if not isinstance(o.template_args, dict):
        raise Usage("--template-args is a JSON object")
    if o.tokenizer == "bytes" and (o.template or o.template_args):
        raise Usage("--template and --template-args need --tokenizer DIR")
    folder = os.path.dirname(os.path.abspath(o.out))
    if not os.path.isdir(folder):
        raise Usage(f"--out {o.out}: the folder {folder} does not exist")
    if os.path.isdir(o.out):
        raise Usage(f"--out {o.out}: is a folder")
    if not 0 < o.held_out_share < 1:
        raise Usage(f"--held-out-share {o.held_out_share}: not between 0 and 1")
    if o.held_out and os.path.abspath(o.held_out) == os.path.abspath(o.out):
        raise Usage(f"--held-out {o.held_out}: is --out")
    if o.held_out and not os.path.isdir(os.path.dirname(os.path.abspath(o.held_out))):
        raise Usage(f"--held-out {o.held_out}: its folder does not exist")
    if o.jobs < 1:
        raise Usage(f"--jobs {o.jobs}: at least 1")
    return o


def first_kind(options):
    """What the first readable line of the input holds: "tokens" or "conversations"."""
    silent = Progress(0)
    silent.last = float("inf")
    for path in options.input:
        for _, raw in read_lines(path, silent):
            try:
                return "tokens" if "input_ids" in parsed(raw) else "conversations"
            except BadLine:
                continue
    return "conversations"


def settle(options, kind):
    """Tokenizer, rows and mask token: given, or the tokenizer's, or an error that says what to give."""
    t = options.tokenizer
    if t is None and kind == "tokens" and (options.vocab_size is None or options.mask_token is None):
        raise Usage("lines of input_ids need --vocab-size and --mask-token")
    if t is None and kind == "tokens":
        options.tokenizer = None
    elif t in (None, "bytes"):
        options.tokenizer = ByteTokenizer()
    else:
        options.tokenizer = FolderTokenizer(t, options.template, options.template_args)
    known = options.tokenizer
    if options.vocab_size is None:
        options.vocab_size = known.rows
    if options.mask_token is None:
        options.mask_token = known.mask
    if options.vocab_size is None:
        raise Usage(f"{t}: no config.json with vocab_size: give --vocab-size")
    if options.mask_token is None:
        raise Usage(f"{t}: the tokenizer has no mask token: give --mask-token, "
                    f"an unused row below {options.vocab_size}")
    if not 0 < options.vocab_size <= 2**31 - 1:
        raise Usage(f"--vocab-size {options.vocab_size}: out of range")
    if not 0 <= options.mask_token < options.vocab_size:
        raise Usage(f"--mask-token {options.mask_token}: outside 0..{options.vocab_size - 1}, "
                    f"the vocabulary has {options.vocab_size} rows")
    if known and options.mask_token in known.aliases:
        print(f"warning: mask token {options.mask_token} is also {known.aliases[options.mask_token]}", file=sys.stderr)
