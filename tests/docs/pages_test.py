"""pages_test.py BIN [--update] [PAGE...]: runs the sessions of the pages, each page's in a folder of
its own where the fixtures lie, and compares what the commands print with what the pages show.
BIN is a build's folder of programs. --update writes what was printed into the pages.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from blocks import TREE, blocks_of, broken_anchors, commands_of, pages

FIXTURES = TREE / "tests/fixtures"
LIMIT_S = 120  # what runs takes 10 s at most; machines that do other work take longer

# How long it took, and how fast that was, is another one each time; the size of a picture is that
# of its style sheet.
TIMES = re.compile(r"in [0-9.]+ s( \([0-9.]+ [kMG]B/s\))?")
PICTURES = re.compile(r"(\.html), [0-9.]+ KiB")


def comparable(lines):
    return [PICTURES.sub(r"\1", TIMES.sub("in TIME", line.rstrip())) for line in lines]


def without_notes(printed, shown):
    """A trainer notes what is slow here: a disk in memory, no io_uring. Elsewhere it does not."""
    return [line for line in printed if not line.startswith("note: ") or line in shown]


def agrees(shown, printed):
    """Line by line; a line of dots stands for any number of lines."""
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(agrees(shown[1:], printed[k:]) for k in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and agrees(shown[1:], printed[1:])


class Room:
    """A folder with the fixtures of each format, in which results may be made."""

    def __init__(self, bin_folder, folder):
        self.folder = folder
        for entry in FIXTURES.iterdir():
            if entry.is_dir():
                os.symlink(entry, Path(folder, entry.name))
        kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
        self.environment = kept | {
            "EBB_LIBRARY": str(Path(bin_folder, "../lib/libebb.so.0").resolve()),
            "LC_ALL": "C.UTF-8",
            "PATH": f"{Path(bin_folder).resolve()}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(TREE / "bindings/python/src"),
        }

    def run(self, command):
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, timeout=LIMIT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return done.stdout.rstrip("\n").split("\n") if done.stdout.strip("\n") else []


class Report:
    def __init__(self):
        self.failed = 0
        self.commands = 0
        self.slowest = (0.0, "")
        self.counts = Counter()
        self.reasons = Counter()

    def fail(self, where, what):
        self.failed += 1
        print(f"{where}: {what}")

    def count(self, block):
        if block.is_text:
            self.counts["text"] += 1
        elif block.mark:
            self.counts[block.mark[0]] += 1
            self.reasons[": ".join(block.mark)] += 1
        elif block.is_session:
            self.counts["run here"] += 1
        else:
            self.fail(block, "is not run and does not say why: see tests/docs/blocks.py")

    def __str__(self):
        told = ", ".join(f"{n} {what}" for what, n in sorted(self.counts.items()))
        lines = [f"blocks: {told}; {self.commands} commands, the slowest {self.slowest[0]:.1f} s:"]
        lines += [f"  {self.slowest[1]}"]
        lines += [f"  {n:4} {reason}" for reason, n in self.reasons.most_common()]
        return "\n".join(lines)


def stripped(lines):
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def run_page(page, bin_folder, report, update):
    blocks = blocks_of(page)
    for block in blocks:
        report.count(block)
    sessions = [b for b in blocks if b.is_session and not b.mark and not b.is_text]
    changes = []  # first line, one past the last, the new ones
    with tempfile.TemporaryDirectory() as folder:
        room = Room(bin_folder, folder)
        for block in sessions:
            for command in commands_of(block):
                start = time.monotonic()
                printed = without_notes(room.run(command.text), command.shown)
                took = time.monotonic() - start
                report.commands += 1
                report.slowest = max(report.slowest, (took, f"{block}: {command.text}"))
                shown = stripped(command.shown)
                if agrees(comparable(shown), comparable(printed)):
                    continue
                at = block.line - 1 + command.first
                changes.append((at, at + len(shown), [" " * block.indent + x for x in printed]))
                if not update:
                    report.fail(block, f"$ {command.text}\n" + difference(shown, printed))
    if update and changes:
        rewrite(page, changes)


def difference(shown, printed):
    return "\n".join(["--- the page"] + shown + ["--- the command"] + printed)


def rewrite(page, changes):
    lines = (TREE / page).read_text().split("\n")
    for first, limit, new in reversed(changes):
        lines[first:limit] = [line.rstrip() for line in new]
    (TREE / page).write_text("\n".join(lines))
    print(f"{page}: {len(changes)} outputs written")


def main(arguments):
    update = "--update" in arguments
    bin_folder, *named = [a for a in arguments if a != "--update"]
    if not Path(bin_folder, "ckpt-inspect").exists():
        return f"{bin_folder}: no programs are here; ./dev build makes them"
    report = Report()
    for page in named or pages():
        run_page(page, bin_folder, report, update)
        for broken in broken_anchors(page):
            report.fail("link", broken)
    print(report)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
