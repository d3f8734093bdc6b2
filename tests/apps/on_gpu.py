"""Runs a test script, and the tests of it that are named, with the commands on a GPU; skips (77) without one, unless SLIP_REQUIRE_GPU=1."""
import os
import pathlib
import runpy
import subprocess
import sys

probe = subprocess.run([os.environ["SLIP_BINARY_DIR"] + "/slipstream", "step", "--case", "-", "--out", "-", "--device", "cuda"],
                       capture_output=True, text=True)
if probe.returncode == 2:  # "--device cuda: ...", before the case is looked for
    print(probe.stderr)
    sys.exit(1 if os.environ.get("SLIP_REQUIRE_GPU") == "1" else 77)
os.environ["SLIP_TEST_DEVICE"] = "cuda"
sys.argv = sys.argv[1:]
script = sys.argv[0]
sys.path.insert(0, str(pathlib.Path(script).resolve().parent))
runpy.run_path(script, run_name="__main__")
