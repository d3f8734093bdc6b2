"""An installed tree, moved to another place, and the Debian package: what is in them runs. Completion in a real bash."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["SLIP_BINARY_DIR"])


class Install(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slip-install-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_in(self, cwd, *command):
        environment = {k: v for k, v in os.environ.items() if k != "SLIP_BINARY_DIR"}
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, env=environment)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def works(self, prefix):
        """Programs and files of a prefix, as the pages use them."""
        share = prefix / "share/slipstream"
        self.assertIn("MPI", self.run_in("/", prefix / "bin/slipstream", "--version").stdout)
        self.run_in(share, prefix / "bin/slipstream-run", "-n", "2", "train", "--config", "configs/tiny.ini", "--device", "cpu", "--set",
                    "train.steps=2", "--set", f"log.dir={self.folder}/run", "--set", "eval.tokens=", "--set", "eval.prompts=")
        self.assertEqual(len((self.folder / "run/metrics.jsonl").read_text().splitlines()), 2)
        shutil.rmtree(self.folder / "run")
        lines = self.folder / "a.jsonl"
        lines.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}) + "\n")
        self.run_in(share, prefix / "bin/slipstream-prepare", "--input", lines, "--out", self.folder / "a.h5")
        self.assertIn("supervised 7", self.run_in("/", prefix / "bin/slipstream", "inspect", self.folder / "a.h5").stdout)

    def test_a_moved_tree(self):
        first, second = self.folder / "first", self.folder / "second"
        self.run_in("/", "cmake", "--install", BUILD, "--prefix", first)
        first.rename(second)
        self.works(second)
        self.assertEqual([p for p in second.rglob("*") if p.is_symlink() and not p.exists()], [])

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("dpkg"), "needs dpkg-dev")
    def test_a_debian_package(self):
        self.run_in(BUILD, "cpack", "-G", "DEB", "-B", self.folder / "pack")
        package, = (self.folder / "pack").glob("*.deb")
        depends = self.run_in("/", "dpkg", "--field", package, "Depends").stdout
        for part in ("openmpi-bin", "python3-h5py", "libhdf5", "libopenmpi"):
            self.assertIn(part, depends)
        self.run_in("/", "dpkg", "-x", package, self.folder / "root")
        self.works(self.folder / "root/usr")

    def completed(self, *words):
        script = f"""
          PATH={BUILD}:$PATH
          . {pathlib.Path('launch/completion.bash').resolve()}
          COMP_WORDS=({' '.join(f"'{w}'" for w in words)}) COMP_CWORD={len(words) - 1}
          compopt() {{ :; }}
          _slipstream {words[0]}; printf '%s\\n' "${{COMPREPLY[@]}}" """
        return self.run_in(pathlib.Path.cwd(), "bash", "-c", script).stdout.split()

    def test_completion(self):
        for program in ("slipstream", "slipstream-run"):
            self.assertEqual(self.completed(program, "tr"), ["train"])
        self.assertIn("doctor", self.completed("slipstream", ""))
        self.assertEqual(self.completed("slipstream-run", "-n", "4", "insp"), ["inspect"])
        self.assertEqual(self.completed("slipstream", "train", "--res"), ["--resume"])
        self.assertEqual(self.completed("slipstream", "train", "--set", "train.lr"), ["train.lr="])
        self.assertEqual(self.completed("slipstream", "train", "--resume", "a"), ["auto"])
        self.assertIn("configs/tiny.ini", self.completed("slipstream", "train", "--config", "configs/tiny.i"))


unittest.main(verbosity=2)
