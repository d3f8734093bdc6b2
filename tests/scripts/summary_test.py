"""tests/support/summary.py: what counts as passed, failed and skipped."""
import subprocess
import sys
import tempfile
import unittest

CASES = {
    "passed": '<testcase name="a" status="run"/>',
    "failed": '<testcase name="b" status="fail"><failure message=""/></testcase>',
    "skipped": '<testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>',
    "absent": '<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>',
}


def summary(*kinds):
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(f"<testsuite>{''.join(CASES[k] for k in kinds)}</testsuite>")
        file.flush()
        done = subprocess.run([sys.executable, "tests/support/summary.py", file.name, "3"], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()[-1]


class Summary(unittest.TestCase):
    def test_counts(self):
        self.assertEqual(summary("passed", "passed", "skipped"), (0, "2 passed, 0 failed"))
        self.assertEqual(summary("passed", "failed"), (1, "1 passed, 1 failed"))
        self.assertEqual(summary("passed", "absent"), (1, "1 passed, 1 failed"))

    def test_nothing_run_is_no_success(self):
        self.assertEqual(summary(), (1, "0 passed, 0 failed"))
        self.assertEqual(summary("skipped"), (1, "0 passed, 0 failed"))


unittest.main(verbosity=2)
