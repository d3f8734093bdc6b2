"""Lines to documents, one by one, by as many processes as there are jobs."""
import itertools
import json
import multiprocessing
import os
import signal
from concurrent import futures
from concurrent.futures import process

from .errors import COUNTS, BadInput, BadLine, CannotWrite, Skip

LINES_A_PIECE = 64  # of what a job gets at a time


def read_lines(path, progress):
    """(line number, bytes) for every line that is not empty."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise BadInput(f"{path}: not a file")
        f = open(path, "rb")
    except OSError as e:
        raise BadInput(f"{path}: {e.strerror}") from None
    with f:
        try:
            for number, raw in enumerate(f, 1):
                progress.advance(len(raw))
                if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
                    raw = raw[3:]
                if raw.strip():
                    yield number, raw
        except OSError as e:
            raise BadInput(f"{path}: {e.strerror}") from None


def parsed(raw):
    try:
        item = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise BadLine(f"not UTF-8: byte {e.start} of the line") from None
    except (ValueError, RecursionError) as e:
        raise BadLine(f"not JSON: {e}") from None
    if not isinstance(item, dict):
        raise BadLine(f"a line is an object, found {type(item).__name__}")
    return item


def check_integers(name, values, low, high, bound):
    """All values are whole numbers in [low, high); names the first that is not. `bound` says what `high` is."""
    if not isinstance(values, list):
        raise BadLine(f"{name} is a list, found {type(values).__name__}")
    if set(map(type, values)) <= {int} and (not values or (min(values) >= low and max(values) < high)):
        return
    for position, v in enumerate(values):
        if type(v) is not int:
            raise BadLine(f"{name}[{position}] is {json.dumps(v)}, not a whole number")
        if v < low:
            raise BadLine(f"{name}[{position}] is {v}, below {low}")
        if v >= high:
            raise BadLine(f"{name}[{position}] is {v}, {bound}")


class Line:
    """What became of one line: documents, counts and notes. A job makes it, the parent takes it in the order of the lines."""

    def __init__(self):
        self.documents, self.counts, self.notes, self.bad = [], dict.fromkeys(COUNTS, 0), [], False
        self.id = self.family = None

    def note(self, kind, text):
        self.notes.append((kind, text))


def work_out(raw, kind, options):
    line = Line()
    try:
        item = parsed(raw)
        check_item(item, kind)
        line.id, line.family = item.get("id"), item.get("family")
        make = from_tokens if kind == "tokens" else from_conversation
        for ids, mask in make(item, options, line.counts, line.note):
            kept = trim(ids, mask, options, line.counts, line.note)
            if kept:
                line.documents.append(kept)
                line.counts["mask_tokens_in_text"] += kept[0].count(options.mask_token)
    except Skip as e:
        line.counts["skipped_conversations"] += 1
        line.note("skipped", str(e))
    except BadLine as e:
        line.documents, line.bad = [], True
        line.note("bad line", str(e))
    return line


shared = {}  # kind and options, inherited by the jobs


def work_out_piece(piece):
    return [(where, work_out(raw, **shared)) for where, raw in piece]


def lines_of(options, kind, progress):
    """(where, Line), in the order of the lines, whatever the number of jobs."""
    def pieces():
        all_lines = ((f"{path}:{number}", raw) for path in options.input for number, raw in read_lines(path, progress))
        while piece := list(itertools.islice(all_lines, LINES_A_PIECE)):
            yield piece

    shared.update(kind=kind, options=options)
    if options.jobs == 1:
        for piece in pieces():
            yield from work_out_piece(piece)
        return
    context = multiprocessing.get_context("fork")
    with futures.ProcessPoolExecutor(options.jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        waiting, source = [], pieces()  # a bounded number of pieces ahead, not the whole input
        try:
            while True:
                while len(waiting) < 4 * options.jobs and (piece := next(source, None)):
                    waiting.append(pool.submit(work_out_piece, piece))
                if not waiting:
                    return
                yield from waiting.pop(0).result()
        except process.BrokenProcessPool:
            raise CannotWrite("a job was killed (out of memory?), nothing written; --jobs 1 needs the least") from None
        finally:
            pool.shutdown(cancel_futures=True)


def from_tokens(item, options, _counts, _note):
    ids, mask = item["input_ids"], item.get("loss_mask")
    check_integers("input_ids", ids, 0, options.vocab_size, f"vocab_size is {options.vocab_size}")
    if mask is None:
        if not options.prompts:
            raise BadLine("input_ids without loss_mask")
        mask = [0] * len(ids)
    if isinstance(mask, list) and set(map(type, mask)) <= {bool, int}:
        mask = [int(m) for m in mask]
    check_integers("loss_mask", mask, 0, 2, "only 0 and 1 mean something")
    if len(ids) != len(mask):
        raise BadLine(f"input_ids and loss_mask differ in length: {len(ids)} vs {len(mask)}")
    return [(ids, mask)]


def message_of(number, entry, roles):
    if not isinstance(entry, dict):
        raise BadLine(f"message {number} is an object, found {type(entry).__name__}")
    role, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    if not isinstance(role, str):
        raise BadLine(f'message {number} has no text under "role" or "from"')
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(p.get("text", "")) for p in content)
    if content is None and "tool_calls" in entry:
        content = ""
    if not isinstance(content, str):
        raise BadLine(f'message {number} has no text under "content" or "value"')
    try:
        content.encode()
    except UnicodeEncodeError as e:
        raise BadLine(f"message {number} is not Unicode text: character {e.start}") from None
    if role not in roles:
        raise Skip(f'unknown role "{role}" (--role {role}=assistant would map it)')
    return {**{k: v for k, v in entry.items() if k not in ("from", "value")}, "role": roles[role], "content": content}


def from_conversation(item, options, counts, note):
    entries = item.get("messages", item.get("conversations"))
    if not isinstance(entries, list):
        raise BadLine('neither "messages" nor "conversations" nor "input_ids" holds a list')
    messages = [message_of(i, e, options.roles) for i, e in enumerate(entries)]
    first = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
    if first is None:
        raise Skip("no user turn")
    kept = [m for i, m in enumerate(messages) if i >= first or m["role"] == "system"]
    tools = item.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as e:
            raise BadLine(f'"tools" is not JSON: {e}') from None
    open_end = options.prompts and kept[-1]["role"] != "assistant"
    documents = options.tokenizer.documents(kept, open_end, tools)
    if len(kept) < len(messages):
        counts["mapped_conversations"] += 1
        note("mapped", f"{len(messages) - len(kept)} turns before the first user turn left out")
    if len(documents) > 1:
        counts["expanded_conversations"] += 1
    for ids, _ in documents:
        check_integers("token", ids, 0, options.vocab_size, f"vocab_size is {options.vocab_size}")
    return documents


def trim(ids, mask, options, counts, note):
    """The document as it is stored, or None."""
    if options.max_length and len(ids) > options.max_length:
        if options.prompts:
            counts["dropped_too_long"] += 1
            note("dropped", f"{len(ids)} tokens, more than --max-length {options.max_length}")
            return None
        counts["truncated_documents"] += 1
        ids, mask = ids[:options.max_length], mask[:options.max_length]
    if not options.prompts and not any(a and b for a, b in zip(mask, mask[1:])):
        counts["dropped_no_supervision"] += 1
        note("dropped", "no two consecutive supervised tokens")
        return None
    if not ids:
        raise BadLine("an empty document")
    return ids, mask


def check_item(item, kind):
    found = "tokens" if "input_ids" in item else "conversations"
    if found != kind:
        raise BadLine(f"holds {found}, the first line held {kind}")
    family = item.get("family")
    if family is not None and not isinstance(family, str):
        raise BadLine(f'"family" is text, found {type(family).__name__}')


def repeated(name, seen, where):
    """What is wrong with a line's id, or nothing. A second line with the same one is bad, whatever is in it."""
    name = json.dumps(name)
    if name != "null" and seen.setdefault(name, where) != where:
        return f"duplicate id {name}, first at {seen[name]}"
    return None
