"""What the ranks of a job have asked of their files, as Linux counts it: MPI and NCCL between them are not in it."""
import os
import pathlib
import re
import time


def processes(program, word):
    """Numbers of the processes that run `program` with `word` somewhere on their command line."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "exe") == str(program) and word.encode() in (folder / "cmdline").read_bytes():
                yield int(folder.name)
        except OSError:  # it ended meanwhile
            continue


def bytes_read(job, program, word):
    """Waits for the job; bytes that each of its processes read, ascending. Seen every few milliseconds: what one reads as its last act may be missing."""
    read = {}
    while job.poll() is None:
        for pid in processes(program, word):
            try:
                read[pid] = int(re.search(r"rchar: (\d+)", pathlib.Path(f"/proc/{pid}/io").read_text())[1])
            except (OSError, TypeError):
                pass
        time.sleep(0.02)
    return sorted(read.values())
