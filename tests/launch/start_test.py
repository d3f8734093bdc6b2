"""Ranks that do not fit together are refused at the start: one line, exit code 2, nothing written."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import BUILD, GOLDEN, ROOT, Folder, write_config  # noqa: E402

PROGRAM = BUILD + "/slipstream"
QUIET = {**os.environ, "OMPI_MCA_orte_execute_quiet": "1"}


class Start(Folder):
    def setUp(self):
        super().setUp()
        self.config = write_config(self.folder / "run.ini", self.small_run())

    def refused(self, first, *others, code=2):
        """Each argument is the command line of a rank; the line that is said."""
        before = self.tree()
        command = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        for i, line in enumerate((first, *others)):
            command += [*([":"] if i else []), "-n", "1", *map(str, line)]
        done = subprocess.run(command, cwd=ROOT, env=QUIET, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(self.tree(), before)
        return done.stderr

    def train(self, *options, config=None):
        return [PROGRAM, "train", "--device", "cpu", "--config", config or self.config, *options]

    def test_other_configuration(self):
        host = socket.gethostname()
        said = self.refused(self.train(), self.train(), self.train("--set", "train.lr=0.25"))
        self.assertIn(f"train.lr is '0.0006' on rank 0 on {host} and '0.25' on rank 2 on {host}", said)
        self.assertIn("the same --config", said)

    def test_other_options(self):
        said = self.refused(self.train("--resume", "auto"), self.train())
        self.assertIn("--resume is 'auto' on rank 0", said)

    def test_a_configuration_that_only_some_ranks_have(self):
        for ranks in ([self.train(), self.train(config="gone.ini")], [self.train(config="gone.ini"), self.train()]):
            self.assertIn("--config gone.ini: the file cannot be read", self.refused(*ranks))
        self.assertIn("rank 1 on ", self.refused(self.train(), self.train(config="gone.ini")))
        self.assertNotIn("rank", self.refused(*[self.train(config="gone.ini")] * 3))

    def other_library(self, *options):
        """A command line with an MPI that says it is of another version."""
        source, library = self.folder / "other.cpp", self.folder / "other.so"
        source.write_text('#include <cstring>\nextern "C" int MPI_Get_library_version(char* text, int* length) {\n'
                          '  *length = (int)std::strlen(std::strcpy(text, "Other MPI v0.0.1, and more"));\n  return 0;\n}\n')
        subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
        return ["env", f"LD_PRELOAD={library}", *options]

    def test_another_library(self):
        said = self.refused(self.train(), self.other_library(*self.train()))
        self.assertRegex(said, "MPI is 'Open MPI .*' on rank 0 on .* and 'Other MPI v0.0.1' on rank 1 on .*; .*mpirun -x LD_LIBRARY_PATH")

    def test_another_library_in_decode(self):
        options = ["decode", "--target", GOLDEN / "tiny-qwen3", "--drafter", self.folder / "drafter.json",
                   "--prompts", self.folder / "train.h5", "--device", "cpu"]
        self.assertIn("'Other MPI v0.0.1' on rank 1", self.refused([PROGRAM, *options], self.other_library(PROGRAM, *options)))

    def test_another_library_in_doctor(self):
        here = [PROGRAM, "doctor", "--json", "--dir", str(self.folder)]
        done = subprocess.run(["mpirun", "--map-by", ":OVERSUBSCRIBE", "-n", "1", *here, ":", "-n", "1", *self.other_library(*here)],
                              cwd=ROOT, env=QUIET, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1, done)
        versions, = [f for f in json.loads(done.stdout)["findings"] if f["what"] == "versions"]
        self.assertEqual(versions["health"], "FAIL")
        self.assertRegex(versions["found"], "^MPI is 'Open MPI .*' on rank 0 on .* and 'Other MPI v0.0.1' on rank 1 on ")
        self.assertIn("mpirun -x LD_LIBRARY_PATH", versions["remedy"])

    def test_what_mpirun_promised(self):
        alone = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMIX"))}
        done = subprocess.run(list(map(str, self.train())), cwd=ROOT, capture_output=True, text=True, timeout=60,
                              env={**alone, "OMPI_COMM_WORLD_SIZE": "4"})
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
        self.assertIn("mpirun started 4 ranks, but MPI sees 1", done.stderr)


unittest.main(verbosity=2)
