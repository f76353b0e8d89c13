"""The blocks of code in the pages: README.md and docs/.

A block is fenced (```), or indented by four columns behind an empty line or a heading. One with lines
`$ command` is a session, which pages_test.py runs, and compares what the commands print. Of a session

    > goes on with the line above, as in a shell
    ...    a line of dots alone: whatever lines the command prints there

Every other block says why it is not run, on the line above it, which no reader sees:

    <!-- not run: REASON -->        e.g. needs a GPU
    <!-- run by: WHO -->            another test runs or compares it

```text is no program: a layout, a formula, a message.
"""
import re
from dataclasses import dataclass
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
MARK = re.compile(r"<!-- (not run|run by): (.+?) -->")


@dataclass
class Block:
    page: str
    line: int  # of its first line of text, from 1
    language: str  # "" of an indented block, or of a fence that names none
    indent: int  # columns before the text
    lines: list
    mark: tuple  # ("not run", "needs a GPU"), or ()

    @property
    def is_session(self):
        return any(line.startswith("$ ") for line in self.lines)

    @property
    def is_text(self):
        return self.language == "text"

    def __str__(self):
        return f"{self.page}:{self.line}"


@dataclass
class Command:
    text: str
    shown: list  # lines that the page shows as its output
    first: int  # the index of its first output line in Block.lines
    limit: int  # one past its last one


def pages():
    found = [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]
    return [page.relative_to(TREE).as_posix() for page in found]


def blocks_of(page):
    lines = (TREE / page).read_text().split("\n")
    blocks, mark, i, before = [], (), 0, ""
    while i < len(lines):
        line = lines[i]
        fence = re.match(r"( *)```(\S*)", line)
        if fence:
            limit = next(k for k in range(i + 1, len(lines)) if lines[k].strip() == "```")
            indent = len(fence[1])
            text = [each[indent:] for each in lines[i + 1 : limit]]
            blocks.append(Block(page, i + 2, fence[2], indent, text, mark))
            mark, before, i = (), "", limit + 1
            continue
        if line.startswith("    ") and (not before.strip() or before.startswith("#")):
            limit = end_of_indented(lines, i)
            indent = min(len(x) - len(x.lstrip()) for x in lines[i:limit] if x.strip())
            text = [each[indent:] for each in lines[i:limit]]
            blocks.append(Block(page, i + 1, "", indent, text, mark))
            mark, before, i = (), "", limit
            continue
        marked = MARK.fullmatch(line.strip())
        if marked:
            mark, line = (marked[1], marked[2]), ""  # the block may follow at once
        elif line.strip():
            mark = ()
        before = line
        i += 1
    return blocks


def end_of_indented(lines, first):
    limit = k = first + 1
    while k < len(lines) and (lines[k].startswith("    ") or not lines[k].strip()):
        k += 1
        if lines[k - 1].strip():
            limit = k
    return limit


def commands_of(block):
    found = []
    for i, line in enumerate(block.lines):
        if line.startswith("$ "):
            found.append(Command(line[2:], [], i + 1, i + 1))
        elif found and line.startswith("> ") and found[-1].first == i:
            found[-1].text += "\n" + line[2:]
            found[-1].first = found[-1].limit = i + 1
        elif found:
            found[-1].shown.append(line)
            found[-1].limit = i + 1
    return found


def anchors_of(page):
    """What a link may name behind #, as GitHub makes it of headings."""
    found = set()
    for line in (TREE / page).read_text().split("\n"):
        heading = re.match(r"#+ +(.*)", line)
        if heading:
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def broken_anchors(page):
    """Links to headings that are not there. That files are there is a rule of tests/tidy."""
    for number, line in enumerate((TREE / page).read_text().split("\n"), 1):
        for target, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", line):
            other = (TREE / page).parent / target if target else TREE / page
            if other.suffix == ".md" and other.exists():
                if anchor not in anchors_of(other.resolve().relative_to(TREE)):
                    yield f"{page}:{number}: {target}#{anchor}: there is no such heading"
