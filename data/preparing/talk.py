"""What a person sees: progress, notes about lines, documents in colour, the summary."""
import itertools
import sys
import time

PACKED_ROW = 4096   # the row of the summary: data.row_tokens unless told
SHOWN = 20  # lines named in full per kind of trouble; the rest is counted


class Summary:
    """Lengths, and how full rows are when documents are packed next-fit, as training does in another order."""

    def __init__(self):
        self.lengths = []

    def text(self):
        n, ordered = len(self.lengths), sorted(self.lengths)
        at = [ordered[min(n - 1, n * q // 100)] for q in (10, 50, 90, 99)]
        line = f"length {ordered[0]} to {ordered[-1]}, mean {sum(ordered) / n:.0f}; " + ", ".join(
            f"{q} % up to {v}" for q, v in zip((10, 50, 90, 99), at))
        fitting = [x for x in self.lengths if x <= PACKED_ROW]
        rows, free = 0, 0
        for length in fitting:
            rows, free = (rows, free - length) if length <= free else (rows + 1, PACKED_ROW - length)
        if rows:
            line += f"; {rows} rows of {PACKED_ROW} tokens, {100 * sum(fitting) / (rows * PACKED_ROW):.1f} % full"
        if len(fitting) < n:
            line += f"; {n - len(fitting)} documents are longer"
        return line


def shown(ids, mask, table, colour):
    """A document as text, what is trained in green, or between brackets where there is no colour."""
    begin, end = ("\x1b[32m", "\x1b[0m") if colour else ("[[", "]]")
    out = []
    for trained, part in itertools.groupby(zip(ids, mask), key=lambda pair: pair[1]):
        words = [i for i, _ in part]
        text = b"".join(table[i] if i < len(table) else b"" for i in words).decode("utf-8", "replace") if table else " ".join(map(str, words)) + " "
        out.append(begin + text + end if trained else text)
    return "".join(out)


class Progress:
    """One line on a terminal, a plain line every five seconds elsewhere."""

    def __init__(self, total):
        self.total, self.done, self.documents = max(total, 1), 0, 0
        self.start = self.last = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def advance(self, size):
        self.done += size
        now = time.monotonic()
        if now - self.last < (0.2 if self.terminal else 5):
            return
        self.last = now
        rate = self.done / (now - self.start)
        line = (f"{100 * self.done / self.total:5.1f} %  {self.documents} documents  {rate / 1e6:.1f} MB/s  "
                f"{max(self.total - self.done, 0) / rate:.0f} s left")
        sys.stderr.write(f"\r{line}\x1b[K" if self.terminal else line + "\n")
        sys.stderr.flush()

    def clear(self):
        if self.terminal:
            sys.stderr.write("\r\x1b[K")


class Notes:
    """Says what happened to a line, the first SHOWN of each kind in full."""

    def __init__(self, progress):
        self.progress, self.seen = progress, {}

    def say(self, kind, where, text):
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if self.seen[kind] <= SHOWN:
            self.progress.clear()
            print(f"{where}: {kind}: {text}", file=sys.stderr)
        elif self.seen[kind] == SHOWN + 1:
            print(f"... {kind}: more lines, counted at the end", file=sys.stderr)
