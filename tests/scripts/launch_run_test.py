"""launch/run: exit codes of the ranks, and signals that let them save. Argument: the folder of the stand-in."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = sys.argv.pop()


def start(*args, build=BUILD):
    command = ["launch/run", "-n", "2", "--build", build, *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*args, build=BUILD):
    for _ in range(3):
        job = start(*args, build=build)
        out, err = job.communicate(timeout=60)
        if "mpirun hung" not in err:  # a fault of OpenMPI's that launch/run ends but cannot undo
            break
    return job.returncode, out, err


def ranks_alive():
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(f"{BUILD}/slipstream\0until-signal".encode()):
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile
            pass
    return found


class LaunchRun(unittest.TestCase):
    def start_fake(self, *lines):
        """launch/run with an mpirun of these lines of Python; returns when that is running."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        fake, runs = pathlib.Path(folder.name) / "mpirun", pathlib.Path(folder.name) / "runs"
        fake.write_text("\n".join(["#!/usr/bin/env python3", "import pathlib, signal, sys, time", *lines[:-1], f"pathlib.Path('{runs}').touch()", lines[-1]]))
        fake.chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder.name}:{os.environ['PATH']}"}
        job = subprocess.Popen(["launch/run", "-n", "2", "--build", BUILD, "x"], stderr=subprocess.PIPE, text=True, env=environment)
        end = time.monotonic() + 30
        while not runs.exists():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        return job

    def test_an_mpirun_that_hangs_alone_is_ended(self):
        job = self.start_fake("time.sleep(600)")
        self.assertIn("mpirun hung", job.communicate(timeout=60)[1])
        self.assertEqual(job.returncode, 4)

    def test_a_signal_before_mpirun_listens_loses_nothing(self):
        job = self.start_fake("time.sleep(600)")  # as mpirun is in its first moments: the signal ends it
        job.send_signal(signal.SIGUSR1)
        self.assertIn("before the ranks had started; there was nothing to save", job.communicate(timeout=30)[1])
        self.assertEqual(job.returncode, 75)

    def test_a_signal_before_the_ranks_are_there_is_said_again(self):
        job = self.start_fake("heard = []", "signal.signal(signal.SIGUSR1, lambda *_: heard.append(1) or len(heard) > 1 and sys.exit(75))", "time.sleep(600)")
        job.send_signal(signal.SIGUSR1)
        job.communicate(timeout=30)
        self.assertEqual(job.returncode, 75)

    def test_arguments_arrive_as_they_are(self):
        self.assertEqual(run("arguments", "--set", "a=b c", "-n", "7"), (0, "2 ranks <--set> <a=b c> <-n> <7>\n", ""))

    def test_exit_codes(self):
        self.assertEqual(run("usage"), (2, "", ""))
        self.assertEqual(run("abort")[0], 3)
        code, _, err = run("killed")
        self.assertEqual(code, 4)
        self.assertIn("ended by signal 9", err)

    def test_wrong_use(self):
        absent = ["--build", "/nonexistent", "x"]
        for args in ([], ["-n"], ["-n", "0", "x"], ["--frobnicate", "x"], absent):
            job = subprocess.run(["launch/run", *args], capture_output=True, text=True)
            self.assertEqual((job.returncode, job.stdout, len(job.stderr.splitlines())), (2, "", 1), args)

    def test_every_signal_lets_the_ranks_save(self):
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            job = start("until-signal")
            self.assertEqual(job.stdout.readline(), "ready\n")
            job.send_signal(number)
            out, _ = job.communicate(timeout=60)
            self.assertEqual((job.returncode, out), (75, "saved\n"), number)

    def test_a_second_term_ends_at_once(self):
        job = start("until-signal")
        job.stdout.readline()
        os.kill(ranks_alive()[0], signal.SIGSTOP)  # a rank that hangs
        job.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        self.assertIsNone(job.poll())
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=30)
        self.assertNotIn(job.returncode, (0, 75))
        self.assertEqual(ranks_alive(), [])

    def test_killed_itself_it_leaves_no_rank_behind(self):
        job = start("until-signal")
        job.stdout.readline()
        job.kill()
        job.communicate(timeout=30)  # the ranks hold the pipe until they end
        self.assertEqual(ranks_alive(), [])


unittest.main(verbosity=2)
