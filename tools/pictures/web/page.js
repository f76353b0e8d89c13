'use strict';
// The page around figures: legend, tools, sections and the table that says the same. A picture's
// script calls `picture({legend, sections, table})` once.

const kTableRows = 50;

class Page {
  constructor() {
    this.figures = [];
    this.needle = '';
    this.zoom = 1;
    this.seen = new IntersectionObserver((entries) => this.comeAndGo(entries),
      {rootMargin: '400px 0px'});
  }

  // Canvases out of sight keep no bitmap.
  comeAndGo(entries) {
    for (const {target, isIntersecting} of entries) {
      target.row.seen = isIntersecting;
      if (isIntersecting)
        this.figures.find((one) => one.rows.includes(target.row)).draw(target.row);
      else
        target.width = target.height = 1;
    }
  }

  wants(name) { return !this.needle || name.toLowerCase().includes(this.needle); }

  look(text) {
    this.needle = text.toLowerCase();
    if (this.search) this.search.value = text;
    this.redraw();
    this.table.first = 0;
    this.table.fill();
  }

  redraw() { for (const figure of this.figures) figure.redraw(); }

  leave(figure) {
    for (const other of this.figures) {
      if (other === figure || !other.chosen) continue;
      const [row] = other.chosen;
      other.chosen = null;
      other.draw(row);
    }
  }

  // --- how much of the scale is shown ----------------------------------------------------------

  zoomKey(key) {
    const by = {'+': 2, '=': 2, '-': .5, 0: 0}[key];
    if (by === undefined || !this.zoomed().length) return false;
    this.zoomTo(by === 0 ? 1 : this.zoom * by);
    return true;
  }

  // The figures of strips, which have one scale.
  zoomed() { return this.figures.filter((figure) => figure.zooms); }

  zoomTo(zoom) {
    this.zoom = Math.min(Math.max(zoom, 1), 4096);
    const figure = this.zoomed().find((one) => one.chosen) || this.zoomed()[0];
    const [row, i] = figure.chosen || [null, 0];
    this.show(row ? (row.marks.from(i) + row.marks.to(i)) / 2
                  : (figure.view[0] + figure.view[1]) / 2);
  }

  show(middle) {
    for (const figure of this.zoomed()) {
      const wide = figure.span / this.zoom;
      const first = Math.max(0, Math.min(middle - wide / 2, figure.span - wide));
      figure.view = [first, first + wide];
    }
    this.redraw();
  }

  // --- parts -------------------------------------------------------------------------------------

  legend(items) {
    const list = element('ul', {class: 'legend', 'aria-label': 'Legend'});
    for (const [style, text] of items) list.append(element('li', {}, swatch(style), text));
    return list;
  }

  tools(zooms) {
    const bar = element('div', {class: 'tools'});
    this.search = element('input', {type: 'search', placeholder: 'find by name',
      'aria-label': 'Show only what has this in its name'});
    this.search.addEventListener('input', () => this.look(this.search.value));
    bar.append(this.search);
    if (zooms)
      for (const [text, words, key] of [['+', 'Closer', '+'], ['\u2212', 'Further', '-'],
                                        ['All', 'The whole width', '0']]) {
        const button = element('button', {type: 'button', 'aria-label': words}, text);
        button.addEventListener('click', () => this.zoomKey(key));
        bar.append(button);
      }
    return bar;
  }

  add(section) {
    const figure = new Figure(this, section);
    this.figures.push(figure);
    return element('section', {}, element('h2', {}, section.title),
      element('p', {}, section.note || ''), figure.element);
  }

  build({legend, sections, table}) {
    const zooms = sections.some((section) => section.zooms);
    this.table = new SameAsTable(this, table);
    const parts = [this.legend(legend), this.tools(zooms), ...sections.map((one) => this.add(one)),
                   this.table.element];
    document.getElementById('picture').append(...parts);
    document.body.append(reader.make());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      theme.forget();
      this.element('.legend').replaceWith(this.legend(legend));
      this.redraw();
    });
    new ResizeObserver(() => this.redraw()).observe(document.getElementById('picture'));
    window.addEventListener('beforeprint', () =>
      this.figures.forEach((figure) => figure.rows.forEach((row) => figure.draw(row))));
  }

  element(selector) { return document.querySelector(selector); }
}

// {columns: [[heading, 'right' or '']], n, row(i), name(i)}: a page of rows at a time.
class SameAsTable {
  constructor(page, table) {
    this.page = page;
    this.table = table;
    this.first = 0;
    this.body = element('tbody', {});
    this.words = element('span', {'aria-live': 'polite'});
    const heads = table.columns.map(([text, align]) =>
      element('th', {scope: 'col', class: align || 'left'}, text));
    this.back = this.button('Previous', () => this.turn(-kTableRows));
    this.next = this.button('Next', () => this.turn(kTableRows));
    this.element = element('section', {id: 'table'}, element('h2', {}, 'The same as a table'),
      element('div', {class: 'tools'}, this.back, this.next, this.words),
      element('div', {class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Table'},
        element('table', {},
          element('thead', {}, element('tr', {}, ...heads)), this.body)));
    this.fill();
  }

  button(text, act) {
    const made = element('button', {type: 'button'}, text);
    made.addEventListener('click', act);
    return made;
  }

  turn(by) {
    this.first += by;
    this.fill();
  }

  fill() {
    const lines = [];
    let count = 0;
    for (let i = 0; i < this.table.n; ++i) {
      if (!this.page.wants(this.table.name(i))) continue;
      if (count >= this.first && count < this.first + kTableRows) lines.push(this.line(i));
      ++count;
    }
    this.body.replaceChildren(...lines);
    this.words.textContent = count
      ? `${countText(this.first + 1)} to ${countText(this.first + lines.length)} of ` +
        countText(count)
      : 'nothing has this in its name';
    this.back.disabled = this.first === 0;
    this.next.disabled = this.first + kTableRows >= count;
  }

  line(i) {
    const line = element('tr', {});
    this.table.row(i).forEach((cell, at) =>
      line.append(element('td', {class: this.table.columns[at][1] || 'left'}, String(cell))));
    return line;
  }
}

// As the tools print them.
function bytesText(bytes) {
  if (bytes < 1024) return bytes + ' B';
  const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let value = bytes / 1024, unit = 0;
  for (; value >= 1023.95 && unit + 1 < units.length; ++unit) value /= 1024;
  return value.toFixed(1) + ' ' + units[unit];
}

function countText(count) { return String(count).replace(/\B(?=(\d{3})+$)/g, ','); }

const data = JSON.parse(document.getElementById('data').textContent);
const page = new Page();
// What a judge looks at.
const ebb = window.ebb = {page, texts: drawnTexts, data};

function picture(what) {
  page.build(what);
  ebb.marks = page.figures.reduce((sum, figure) => sum + figure.count(), 0);
  ebb.ready = performance.now();
}
