#!/usr/bin/env python3
"""Acceptance judge: what does a real Chromium make of the pages that the tools draw?

  judge_pictures.py BIN FIXTURES ARTEFACTS [CASE...]
BIN holds ckpt-inspect, ckpt-convert, swap-bench and ebb-synthetic; screenshots go to ARTEFACTS. Each page is opened in light,
in dark and as wide as a phone. Looked at: no console error and no request; as many marks as --json tells; every mark
reached with the arrow keys, by pointing and by touch; text of a contrast of at least 4.5 and at least 10 px; no page wider
than its window; the table says what --json says. Exit 0 and one line with counts, or exit 1 and one line per fault.
"""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

import browser

LEAST_CONTRAST, LEAST_PIXELS = 4.5, 10
MOST_BYTES, MOST_SECONDS = 5_000_000, 2
VIEWS = (("light", 1200, 900, False), ("dark", 1200, 900, False), ("phone", 360, 740, True))
TAB, RIGHT, HOME = ("Tab", 9), ("ArrowRight", 39), ("Home", 36)
CONTROL = 2
WALKED = 80  # marks that are walked to with real key presses; beyond, the page walks alone

# Every text that the page shows: [colour, background, pixels, text].
TEXTS = """(() => {
  const opaque = (colour) => !/rgba\\(.*, 0\\)|transparent/.test(colour);
  const out = [];
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const field = one.matches('input');
    if (!own && !field || one.matches('script, style, noscript') || !one.offsetParent &&
        getComputedStyle(one).position !== 'fixed' && !one.closest('#reader')) continue;
    const style = getComputedStyle(one);
    let behind = one;
    while (behind && !opaque(getComputedStyle(behind).backgroundColor))
      behind = behind.parentElement;
    out.push([field ? getComputedStyle(one, '::placeholder').color : style.color,
              getComputedStyle(behind || document.documentElement).backgroundColor,
              parseFloat(style.fontSize), one.textContent.trim().slice(0, 40)]);
  }
  for (const text of ebb.texts) {
    const [ink, paper, size] = text.split(' ');
    out.push([ink, paper, Number(size), 'in the picture']);
  }
  return out;
})()"""

# Without drawing each step of it.
WALK_ALL = """(() => {
  const {draw} = Figure.prototype, {scrollIntoView} = Element.prototype;
  Figure.prototype.draw = Element.prototype.scrollIntoView = () => {};
  let reached = 0;
  for (const figure of ebb.page.figures) {
    ebb.page.leave(null);
    figure.chosen = null;
    const seen = new Set();
    for (let i = 0; i <= figure.count(); ++i) {
      figure.step(1);
      if (!figure.chosen) break;
      seen.add(figure.rows.indexOf(figure.chosen[0]) + ' ' + figure.chosen[1]);
    }
    reached += seen.size;
  }
  Figure.prototype.draw = draw;
  Element.prototype.scrollIntoView = scrollIntoView;
  return reached;
})()"""

# The middle of a mark that is wide enough to be pointed at, and what the reader is to say then.
A_MARK = """(() => {
  const found = [];
  for (const figure of ebb.page.figures)
    for (const row of figure.rows) {
      const box = row.canvas.getBoundingClientRect();
      if (!row.marks.n || box.top < 0 || box.bottom > innerHeight - 140) continue;
      for (let i = 0; i < row.marks.n; ++i) {
        const [x, wide] = figure.place(row, i, box.width);
        if (row.marks.from(i) === row.marks.to(i) || wide < 6) continue;
        found.push([box.left + x + wide / 2, box.top + box.height / 2,
                    row.marks.tell(figure.nearest(row, x + wide / 2))[0]]);
        break;
      }
    }
  return found.slice(0, 3);
})()"""


def rgb(colour):
    if colour.startswith("#"):
        digits = colour[1:] if len(colour) == 7 else "".join(2 * one for one in colour[1:])
        return [int(digits[i:i + 2], 16) for i in (0, 2, 4)]
    return [float(one) for one in colour[colour.index("(") + 1:-1].split(",")[:3]]


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
              for c in (v / 255 for v in rgb(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


class Judge:
    def __init__(self, tools, fixtures, artefacts, tab):
        self.tools, self.fixtures, self.artefacts, self.tab = tools, fixtures, artefacts, tab
        self.faults, self.pages, self.marks, self.label = [], 0, 0, ""

    def fault(self, what):
        self.faults.append(f"{self.label}: {what}")

    def tool(self, name, *arguments):
        done = subprocess.run([os.path.join(self.tools, name), *arguments], cwd=self.fixtures,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.fault(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def page(self, case):
        return os.path.join(self.artefacts, case + ".html")

    # --- what every page has to stand ------------------------------------------------------------

    def look(self, case, expected):
        for view, width, height, phone in VIEWS:
            self.label = f"{case}, {view}"
            self.tab.open(self.page(case), width, height, "dark" if view == "dark" else "light",
                          phone)
            self.check_view(expected, width)
            self.check_keys()
            self.check_pointing(phone)
            for error in self.tab.errors:
                self.fault("console: " + error.splitlines()[0])
            self.tab.screenshot(os.path.join(self.artefacts, f"{case}-{view}.png"))
        self.pages += 1
        self.marks += expected

    def check_view(self, expected, width):
        marks = self.tab.run("ebb.marks")
        if marks != expected:
            self.fault(f"{marks} marks, --json tells of {expected}")
        wide = self.tab.run("document.documentElement.scrollWidth")
        if wide > width:
            self.fault(f"{wide} px wide in a window of {width}")
        for ink, paper, size, text in self.tab.run(TEXTS):
            if contrast(ink, paper) < LEAST_CONTRAST:
                self.fault(f"contrast {contrast(ink, paper):.2f}: {ink} on {paper}: {text!r}")
            if size < LEAST_PIXELS:
                self.fault(f"{size} px: {text!r}")

    def check_keys(self):
        """Tab leads to each figure, arrows to each of its marks."""
        figures = self.tab.run("ebb.page.figures.length")
        self.tab.run("document.activeElement.blur(), window.scrollTo(0, 0)")
        focused, reached, all_marks = [], 0, self.tab.run("ebb.marks")
        for _ in range(12 + 2 * figures):
            self.tab.key(*TAB)
            at = self.tab.run("ebb.page.figures.findIndex((one) => one.element === "
                              "document.activeElement)")
            if at < 0 or at in focused:
                continue
            focused.append(at)
            if all_marks <= WALKED:
                reached += self.walk(at)
        if len(focused) != figures:
            self.fault(f"Tab reaches {len(focused)} of {figures} figures")
        if all_marks > WALKED:
            reached = self.tab.run(WALK_ALL)
        if reached != all_marks:
            self.fault(f"keys reach {reached} of {all_marks} marks")

    def walk(self, at):
        figure = f"ebb.page.figures[{at}]"
        count = self.tab.run(figure + ".count()")
        self.tab.key(*HOME, modifiers=CONTROL)
        seen = set()
        for _ in range(count):
            seen.add(self.tab.run(f"(([row, i]) => {figure}.rows.indexOf(row) + ' ' + i)"
                                  f"({figure}.chosen)"))
            said = self.tab.run("document.querySelector('#reader').textContent")
            if len(said) < 3:
                self.fault("the reader says nothing of a mark")
            self.tab.key(*RIGHT)
        return len(seen)

    def check_pointing(self, phone):
        self.tab.run("window.scrollTo(0, 0)")
        self.tab.settle()
        for x, y, said in self.tab.run(A_MARK):
            (self.tab.touch if phone else self.tab.point)(x, y)
            self.tab.settle()
            head = self.tab.run("document.querySelector('#reader strong')?.textContent")
            if head != said:
                self.fault(f"pointing at {said!r} makes the reader say {head!r}")

    def rows(self):
        """All rows of the table, as the page has them."""
        return self.tab.run("Array.from({length: ebb.page.table.table.n}, (_, i) => "
                            "ebb.page.table.table.row(i).map(String))")

    def agree(self, what, page, tool):
        missing = [one for one in tool if one not in page]
        if len(page) != len(tool) or missing:
            self.fault(f"{what}: {len(page)} in the page, {len(tool)} in --json; not there: "
                       f"{missing[:2]}")

    # --- cases -----------------------------------------------------------------------------------

    def map(self, case, source, holes=0, twice=0, padding=0):
        self.label = case
        said = json.loads(self.tool("ckpt-inspect", source, "--map", self.page(case), "--json"))
        shards = json.loads(self.tool("ckpt-inspect", source, "--shards", "--json"))["shards"]
        shards = [one for one in shards if math.prod(one["box"]["extent"]) > 0]
        self.agree("holes and overlaps", [said["holes"], said["stored_twice"]], [holes, twice])
        if padding:
            padding = 1
        self.look(case, len(shards) + holes + padding)
        page = {(row[0], row[1], row[2], row[4], row[5], row[6]) for row in self.rows()}
        tool = {(one["name"], one["state"], str(one["rank"]), one["file"], str(one["offset"]),
                 str(one["offset"] + one["length"])) for one in shards}
        self.agree("shards", page, tool)

    def plan(self, case, source, *flags):
        self.label = case
        with tempfile.TemporaryDirectory() as folder:
            said = json.loads(self.tool("ckpt-convert", source, os.path.join(folder, "out"), *flags,
                                        "-n", "--plan", self.page(case), "--json"))["plan"]
        self.look(case, said["pieces"] + len(said["flows"]))
        flows = self.tab.run("ebb.data.flows")
        self.agree("flows", [tuple(one) for one in flows],
                   [(one["from"], one["to"], one["bytes"]) for one in said["flows"]])
        drawn = self.tab.run("ebb.data.strips.reduce((all, {pieces}) => all + pieces.at[pieces.n], "
                             "0)")
        if drawn != said["staying_bytes"] + said["moving_bytes"]:
            self.fault(f"{drawn} bytes are drawn")

    def norms(self, case, source, stacked=False):
        self.label = case
        said = json.loads(self.tool("ckpt-inspect", source, "--stats", "--picture",
                                    self.page(case), "--json"))
        self.tab.open(self.page(case))
        tensors = self.tab.run("ebb.data.tensors")
        counted = [one for one in tensors if one[5] and one[5]["norm"] is not None]
        spoilt = [one for one in tensors if one[5] and one[5]["nans"] + one[5]["infinities"]]
        self.look(case, len(counted) + len(spoilt) + len({(one[1], one[4]) for one in counted}))
        squares = {}
        for name, state, _, _, _, stats in tensors:
            if stats and stats["norm"] is not None:
                squares[name, state] = squares.get((name, state), 0) + stats["norm"] ** 2
        for one in said["tensors"]:
            norm = one["stats"] and one["stats"]["norm"]
            drawn = squares.get((one["name"], one["state"]))
            if norm is not None and not math.isclose(norm ** 2, drawn, rel_tol=1e-9):
                self.fault(f"{one['name']}: norm {norm}, drawn {drawn ** .5}")
        if stacked and not any(one[4] >= 0 for one in tensors):
            self.fault("no layer was found")

    def rates(self, case):
        self.label = case
        with tempfile.TemporaryDirectory() as folder:
            said = json.loads(self.tool(
                "swap-bench", folder, "--size", "32MiB", "--seconds", "3", "--state", "16GiB",
                "--picture", self.page(case), "--json"))
        self.look(case, 4 * len(said["settings"]) + 1)
        page = self.tab.run("ebb.data")
        self.agree("settings", page["settings"], said["settings"])
        self.agree("the step", list(page["step"].items()), list(said["step"].items()))

    def damaged(self, case, row, **expected):
        """A shard of a vector that says it begins at this row, which is not where it does."""
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "damaged")
            shutil.copytree(os.path.join(self.fixtures, "safetensors/dcp_hf_sharded_w3/data"), source)
            name = os.path.join(source, "shard-00003-model-00001-of-00001.safetensors")
            with open(name, "rb") as file:
                content = file.read()
            place = b'\\"v\\": {\\"saved_offsets\\": [%d]'
            with open(name, "wb") as file:
                file.write(content.replace(place % 6, place % row))
            self.map(case, source, **expected)

    def hostile(self, case):
        """Names that would be markup or script, were they not data."""
        names = ["</script><img src=x onerror=\"document.title='broken'\">", "<!--<script>",
                 "layers.0.\u202egnp.\u2028\u0007&quot;'", "a" * 300]
        with tempfile.TemporaryDirectory() as folder:
            header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]}
                      for i, name in enumerate(names)}
            text = json.dumps(header).encode()
            with open(os.path.join(folder, "model.safetensors"), "wb") as out:
                out.write(struct.pack("<Q", len(text)) + text)
                out.write(struct.pack("<8f", *range(8)))
            self.map(case, folder)
            self.norms(case + "-norms", folder)
            self.plan(case + "-plan", folder, "--to", "dcp", "-w", "2")
        for kind in ("", "-norms", "-plan"):
            self.tab.open(self.page(case + kind))
            if self.tab.run("document.querySelectorAll('img').length"):
                self.fault("a name became an element")
            if "broken" in self.tab.run("document.title"):
                self.fault("a name ran as script")

    def large(self, case):
        """As large as a model of 70 billion parameters on 64 ranks."""
        self.label = case
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "large")
            os.mkdir(source)
            self.tool("ebb-synthetic", "dcp", "723", "64", "64", source, "holes")
            self.map(case, source)
        size = os.path.getsize(self.page(case))
        seconds = []
        for _ in range(5):
            self.tab.open(self.page(case))
            seconds.append(self.tab.run("ebb.ready") / 1000)
        if size > MOST_BYTES or min(seconds) > MOST_SECONDS:
            self.fault(f"{size} bytes, drawn in {min(seconds):.2f} s")
        print(f"{case}: {self.tab.run('ebb.marks')} marks, {size} bytes, drawn in "
              f"{min(seconds):.2f} s")

    def all(self, wanted):
        cases = {
            "map": lambda case: self.map(case, "dcp/hsdp_2x2/data"),
            "map-padding": lambda case: self.map(case, "deepspeed/z3_muon_bf16_w4/data", padding=20),
            "map-stacked": lambda case: self.map(case, "megatron/muon_layerwise_tp2_dp2/data"),
            "map-hole": lambda case: self.damaged(case, 7, holes=1),
            "map-overlap": lambda case: self.damaged(case, 5, twice=2),
            "map-hostile": self.hostile,
            "map-large": self.large,
            "plan": lambda case: self.plan(case, "deepspeed/z3_muon_bf16_w4/data", "--to", "dcp",
                                           "-w", "6"),
            "plan-one": lambda case: self.plan(case, "dcp/hsdp_2x2/data", "--to", "safetensors"),
            "norms": lambda case: self.norms(case, "deepspeed/z3_muon_bf16_w4/data"),
            "norms-stacked": lambda case: self.norms(case, "megatron/muon_layerwise_tp2_dp2/data",
                                                     stacked=True),
            "rates": self.rates,
        }
        for case, judge in cases.items():
            if not wanted or case in wanted:
                judge(case)


def main(tools, fixtures, artefacts, *wanted):
    program = browser.found()
    if program is None:
        print("no Chromium is installed")
        return 1
    os.makedirs(artefacts, exist_ok=True)
    with browser.Browser(program) as tab:
        judge = Judge(os.path.abspath(tools), os.path.abspath(fixtures), os.path.abspath(artefacts),
                      tab)
        judge.all(wanted)
    for fault in judge.faults:
        print(fault)
    print(f"{judge.pages} pages in 3 views, {judge.marks} marks, {len(judge.faults)} faults; "
          f"screenshots in {artefacts}")
    return 1 if judge.faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
