"""wrap.py PAGE...: paragraphs and list items with lines longer than 110 columns are filled anew.
Tables, headings, comments and blocks of code stay as they are.
"""
import re
import sys
from pathlib import Path

from blocks import end_of_indented

WIDTH = 110
ITEM = re.compile(r"( *)([-*+]|\d+[.)]) +")
# What would be read as an item, a quote, a table or a heading at the beginning of a line.
NOT_FIRST = re.compile(r"[-*+>|]|\d+[.)]|#+|=+")


def words_of(text):
    """Split at spaces, but not those in `code`."""
    words, code = [], False
    for piece in text.split():
        if code:
            words[-1] += " " + piece
        else:
            words.append(piece)
        code ^= piece.count("`") % 2 == 1
    return words


def fill(text, first, rest):
    lines, line = [], first
    words = words_of(text)
    for k, word in enumerate(words):
        # A word that must not begin a line keeps the one before it company.
        pair = word
        if k + 1 < len(words) and NOT_FIRST.fullmatch(words[k + 1]):
            pair += " " + words[k + 1]
        if line.strip() and line not in (first, rest) and len(line) + 1 + len(pair) > WIDTH:
            if not NOT_FIRST.fullmatch(word):
                lines.append(line)
                line = rest
        line += word if line in (first, rest) else " " + word
    return lines + [line]


def is_prose(line):
    return bool(line.strip()) and not re.match(r" *(\||#|<!--|```|!\[|\[[^\]]+\]: )", line)


def is_code(lines, i):
    before = lines[i - 1] if i else ""
    return lines[i].startswith("    ") and (not before.strip() or before.startswith("#"))


def wrapped(lines):
    out, i, fenced = [], 0, False
    while i < len(lines):
        line = lines[i]
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if not fenced and is_code(lines, i):
            limit = end_of_indented(lines, i)
            out += lines[i:limit]
            i = limit
            continue
        if fenced or not is_prose(line):
            out.append(line)
            i += 1
            continue
        item = ITEM.match(line)
        first = item[0] if item else re.match(" *", line)[0]
        limit = i + 1
        while limit < len(lines) and is_prose(lines[limit]) and not ITEM.match(lines[limit]):
            limit += 1
        part = lines[i:limit]
        hard = any(each.endswith("  ") for each in part[:-1])
        if max(map(len, part)) > WIDTH and not hard:
            text = " ".join([line[len(first) :], *(each.strip() for each in part[1:])])
            part = fill(text, first, " " * len(first))
        out += part
        i = limit
    return out


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text("\n".join(wrapped(page.read_text().split("\n"))))
