"""Packages that distributions lack and that a few tests compare with: from the package index, into the build folder."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def place_of(folder):
    return pathlib.Path(os.environ["SLIP_BINARY_DIR"], "python", folder)


def fetch(folder, *packages, how="--target"):
    """Puts "name==version" packages, without what they depend on, on sys.path as place_of(folder); with `how` "--prefix", what
    lies beside modules too (bin, lib). Returns None, or why they are not there: a test is skipped with that."""
    place = place_of(folder)
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        part = tempfile.mkdtemp(dir=place.parent)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--timeout=10", "--retries=1",
                   "--no-warn-script-location", how, part, *packages]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=90, env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"})
            why = None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        except subprocess.TimeoutExpired:
            why = "the package index does not answer"
        if why is not None:
            shutil.rmtree(part)
            return f"pip cannot get {' '.join(packages)}: {why}"
        try:
            os.rename(part, place)
        except OSError:  # another test was faster
            shutil.rmtree(part)
    sys.path.insert(0, str(place))
    return None
