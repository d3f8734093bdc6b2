#!/usr/bin/env python3
"""Writes the conversations that the tiny target is taught: short questions of 23 families and verses to continue.

Every answer is computed. A document is one dialogue of 1 to 5 questions, or one verse, of at most --max-tokens
tokens. With --prompts every document is a single question without its answer.

  make_corpus.py --out train.jsonl --documents 1400 --verses bible.txt
  make_corpus.py --out prompts.jsonl --prompts --documents 100 --verses bible.txt --held-out

bible.txt is the output of Debian's `bible -f gen1:1-rev22:21` (package bible-kjv-text); without it there are no verses.
"""
import argparse
import collections
import json
import os
import random
import re
import sys

WORDS = """
acorn anchor apple arrow autumn bakery balloon banana barrel basket beach bird blanket boat bottle branch bread bridge
brother button butter cabin camera candle carpet castle chair cheese cherry chicken circle cloud coffee copper corner
cotton cousin cradle crown curtain daisy desert dinner doctor dolphin donkey dragon drawer dream eagle early engine
evening fabric family farmer feather fence finger flame flower forest fountain friend garden giant ginger glass goblet
grape guitar hammer harbor helmet hill honey horse house hunter insect island ivory jacket jewel jigsaw jungle kettle
kitchen kitten knife ladder lantern lemon letter library lion lizard maple marble market meadow melon mirror money
monkey morning mother mountain mouse music napkin needle night number ocean office olive onion orange orchard otter
owl paint paper parrot peach pencil pepper picture pillow planet plate pocket potato pumpkin purple puzzle quarter
queen quilt rabbit radio raven ribbon river robot rocket rooster saddle salmon school shadow shell silver singer
sister soldier spider spoon spring square stable station stone storm street summer table teacher thunder ticket tiger
tomato tower train travel tunnel turtle umbrella uncle valley velvet vessel village violin voice wagon walnut water
whistle willow window winter wizard yellow zebra
""".split()
NAMES = """Anna Ben Clara David Emma Felix Grace Henry Irene Jack Karen Leo Mary Noah Olga Paul Rosa Sam Tina
Victor""".split()
CITIES = "Athens Berlin Cairo Delhi Dublin Lima Lisbon Madrid Oslo Paris Prague Rome Tokyo Vienna Warsaw".split()
JOBS = "baker builder doctor farmer painter sailor singer teacher writer".split()
PLACES = "forest garden harbor kitchen library market office school station village".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = [("January", 31), ("February", 28), ("March", 31), ("April", 30), ("May", 31), ("June", 30), ("July", 31),
          ("August", 31), ("September", 30), ("October", 31), ("November", 30), ("December", 31)]
ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen").split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
UNITS = [("grams", "kilogram", "kilograms", 1000), ("metres", "kilometre", "kilometres", 1000),
         ("millilitres", "litre", "litres", 1000), ("centimetres", "metre", "metres", 100),
         ("minutes", "hour", "hours", 60), ("days", "week", "weeks", 7), ("inches", "foot", "feet", 12)]
HELD_OUT_BOOKS = {"Ruth", "Jonah", "Mic", "Mark", "Eph"}


def in_words(n):
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")


def numbers(values):
    return ", ".join(map(str, values))


def words(r, low, high):
    return r.sample(WORDS, r.randint(low, high))


# ---- families: a random generator in, (question, answer) out


def add(r):
    a, b = r.randint(10, 99), r.randint(10, 99)
    return r.choice([f"What is {a} + {b}?", f"How much is {a} plus {b}?", f"Add {a} and {b}."]), f"{a} + {b} = {a + b}."


def sub(r):
    b, a = sorted((r.randint(10, 99), r.randint(10, 99)))
    return r.choice([f"What is {a} - {b}?", f"How much is {a} minus {b}?"]), f"{a} - {b} = {a - b}."


def table(r):
    n, last = r.randint(2, 12), r.randint(4, 8)
    return f"Show the times table of {n} up to {last}.", "\n".join(f"{i} x {n} = {i * n}" for i in range(1, last + 1))


def count(r):
    a = r.randint(1, 120)
    b = a + r.randint(8, 14)
    return f"Count from {a} to {b}.", numbers(range(a, b + 1))


def down(r):
    a = r.randint(8, 30)
    return f"Count down from {a} to {a - 8}.", numbers(range(a, a - 9, -1))


def step(r):
    a, by, n = r.randint(0, 20), r.randint(2, 10), r.randint(6, 10)
    return f"Start at {a} and count by {by}, {in_words(n)} numbers.", numbers(a + by * i for i in range(n))


def spell(r):
    w = r.choice(WORDS)
    return r.choice([f"Spell the word {w}.", f"How do you spell {w}?"]), "-".join(w)


def caps(r):
    w = " ".join(words(r, 3, 3))
    return f"Write in capitals: {w}", w.upper()


def length(r):
    w = r.choice(WORDS)
    return f"How many letters are in the word {w}?", f"The word {w} has {in_words(len(w))} letters."


def repeat(r):
    n, w = r.randint(2, 4), " ".join(words(r, 2, 2))
    return f"Say {in_words(n)} times: {w}", " ".join([w.capitalize() + "."] * n)


def listing(r):
    w = words(r, 3, 5)
    return f"Make a numbered list of: {', '.join(w)}", "\n".join(f"{i}. {x}" for i, x in enumerate(w, 1))


def sort(r):
    n = r.sample(range(1, 100), r.randint(4, 6))
    return f"Sort these numbers: {numbers(n)}", f"In order: {numbers(sorted(n))}."


def larger(r):
    a, b = r.sample(range(10, 999), 2)
    return f"Which is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."


def even(r):
    n = r.randint(10, 999)
    return f"Is {n} even or odd?", f"{n} ends in {n % 10}, so it is {'odd' if n % 2 else 'even'}."


def say(r):
    n = r.randint(0, 99)
    return f"Write {n} in words.", f"{n} is written as {in_words(n)}."


def day(r):
    d, n = r.randrange(7), r.randint(1, 6)
    return (f"Today is {DAYS[d]}. Which day is it in {n} day{'s' * (n > 1)}?",
            f"If today is {DAYS[d]}, then in {n} day{'s' * (n > 1)} it will be {DAYS[(d + n) % 7]}.")


def month(r):
    m = r.randrange(12)
    name, days = MONTHS[m]
    return (f"How many days are in {name}?",
            f"{name} has {days} days. It comes after {MONTHS[m - 1][0]} and before {MONTHS[(m + 1) % 12][0]}.")


def date(r):
    year, m = r.randint(1990, 2030), r.randrange(12)
    leap = m == 1 and year % 4 == 0  # right from 1901 to 2099
    last = MONTHS[m][1] + leap
    d = r.choice([last, r.randint(1, last)])
    if d < last:
        following = f"{d + 1} {MONTHS[m][0]} {year}"
    else:
        following = f"1 {MONTHS[(m + 1) % 12][0]} {year + (m == 11)}"
    return f"Which date follows {d} {MONTHS[m][0]} {year}?", f"The day after {d} {MONTHS[m][0]} {year} is {following}."


def time(r):
    start, wait = 5 * r.randrange(288), 5 * r.randint(1, 11)
    a, b = (f"{t // 60 % 24:02}:{t % 60:02}" for t in (start, start + wait))
    return f"What time is it {wait} minutes after {a}?", f"{wait} minutes after {a} it is {b}."


def unit(r):
    small, one, many, factor = r.choice(UNITS)
    n, article = r.randint(2, 12), "an" if one == "hour" else "a"
    return (f"How many {small} are {n} {many}?",
            f"There are {factor} {small} in {article} {one}, so {n} {many} are {n * factor} {small}.")


def as_json(r):
    who, age, job, city = r.choice(NAMES), r.randint(18, 80), r.choice(JOBS), r.choice(CITIES)
    return (f"{who} is a {age} year old {job} from {city}. Write it as JSON.",
            json.dumps({"name": who, "age": age, "job": job, "city": city}))


def code(r):
    a = r.randint(1, 30)
    b = a + r.randint(4, 30)
    return (f"Write a Python loop that prints the numbers from {a} to {b}.",
            f"for i in range({a}, {b + 1}):\n    print(i)")


def where(r):
    pairs = list(zip(r.sample(NAMES, 3), r.sample(PLACES, 3)))
    who, place = r.choice(pairs)
    return " ".join(f"{n} is in the {p}." for n, p in pairs) + f" Where is {who}?", f"{who} is in the {place}."


FAMILIES = {
    "add": add, "sub": sub, "table": table, "count": count, "down": down, "step": step, "spell": spell, "caps": caps,
    "length": length, "repeat": repeat, "list": listing, "sort": sort, "larger": larger, "even": even, "say": say,
    "day": day, "month": month, "date": date, "time": time, "unit": unit, "json": as_json, "code": code, "where": where}


def verse(r, verses):
    """Up to 90 characters of a verse to continue, up to 150 of what follows, cut at punctuation."""
    while True:
        text = r.choice(verses)
        head = text[:r.randint(60, 90)].rsplit(" ", 1)[0]
        tail = text[len(head):].strip()
        cut = max((i + 1 for i, c in enumerate(tail[:150]) if c in ",.;:?!"), default=0)
        if cut > 20:
            return f"Continue: {head}", tail[:cut]


# ---- documents


def byte_tokenizer():
    """The one of data/prepare, so that there is one rendering."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from preparing.tokenizers import ByteTokenizer
    return ByteTokenizer()


def read_verses(path, held_out):
    """Texts of at least 100 characters; of the held-out books, or of all others."""
    verses = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            m = re.match(r"(\d?[A-Za-z]+)\d+:\d+ (.{100,})", line)
            if m and (m.group(1) in HELD_OUT_BOOKS) == held_out:
                verses.append(m.group(2).strip())
    return verses


def messages_of(pairs):
    return [m for q, a in pairs for m in ({"role": "user", "content": q}, {"role": "assistant", "content": a})]


def make_document(r, verses, share, max_tokens, tokenizer):
    """(families, messages, ids, mask) of one document: as many of its questions as fit."""
    while True:
        if verses and r.random() < share:
            names, pairs = ["verse"], [verse(r, verses)]
        else:
            names = r.choices(list(FAMILIES), k=r.randint(1, 5))
            pairs = [FAMILIES[n](r) for n in names]
        for n in range(len(pairs), 0, -1):
            messages = messages_of(pairs[:n])
            (ids, mask), = tokenizer.documents(messages, False, None)
            if len(ids) <= max_tokens:
                return names[:n], messages, ids, mask


def make_prompts(r, verses, documents):
    """Single questions: some verses (8 of 100), the families in equal shares."""
    for i in range(documents):
        if verses and i < documents * 8 // 100:
            yield "verse", verse(r, verses)[0]
        else:
            name = list(FAMILIES)[i % len(FAMILIES)]
            yield name, FAMILIES[name](r)[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True)
    p.add_argument("--documents", type=int, default=1400)
    p.add_argument("--verses", metavar="FILE", help="output of `bible -f gen1:1-rev22:21`")
    p.add_argument("--verse-share", type=float, default=0.1)
    p.add_argument("--held-out", action="store_true", help="verses of the held-out books instead of all others")
    p.add_argument("--max-tokens", type=int, default=272)
    p.add_argument("--prompts", action="store_true", help="single questions without answers")
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    r = random.Random(f"corpus {o.seed} {o.held_out} {o.prompts}")
    verses = read_verses(o.verses, o.held_out) if o.verses else []
    families, tokens, supervised = collections.Counter(), 0, 0
    with open(o.out + ".partial", "w", encoding="utf-8") as f:
        if o.prompts:
            for name, question in make_prompts(r, verses, o.documents):
                families[name] += 1
                f.write(json.dumps({"family": name, "messages": [{"role": "user", "content": question}]}) + "\n")
        else:
            tokenizer = byte_tokenizer()
            for _ in range(o.documents):
                names, messages, ids, mask = make_document(r, verses, o.verse_share, o.max_tokens, tokenizer)
                families.update(names)
                tokens, supervised = tokens + len(ids), supervised + sum(mask)
                kind = "verse" if names == ["verse"] else "dialogue"
                f.write(json.dumps({"family": kind, "messages": messages}) + "\n")
    os.rename(o.out + ".partial", o.out)
    print(f"{o.out}: {o.documents} documents, {tokens} tokens, {supervised} supervised", file=sys.stderr)
    print("  questions: " + ", ".join(f"{n} {c}" for n, c in families.most_common()), file=sys.stderr)
    missing = [n for n in FAMILIES if not families[n]]
    if missing:  # a family whose shortest example is too long never occurs, and nothing else would tell
        print(f"  families that never occur: {', '.join(missing)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
