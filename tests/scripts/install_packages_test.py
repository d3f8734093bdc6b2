"""launch/install_packages with dpkg-query, apt-get and id that only pretend."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path("launch/install_packages").resolve()


class InstallPackages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = pathlib.Path(self.folder.name, "apt.log")

    def pretend(self, name, body):
        path = pathlib.Path(self.folder.name, name)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run_with(self, *args, missing="", uid=0, apt=0):
        """Every package but `missing` is installed; apt-get writes its arguments to the log and returns `apt`, or 100
        where these name a package of `apt`."""
        self.pretend("dpkg-query", f'for p in "$@"; do :; done; case " {missing} " in *" $p "*) echo not-installed;; *) echo installed;; esac')
        refused = " | ".join(f"*{p}*" for p in str(apt).split())
        self.pretend("apt-get", f'echo "$@" >> {self.log}; ' + (f"exit {apt}" if apt in (0, 100) else f'case "$*" in {refused}) exit 100;; esac'))
        self.pretend("id", f"echo {uid}")
        self.log.unlink(missing_ok=True)
        path = f"{self.folder.name}:{os.environ['PATH']}"
        done = subprocess.run([SCRIPT, *args], env={**os.environ, "PATH": path}, capture_output=True, text=True)
        return done, self.log.read_text() if self.log.exists() else ""

    def test_nothing_missing_touches_nothing(self):
        for uid in (0, 1000):
            done, apt = self.run_with("--tests", uid=uid)
            self.assertEqual((done.returncode, apt), (0, ""))

    def test_installs_only_what_is_missing(self):
        done, apt = self.run_with(missing="libfmt-dev ninja-build clang-format-14")
        self.assertEqual(done.returncode, 0)
        update, install = apt.splitlines()
        self.assertIn("update", update)
        self.assertTrue(install.endswith(" ninja-build libfmt-dev"), install)  # clang-format is for the tests
        self.assertIn("--no-install-recommends", install)
        self.assertIn("clang-format-14", self.run_with("--tests", missing="clang-format-14")[1])

    def test_not_root_says_what_to_ask_for(self):
        done, apt = self.run_with(missing="libfmt-dev", uid=1000)
        self.assertEqual((done.returncode, apt, done.stdout), (2, "", ""))
        self.assertIn("apt-get install -y --no-install-recommends libfmt-dev\n", done.stderr)

    def test_what_only_some_tests_need(self):
        done, apt = self.run_with("--tests", missing="libfmt-dev slurmd", apt="slurmd")
        self.assertEqual(done.returncode, 0)
        self.assertEqual([line.split()[-1] for line in apt.splitlines()[1:]], ["libfmt-dev", "slurmd"])  # on their own
        self.assertIn("some tests are skipped: slurmd", done.stderr)
        self.assertIn("installed 1\n", done.stdout)
        self.assertEqual(self.run_with("--tests", missing="libfmt-dev slurmd", apt="libfmt-dev")[0].returncode, 1)
        done, apt = self.run_with(missing="slurmd")  # not for a build
        self.assertEqual((done.returncode, apt, "slurmd" in done.stdout), (0, "", False))
        done, apt = self.run_with("--tests", missing="slurmd", uid=1000)
        self.assertEqual((done.returncode, apt), (0, ""))
        self.assertIn("some tests are skipped: slurmd", done.stdout)

    def test_a_failed_install_fails(self):
        self.assertEqual(self.run_with(missing="libfmt-dev", apt=100)[0].returncode, 1)

    def test_wrong_use(self):
        self.assertEqual(self.run_with("--frobnicate")[0].returncode, 2)


unittest.main(verbosity=2)
