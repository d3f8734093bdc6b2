"""What the tests of the executable share: running it as a user would, and files to run it on."""
import functools
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ["SLIP_BINARY_DIR"]
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(ROOT / "data" / "tiny"))
sys.path.insert(0, str(ROOT / "tests" / "support"))
import hf  # noqa: E402  (safetensors with numpy)
from reads import bytes_read  # noqa: E402


class Done:
    def __init__(self, process, cpu_s):
        self.code, self.out, self.err, self.cpu_s = process.returncode, process.stdout, process.stderr, cpu_s

    def __repr__(self):
        return f"exit code {self.code}\n{self.err}{self.out}"


ON_GPU = os.environ.get("SLIP_TEST_DEVICE") == "cuda"  # on_gpu.py: the same tests on a GPU
DEVICE = "cuda" if ON_GPU else "cpu"


def command(*arguments, ranks=None):
    if ON_GPU and arguments[0] in ("step", "features") and "--device" not in arguments:
        arguments = (*arguments, "--device", "cuda")
    if ON_GPU and arguments[0] in ("train", "dump", "decode", "generate") and ranks is not None:
        arguments = (*arguments, "--share-gpu")
    start = [BUILD + "/slipstream"] if ranks is None else ["launch/run", "-n", str(ranks), "--build", BUILD]
    return [*start, *map(str, arguments)]


def run(*arguments, ranks=None, timeout=180):  # a debug build with sanitizers on a busy machine
    """Runs `slipstream ARGUMENTS`, under launch/run when `ranks` is given."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command(*arguments, ranks=ranks), cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Done(process, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def reads(*arguments, ranks):
    """Runs it so; what it said, and the bytes that each rank read, ascending. The arguments name a folder of the test: by it the ranks are found."""
    word = next(str(a) for a in arguments if "slip-test-" in str(a))
    with tempfile.TemporaryFile("w+") as said:
        job = subprocess.Popen(command(*arguments, ranks=ranks), cwd=ROOT, stdout=said, stderr=said)
        read = bytes_read(job, pathlib.Path(BUILD, "slipstream").resolve(), word)
        said.seek(0)
        if job.returncode != 0:
            raise AssertionError(said.read())
        return said.read(), read


def write_shard(path, documents, vocab, mask_token, *options):
    """A token shard by data/prepare: `documents` are (ids, mask) pairs."""
    lines = path.with_suffix(".jsonl")
    lines.write_text("".join(json.dumps({"input_ids": i, "loss_mask": m}) + "\n" for i, m in documents))
    subprocess.run([sys.executable, ROOT / "data/prepare", "--input", lines, "--out", path, "--vocab-size", str(vocab),
                    "--mask-token", str(mask_token), *options], check=True, capture_output=True)
    lines.unlink()
    return path


def write_config(path, settings):
    """{"section.key": value} as an INI file."""
    sections = {}
    for key, value in settings.items():
        section, name = key.split(".", 1)
        sections.setdefault(section, []).append(f"{name} = {value}\n")
    path.write_text("".join(f"[{section}]\n" + "".join(lines) for section, lines in sections.items()))
    return path


# A drafter for tests/golden/tiny-qwen3 and tiny-llama.
DRAFTER = {
    "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 4,
    "dflash_config": {"block_size": 4, "mask_token_id": 255, "target_layer_ids": [0, 2]}, "num_target_layers": 4,
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "max_position_embeddings": 512,
    "rope_theta": 10000.0, "rope_scaling": None, "layer_types": ["full_attention"], "sliding_window": None,
    "use_sliding_window": False, "initializer_range": 0.1, "tie_word_embeddings": False, "vocab_size": 256,
    "bos_token_id": None, "eos_token_id": 1, "dtype": "bfloat16"}


def documents(lengths, vocab=255):
    """Documents of these lengths, every second half supervised."""
    return [([(7 * t * t + 3 * t + 11 * n) % vocab for t in range(n)], [int(t >= n // 2) for t in range(n)]) for n in lengths]


@functools.cache
def small_shard():
    with tempfile.TemporaryDirectory() as folder:
        return write_shard(pathlib.Path(folder, "train.h5"), documents([20, 12, 30, 16]), 256, 255).read_bytes()


class Folder(unittest.TestCase):
    """A test with a folder that goes away."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slip-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def tree(self):
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*"))

    def assert_one_reads(self, weights, ranks, *arguments):
        """Of these ranks one reads the files `weights`, and the others are sent what it read."""
        size = sum(pathlib.Path(w).stat().st_size for w in weights)
        said, read = reads(*arguments, ranks=ranks)
        self.assertEqual(len(read), ranks, said)
        self.assertGreater(read[-1] - read[-2], 0.95 * size, read)
        self.assertLess(read[-2] - read[0], 0.05 * size, read)

    def small_run(self):
        """Settings of a run of one step on a copy of tiny-qwen3, all files in the folder."""
        shutil.copytree(GOLDEN / "tiny-qwen3", self.folder / "target")
        (self.folder / "drafter.json").write_text(json.dumps(DRAFTER))
        (self.folder / "train.h5").write_bytes(small_shard())
        return {"target.path": self.folder / "target", "drafter.config": self.folder / "drafter.json",
                "data.tokens": self.folder / "train.h5", "data.row_tokens": 40, "train.steps": 1, "train.rows_per_step": 2,
                "train.anchors": 4, "train.precision": "fp32", "log.dir": self.folder / "run"}

    def train(self, settings, *options, **how):
        return run("train", "--config", write_config(self.folder / "run.ini", settings), *options, **how)
