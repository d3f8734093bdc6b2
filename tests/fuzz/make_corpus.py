#!/usr/bin/env python3
"""Writes the small valid files that the corpus begins with. What a fuzzer found since lies beside them."""
import json
import pathlib
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"


def safetensors(path, tensors, metadata=None):
    """tensors: (name, dtype, shape, bytes) in file order."""
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors))


def step_case(path):
    h, inter, layers, heads, kv, d, vocab, taps, tokens = 2, 2, 1, 1, 1, 2, 4, 1, 4
    case = {"S": tokens, "block_size": 2, "num_hidden_layers": layers, "target_layer_ids": [0], "num_attention_heads": heads,
            "num_key_value_heads": kv, "head_dim": d, "intermediate_size": inter, "hidden_size": h, "vocab_size": vocab, "mask_token_id": 3,
            "rope_theta": 1e4, "sliding_window": 2, "layer_types": ["sliding_attention"], "loss_type": "dflash", "label_mask": "prefix"}
    layer = {"self_attn.k_proj": [kv * d, h], "self_attn.v_proj": [kv * d, h], "input_layernorm": [h], "self_attn.q_proj": [heads * d, h],
             "self_attn.o_proj": [h, heads * d], "self_attn.q_norm": [d], "self_attn.k_norm": [d], "post_attention_layernorm": [h],
             "mlp.gate_proj": [inter, h], "mlp.up_proj": [inter, h], "mlp.down_proj": [h, inter]}
    weights = {"fc": [h, taps * h], "hidden_norm": [h], "norm": [h], **{f"layers.0.{k}": v for k, v in layer.items()}}
    count = lambda shape: shape[0] * (shape[1] if len(shape) > 1 else 1)  # noqa: E731
    bf16 = [(f"w.{k}.weight", "BF16", s, b"\x80\x3f" * count(s)) for k, s in weights.items()]
    safetensors(path, [("in.features", "F32", [tokens, taps * h], b"\0\0\x80\x3f" * tokens * taps * h),
                       ("in.input_ids", "I32", [tokens], struct.pack("<4i", 0, 1, 2, 3)), ("in.anchors", "I32", [1], struct.pack("<i", 1)),
                       ("in.embed_tokens.weight", "BF16", [vocab, h], b"\x80\x3f" * vocab * h),
                       ("in.lm_head.weight", "BF16", [vocab, h], b"\x80\x3f" * vocab * h), *bf16,
                       ("in.loss_mask", "U8", [tokens], b"\1" * tokens)], {"case": json.dumps(case)})


safetensors(CORPUS / "safetensors/two", [("a", "F32", [2, 2], bytes(16)), ("b", "BF16", [3], bytes(6)), ("s", "F16", [], bytes(2)),
                                         ("n", "F64", [0, 4], b""), ("i", "U8", [2], b"ab")], {"format": "pt"})
safetensors(CORPUS / "safetensors/sub_byte", [("f4", "F4", [2, 3], bytes(3)), ("f8", "F8_E4M3", [3], bytes(3))])
files = {"a": "a.safetensors", "b": "b.safetensors"}
(CORPUS / "weight_index/good").write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": files}))
(CORPUS / "weight_index/outside").write_text(json.dumps({"weight_map": {**files, "outside": "../outside.safetensors"}}))
for name in ("tiny-qwen3", "tiny-llama", "tiny-drafter"):
    shutil.copy(ROOT / f"tests/golden/{name}/config.json", CORPUS / "model_config" / name)
(CORPUS / "run_config/good").write_text("[target]\npath = t\n[drafter]\nconfig = d.json\n[data]\ntokens = *.h5 # a\n[train]\n"
                                        "steps = 10\nlr = 1e-3\nloss = dpace\n[checkpoint]\nevery_steps = 5\n[log]\ndir = runs/a b\n")
changes = {"none": [], "number": [4, 0, 0, 250], "id": [0, 0, 1, 30, 240], "mask": [0, 0, 2, 25, 2], "offsets": [0, 0, 3, 26, 9],
           "left_out": [0, 0, 4, 1], "type": [0, 0, 5, 2], "text": [0, 0, 6, 1], "crc": [0, 0, 7, 5], "table": [0, 0, 10, 30, 3]}
for name, bytes_of in changes.items():
    (CORPUS / "token_shard" / name).write_bytes(bytes(bytes_of))
# kind of shard, then changes: which, how
changes = {"all": [0], "supervised": [1], "uint16": [2], "deflate": [3], "taps": [0, 13, 4, 2, 0, 250], "hidden": [0, 14, 1, 240],
           "text_for_number": [1, 10, 5, 6], "left_out": [0, 99, 0], "offsets": [0, 100, 40, 25, 5, 210], "same_id": [0, 102, 40, 25, 0, 210],
           "sums_left_out": [2, 103, 0, 210], "features_unwritten": [0, 180, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
           "features_huge": [0, 180, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], "contiguous": [0, 180, 0, 0, 0, 0, 0, 0, 0, 230, 0, 0, 9],
           "cut": [3, 128, 255]}
for name, bytes_of in changes.items():
    (CORPUS / "feature_shard" / name).write_bytes(bytes(bytes_of))
text = {"target", "architecture", "target_fingerprint", "dtype", "precision", "rope_type", "tokenizer_sha256", "template_sha256", "span", "bf16",
        "compress", "source", "writer"}
spec = ["target", "architecture", "target_fingerprint", "target_layers", "taps", "hidden", "dtype", "precision", "final_norm_applied", "rope_theta",
        "rope_type", "tokenizer_sha256", "template_sha256", "vocab_size", "mask_token_id", "span", "bf16", "compress", "seed", "shuffle",
        "row_tokens", "max_length", "corpus_documents", "corpus_tokens", "source", "writer"]
dump = {name: "x" if name in text else [0, 2] if name == "taps" else 1 for name in spec}
shard = {"name": "features-000000.h5", "bytes": 8, "documents": 1, "tokens": 1, "feature_rows": 1, "content_xxh3": "00"}
manifest = {"format": "slipstream-features-manifest", "format_version": 1, "complete": True, "dump": dump, "shards": [shard]}
for name, shards in (("good", [shard]), ("none", []), ("twice", [shard, shard]), ("outside", [{**shard, "name": "../features-000000.h5"}]),
                     ("partial", [{**shard, "name": "features-000000.h5.partial"}]), ("number", [{**shard, "name": "features-0000000.h5"}])):
    (CORPUS / "feature_manifest" / name).write_text(json.dumps({**manifest, "shards": shards}))
step_case(CORPUS / "step_case/good")
