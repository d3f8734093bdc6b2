"""What the pages quote exists: messages of TROUBLESHOOTING.md in the sources, files, commands and configuration keys everywhere."""
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [p for p in ROOT.rglob("*.md") if not {"build", "runs", "golden"} & set(p.relative_to(ROOT).parts) and "." not in str(p.relative_to(ROOT))[:1]]
PROGRAM = os.environ["SLIP_BINARY_DIR"] + "/slipstream"


def help_of(*command):
    return subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, check=True).stdout


class Docs(unittest.TestCase):
    def test_messages(self):
        sources = ""
        for folder in ("src", "launch", "kernels"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix in (".cpp", ".cu", ".hpp", "") and path.is_file():
                    sources += path.read_text()
        sources = re.sub(r'"\s*\n\s*(?:fmt::format\()?"', "", sources)  # string literals that go on in the next line
        rows = re.findall(r"^\| `(.*?)` \|", (ROOT / "launch/TROUBLESHOOTING.md").read_text(), re.M)
        self.assertGreater(len(rows), 15)
        for message in rows:
            self.assertIn(message.removeprefix("launch/run: "), sources)

    def test_keys(self):
        keys = set(re.findall(r"^  ([a-z_]+\.[a-z0-9_]+) ", help_of("train"), re.M))
        sections = {k.split(".")[0] for k in keys}
        for page in PAGES:
            for word in re.findall(r"`([a-z]+\.[a-z0-9_]+)(?:=[^`]*)?`", page.read_text()):
                section, _, name = word.partition(".")
                if section in sections and name not in ("hpp", "cpp", "cu", "md", "h5", "py", "ini", "json", "jsonl", "sbatch", "bash", "txt", "html"):
                    self.assertIn(word, keys, page)

    def test_commands(self):
        commands = set(re.findall(r"^  ([a-z]+)  ", help_of(), re.M))
        for page in PAGES:
            for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.M | re.S):
                for line in block.replace("\\\n", " ").splitlines():
                    called = re.match(r"(?:(?:mpirun|srun) .*?)?(?:\S*slipstream|launch/run(?: -n \d+)?) ([a-z]+)((?: .*)?)$", line)
                    if not called:
                        continue
                    self.assertIn(called[1], commands, page)
                    known = help_of(called[1])
                    for option in re.findall(r" (--[a-z-]+)", called[2]):
                        self.assertIn(option + " ", known.replace("\n", " "), f"{page}: {line}")

    def test_files(self):
        for page in PAGES:
            for name in re.findall(r"`((?:configs|data|kernels|launch|slurm|src|tests)/[A-Za-z0-9_./-]+)`", page.read_text()):
                there = [base for base in (ROOT, page.parent) if (base / name).exists() or list(base.glob(name + ".*"))]
                self.assertTrue(there, f"{page}: {name}")


unittest.main(verbosity=2)
