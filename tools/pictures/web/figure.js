'use strict';
// A figure: rows of marks on one scale. A row is {label, value, strong, marks}; marks are
// {n, from(i), to(i), style(i), text(i), group(i), groupText(i), tell(i), name(i), least}. All but
// `n`, `from`, `to`, `style`, `tell` and `name` may be left out. Names are data of a checkpoint:
// they become text nodes and canvas text, never markup.
//
// A figure is one stop of the Tab key; arrows move from mark to mark, and the reader at the foot of
// the page says what the chosen one is.

function element(kind, attributes, ...inside) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

const reader = {
  place: null,
  make() {
    this.place = element('div', {});
    this.place.append(
      'Point at a mark, touch it, or press Tab and the arrow keys: what it is stands here.');
    return element('div', {id: 'reader', role: 'status', 'aria-live': 'polite'}, this.place);
  },
  say(facts) {
    const [head, ...rest] = facts;
    const list = element('dl', {});
    for (const [term, value] of rest)
      list.append(element('div', {}, element('dt', {}, term), element('dd', {}, String(value))));
    this.place.replaceChildren(element('strong', {}, head), list);
  },
};

class Figure {
  constructor(page, section) {
    this.page = page;
    this.rows = section.rows;
    this.span = section.span;
    this.zooms = section.zooms;
    this.ticks = section.ticks || [];
    this.view = [section.start || 0, section.span];
    this.chosen = null;
    this.element = element('div', {
      class: 'rows', tabindex: '0', role: 'application', 'aria-roledescription': 'picture',
      'aria-label': section.title + ': arrow keys move from mark to mark',
    });
    if (section.tall) this.element.style.setProperty('--tall', section.tall + 'px');
    if (section.tall && section.tall < 20) this.element.classList.add('dense');
    for (const [name, width] of Object.entries(section.widths || {}))
      this.element.style.setProperty('--' + name, width);
    this.rows.forEach((row) => this.addRow(row));
    this.listen();
  }

  addRow(row) {
    row.canvas = element('canvas', {'aria-hidden': 'true'});
    row.canvas.row = row;
    this.element.append(element('div', {class: row.strong ? 'row strong' : 'row'},
      element('span', {class: 'label', title: row.label}, row.label), row.canvas,
      element('span', {class: 'value'}, row.value || '')));
    this.page.seen.observe(row.canvas);
  }

  count() { return this.rows.reduce((sum, row) => sum + row.marks.n, 0); }

  // --- drawing -------------------------------------------------------------------------------

  place(row, i, width) {
    const [first, last] = this.view, scale = width / (last - first);
    const x0 = (row.marks.from(i) - first) * scale, x1 = (row.marks.to(i) - first) * scale;
    const least = row.marks.least ? row.marks.least(i) : 0;
    const wide = Math.max(x1 - x0, least);
    const centred = x0 - (wide - (x1 - x0)) / 2;
    return [least > 2 ? centred : Math.max(0, Math.min(centred, width - wide)), wide];
  }

  draw(row) {
    const canvas = row.canvas, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    this.drawTicks(context, row, width, height);
    const places = this.visible(row, width);
    for (const last of [false, true])
      for (const [i, x, wide] of places) {
        const style = row.marks.style(i);
        if (Boolean(style.above) !== last) continue;
        context.globalAlpha = this.page.wants(row.marks.name(i)) ? 1 : .15;
        drawShape(context, style, x, 0, wide, height);
        if (this.ends(row, i, wide, style)) {
          context.fillStyle = theme.colour('--paper');
          context.fillRect(x + wide - .75, 0, .75, height);
        }
      }
    context.globalAlpha = 1;
    if (height >= 13) this.drawTexts(context, row, places, height);
    this.outline(context, row, width, height);
  }

  // Whether a line parts a bar from the next one: always where its group ends.
  ends(row, i, wide, style) {
    if (style.shape || wide < 2) return false;
    const {group, n} = row.marks;
    return wide > 9 || !group || i + 1 === n || group(i) !== group(i + 1);
  }

  visible(row, width) {
    const places = [];
    for (let i = 0; i < row.marks.n; ++i) {
      const [x, wide] = this.place(row, i, width);
      if (x + wide >= 0 && x <= width) places.push([i, x, wide]);
    }
    return places;
  }

  drawTicks(context, row, width, height) {
    for (const [value, text] of row.axis || this.ticks) {
      const x = (value - this.view[0]) / (this.view[1] - this.view[0]) * width;
      if (row.axis) {
        context.textAlign = x < 15 ? 'left' : x > width - 15 ? 'right' : 'center';
        drawText(context, text, x, height / 2, '--soft', '--paper');
      } else {
        context.fillStyle = theme.colour('--line');
        context.fillRect(Math.min(x, width - 1), 0, 1, height);
      }
    }
    context.textAlign = 'center';
  }

  // A mark's own text where it fits; else that of the run of marks of its group.
  drawTexts(context, row, places, height) {
    const fits = (text, wide) => text && text.length * 6.4 + 6 < wide;
    const put = (text, style, x, wide) => {
      const plate = text.length * 6.4 + 4;
      context.fillStyle = theme.colour(style.fill);
      if (style.hatch) context.fillRect(x + (wide - plate) / 2, 1, plate, height - 2);
      drawText(context, text, x + wide / 2, height / 2 + .5, style.ink, style.fill);
    };
    if (!row.marks.text) return;
    for (let k = 0; k < places.length;) {
      const [i, x] = places[k], group = row.marks.group ? row.marks.group(i) : k;
      let end = k, labelled = false;
      for (; end < places.length; ++end) {
        const [j, left, wide] = places[end], style = row.marks.style(j);
        if (end > k && (!row.marks.group || row.marks.group(j) !== group)) break;
        const text = row.marks.text(j);
        if (!style.ink || !fits(text, wide)) continue;
        put(text, style, left, wide);
        labelled = true;
      }
      const [, left, wide] = places[end - 1], style = row.marks.style(i);
      const text = row.marks.groupText ? row.marks.groupText(i) : '';
      if (!labelled && style.ink && fits(text, left + wide - x))
        put(text, style, x, left + wide - x);
      k = end;
    }
  }

  outline(context, row, width, height) {
    if (!this.chosen || this.chosen[0] !== row) return;
    const [x, wide] = this.place(row, this.chosen[1], width);
    context.lineWidth = 2;
    context.strokeStyle = theme.colour('--paper');
    context.strokeRect(x - 1, 3, wide + 2, height - 6);
    context.strokeStyle = theme.colour('--ink');
    context.strokeRect(x - 2, 1, wide + 4, height - 2);
    context.lineWidth = 1;
  }

  redraw() { for (const row of this.rows) if (row.seen) this.draw(row); }

  // --- choosing ------------------------------------------------------------------------------

  choose(row, i) {
    const before = this.chosen;
    if (before && before[0] === row && before[1] === i) return;
    this.page.leave(this);
    this.chosen = [row, i];
    if (before && before[0] !== row) this.draw(before[0]);
    this.draw(row);
    reader.say(row.marks.tell(i));
  }

  nearest(row, x) {
    const width = row.canvas.clientWidth;
    let best = -1, distance = Infinity;
    for (let i = 0; i < row.marks.n; ++i) {
      const [left, wide] = this.place(row, i, width);
      let away = Math.max(left - x, x - left - wide, 0);
      if (away === 0 && row.marks.style(i).above) away = -1;
      if (away < distance) [best, distance] = [i, away];
    }
    return distance < 24 ? best : -1;
  }

  point(event) {
    const row = event.target.row;
    if (!row) return;
    const i = this.nearest(row, event.clientX - row.canvas.getBoundingClientRect().left);
    if (i >= 0) this.choose(row, i);
  }

  listen() {
    this.element.addEventListener('pointermove', (event) => this.point(event));
    this.element.addEventListener('pointerdown', (event) => this.point(event));
    this.element.addEventListener('keydown', (event) => {
      if (this.page.zoomKey(event.key) || this.move(event)) event.preventDefault();
    });
    this.element.addEventListener('focus', () => {
      if (!this.chosen) this.step(1);
    });
  }

  move(event) {
    const rows = this.rows.filter((row) => row.marks.n);
    if (!rows.length) return false;
    const [row, i] = this.chosen || [rows[0], 0];
    const at = rows.indexOf(row);
    const keys = {
      ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1),
      ArrowDown: () => this.across(rows[at + 1]), ArrowUp: () => this.across(rows[at - 1]),
      Home: () => this.go(event.ctrlKey ? rows[0] : row, 0),
      End: () => {
        const to = event.ctrlKey ? rows[rows.length - 1] : row;
        this.go(to, to.marks.n - 1);
      },
      Enter: () => this.page.look(row.marks.name(i)), Escape: () => this.page.look(''),
    };
    if (!keys[event.key]) return false;
    keys[event.key]();
    return true;
  }

  // The next mark or the one before, through all rows.
  step(by) {
    const rows = this.rows.filter((row) => row.marks.n);
    if (!rows.length) return;
    if (!this.chosen) return this.go(rows[0], 0);
    const [row, i] = this.chosen, next = rows[rows.indexOf(row) + by];
    if (i + by >= 0 && i + by < row.marks.n) return this.go(row, i + by);
    if (next) this.go(next, by > 0 ? 0 : next.marks.n - 1);
  }

  across(row) {
    if (!row) return;
    const [from, i] = this.chosen, width = row.canvas.clientWidth;
    const [left, wide] = this.place(from, i, width);
    let best = 0, distance = Infinity;
    for (let k = 0; k < row.marks.n; ++k) {
      const [x, w] = this.place(row, k, width);
      const away = Math.abs(x + w / 2 - left - wide / 2);
      if (away < distance) [best, distance] = [k, away];
    }
    this.go(row, best);
  }

  go(row, i) {
    const from = row.marks.from(i), to = row.marks.to(i), [first, last] = this.view;
    if (this.zooms && (from < first || to > last)) this.page.show((from + to) / 2);
    this.choose(row, i);
    row.canvas.scrollIntoView({block: 'nearest'});
  }
}
