'use strict';
// Norms by layer and state. `data` has
//   layers   [[stack, first, last], ...]
//   tensors  [[name, state, dtype, shape, layer, stats], ...]: stats as --stats --json has them, or
//            null; a tensor of all layers is listed once for each
// A row is a layer: a bar to its own norm, a dot for each tensor's, on one logarithmic scale for
// each state.

const kLayerNorm = {fill: '--bar', ink: '--ink'};
const kTensorNorm = {fill: '--strong', shape: 'dot', above: true};
const kNoNorm = {fill: '--strong', shape: 'ring', above: true};
const kUnsound = {fill: '--paper', line: '--warn', hatch: 'cross', above: true};

// Four digits of it, as the tools print them.
function digits(value) {
  if (value === null) return '-';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) {
    const [mantissa, exponent] = value.toExponential(3).split('e');
    return Number(mantissa) + 'e' + exponent.replace('+', '');
  }
  return String(Number(value.toPrecision(4)));
}

const kStats = ['min', 'max', 'mean', 'norm'];
function tensorWords([name, state, dtype, shape, layer, stats]) {
  const facts = [['state', state], ['dtype', dtype], ['shape', shape]];
  if (layer >= 0) facts.push(['layer', layerWords(layer)]);
  for (const one of kStats) facts.push([one, digits(stats[one])]);
  facts.push(['zeros', `${countText(stats.zeros)} of ${countText(stats.numbers)}`]);
  if (stats.nans) facts.push(['NaN', countText(stats.nans)]);
  if (stats.infinities) facts.push(['infinities', countText(stats.infinities)]);
  return [name, ...facts];
}

const finite = ([, , , , , stats]) => stats && stats.norm !== null;
const unsound = ([, , , , , stats]) => stats && stats.nans + stats.infinities > 0;

// --- one state -----------------------------------------------------------------------------------

// [first exponent, last exponent] of ten, around all norms.
function exponents(tensors, rows) {
  const norms = [...tensors.filter(finite).map(([, , , , , stats]) => stats.norm),
                 ...rows.map((row) => row.norm)].filter((norm) => norm > 0);
  if (!norms.length) return [0, 1];
  const least = Math.floor(Math.log10(Math.min(...norms)) - .02);
  return [least, Math.max(least + 1, Math.ceil(Math.log10(Math.max(...norms)) + .02))];
}

function layerRows(tensors) {
  const layers = new Map();
  for (const tensor of tensors) {
    if (!layers.has(tensor[4])) layers.set(tensor[4], []);
    layers.get(tensor[4]).push(tensor);
  }
  const order = (layer) => layer < 0 ? ['\uffff', 0] : data.layers[layer];
  return [...layers].sort(([a], [b]) => {
    const [stack, first] = order(a), [other, second] = order(b);
    return stack < other ? -1 : stack > other ? 1 : first - second;
  }).map(([layer, all]) => ({layer, all, norm: Math.sqrt(all.filter(finite).reduce(
    (sum, [, , , , , stats]) => sum + stats.norm * stats.norm, 0))}));
}

function normRow({layer, all, norm}, least, span) {
  const place = (value) => value > 0 ? Math.max(0, Math.log10(value) - least) : 0;
  const label = layer < 0 ? 'no layer' : 'layer ' + layerText(layer);
  const counted = all.filter(finite), bad = all.filter(unsound);
  const marks = [];
  if (counted.length)
    marks.push({from: 0, to: place(norm), style: kLayerNorm, name: '', tell: [
      layer < 0 ? 'Outside the layers' : 'Layer ' + layerWords(layer), ['norm', digits(norm)],
      ['tensors', counted.length]]});
  for (const tensor of counted) {
    const at = place(tensor[5].norm);
    marks.push({from: at, to: at, name: tensor[0], tell: tensorWords(tensor),
                style: tensor[5].norm > 0 ? kTensorNorm : kNoNorm});
  }
  for (const tensor of bad)
    marks.push({from: span, to: span, style: kUnsound, name: tensor[0],
                tell: tensorWords(tensor)});
  const spoilt = bad.length ? ` · ${bad.length} NaN/Inf` : '';
  return {label, value: (counted.length ? digits(norm) : '-') + spoilt, strong: bad.length > 0,
    marks: {n: marks.length, from: (i) => marks[i].from, to: (i) => marks[i].to,
            least: (i) => marks[i].style === kUnsound ? 10 : 0, style: (i) => marks[i].style,
            name: (i) => marks[i].name, tell: (i) => marks[i].tell}};
}

function powerOfTen(exponent) {
  return exponent >= -3 && exponent <= 4 ? String(Number((10 ** exponent).toPrecision(1)))
                                         : '1e' + exponent;
}

const known = data.tensors.filter((tensor) => tensor[5]);
const states = [...new Set(known.map(([, state]) => state))];
const sections = states.map((state) => {
  const tensors = known.filter((tensor) => tensor[1] === state), rows = layerRows(tensors);
  const [least, most] = exponents(tensors, rows), span = most - least, ticks = [];
  const step = Math.ceil(span / 8);
  for (let at = least; at <= most; at += step) ticks.push([at - least, powerOfTen(at)]);
  const whole = Math.sqrt(rows.reduce((sum, {norm}) => sum + norm * norm, 0));
  return {title: state, span, ticks, tall: rows.length > 40 ? 15 : 20,
    note: `norm ${digits(whole)} of ${countText(tensors.length)} tensors`,
    widths: {value: '9.5em', 'narrow-label': '5em', 'narrow-value': '4.6em'},
    rows: [{label: 'norm', axis: ticks, marks: {n: 0}},
           ...rows.map((row) => normRow(row, least, span))]};
});

const legend = [[kLayerNorm, 'norm of the layer'], [kTensorNorm, 'norm of one tensor']];
if (known.some((tensor) => finite(tensor) && tensor[5].norm === 0)) legend.push([kNoNorm, 'zero']);
if (known.some(unsound)) legend.push([kUnsound, 'NaN or infinity']);

picture({legend, sections, table: {
  columns: [['tensor'], ['state'], ['layer'], ['dtype'], ['shape'], ['norm', 'right'],
            ['min', 'right'], ['max', 'right'], ['mean', 'right'], ['zeros', 'right'],
            ['NaN', 'right'], ['Inf', 'right']],
  n: data.tensors.length,
  name: (i) => data.tensors[i][0],
  row(i) {
    const [name, state, dtype, shape, layer, stats] = data.tensors[i];
    const head = [name, state, layerText(layer), dtype, shape];
    if (!stats) return [...head, ...Array(7).fill('-')];
    return [...head, ...['norm', 'min', 'max', 'mean'].map((one) => digits(stats[one])),
            countText(stats.zeros), stats.nans, stats.infinities];
  },
}});
