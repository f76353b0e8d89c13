'use strict';
// What a disk gives, setting by setting, and where a step lies. `data` is what --json prints.

const kBoth = {fill: '--strong', shape: 'diamond', above: true};
const kRead = {fill: '--ink', shape: 'dot'};
const kWritten = {fill: '--ink', shape: 'ring'};
const kSpread = {fill: '--plain', shape: 'range'};

const gigabytes = (rate) => rate / 1e9;
const rateText = (rate) => gigabytes(rate).toFixed(2) + ' GB/s';

function settingName({block_bytes, depth}) {
  return `${bytesText(block_bytes).replace('.0 ', ' ')} × ${depth}`;
}

const [withCache, withSmallPages] = data.settings.slice(-2);
function kindOf(setting) {
  if (setting === withCache) return 'no O_DIRECT';
  if (setting === withSmallPages) return 'no huge pages';
  return '';
}
const isUsed = (setting) => !kindOf(setting) && setting.block_bytes === data.use.block_bytes &&
  setting.depth === data.use.depth;
const isUsual = ({block_bytes, depth}) => block_bytes === 4 * 1024 * 1024 && depth === 8;

function stepSeconds(rate) {
  const {read_bytes, written_bytes} = data.step;
  return (read_bytes + written_bytes) / rate;
}
const secondsText = (seconds) => seconds.toFixed(seconds < 100 ? 2 : 0) + ' s';

function settingWords(setting) {
  const facts = [['both at once', rateText(setting.mixed_bytes_per_s)],
    ['slowest and fastest turn', rateText(setting.mixed_least_bytes_per_s) + ' to ' +
      rateText(setting.mixed_most_bytes_per_s)],
    ['read', rateText(setting.read_bytes_per_s)], ['written', rateText(setting.write_bytes_per_s)]];
  if (data.step) facts.push(['a step', secondsText(stepSeconds(setting.mixed_bytes_per_s))]);
  const notes = [kindOf(setting), isUsed(setting) ? 'the advice' : ''].filter(Boolean);
  return [`${settingName(setting)}${notes.length ? ': ' + notes.join(', ') : ''}`, ...facts];
}

function settingRow(setting) {
  const marks = [
    [kSpread, setting.mixed_least_bytes_per_s, setting.mixed_most_bytes_per_s, 'both at once'],
    [kRead, setting.read_bytes_per_s, setting.read_bytes_per_s, 'read'],
    [kWritten, setting.write_bytes_per_s, setting.write_bytes_per_s, 'written'],
    [kBoth, setting.mixed_bytes_per_s, setting.mixed_bytes_per_s, 'both at once']];
  const [head, ...facts] = settingWords(setting);
  return {label: kindOf(setting) || settingName(setting), strong: isUsed(setting),
    value: rateText(setting.mixed_bytes_per_s), marks: {
      n: marks.length, from: (i) => gigabytes(marks[i][1]), to: (i) => gigabytes(marks[i][2]),
      style: (i) => marks[i][0], name: () => head, tell: () => [head, ...facts]}};
}

// --- scales ----------------------------------------------------------------------------------

// 1, 2 or 5 times a power of ten, so that about `count` of them make the whole.
function roundStep(whole, count) {
  const power = 10 ** Math.floor(Math.log10(whole / count));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => whole / one <= count);
}

const fastest = Math.max(...data.settings.flatMap((one) => [one.read_bytes_per_s,
  one.write_bytes_per_s, one.mixed_most_bytes_per_s]));
const span = gigabytes(fastest) * 1.04 || 1;
const ticks = [];
const step = roundStep(span, 8);
for (let i = 0; i * step <= span; ++i) ticks.push([i * step, String(Number((i * step).toPrecision(6)))]);

// Seconds of a step on the scale of rates: the faster, the shorter.
function secondTicks() {
  const found = [];
  const least = stepSeconds(span * 1e9);
  for (let power = 10 ** Math.floor(Math.log10(least)); found.length < 9; power *= 10)
    for (const one of [1, 2, 5]) {
      const seconds = one * power, at = gigabytes(stepSeconds(1) / seconds);
      if (at <= span && at >= span / 40) found.push([at, `${Number(seconds.toPrecision(3))} s`]);
      if (at < span / 40) return found;
    }
  return found;
}

function stepRow() {
  const rate = data.use.mixed_bytes_per_s, words = secondsText(data.step.seconds);
  return {label: 'your step', value: words, strong: true, marks: {
    n: 1, from: () => gigabytes(rate), to: () => gigabytes(rate), style: () => kBoth,
    name: () => 'your step', tell: () => [`A step: ${words}`,
      ['state', bytesText(data.step.state_bytes)], ['read', bytesText(data.step.read_bytes)],
      ['written', bytesText(data.step.written_bytes)], ['at', rateText(rate)],
      ['a store reserves', bytesText(data.step.store_bytes)],
      ['written once in', secondsText(data.step.create_seconds)]]}};
}

const rows = [{label: 'GB/s', axis: ticks, marks: {n: 0}}, ...data.settings.map(settingRow)];
if (data.step)
  rows.push(stepRow(), {label: 'a step in', axis: secondTicks(), marks: {n: 0}});

picture({
  legend: [[kBoth, 'read and written at once: a step’s traffic'],
           [kSpread, 'from its slowest to its fastest turn'], [kRead, 'read alone'],
           [kWritten, 'written alone']],
  sections: [{title: 'Rates by block and depth', rows, span, ticks, tall: 24,
    note: 'size of an operation × operations in flight; the advice is bold; the last two are ' +
      'the default without O_DIRECT and without huge pages',
    widths: {label: '7.5em', value: '6em', 'narrow-label': '7em', 'narrow-value': '5em'}}],
  table: {
    columns: [['block'], ['depth', 'right'], ['read GB/s', 'right'], ['write GB/s', 'right'],
              ['both GB/s', 'right'], ['least', 'right'], ['most', 'right'],
              ['a step, s', 'right'], ['']],
    n: data.settings.length,
    name: (i) => settingName(data.settings[i]),
    row(i) {
      const one = data.settings[i], rate = (name) => gigabytes(one[name + '_bytes_per_s']).toFixed(2);
      const note = kindOf(one) || [isUsed(one) ? 'the advice' : '', isUsual(one) ? 'the default' : '']
        .filter(Boolean).join(', ');
      return [bytesText(one.block_bytes), one.depth, rate('read'), rate('write'), rate('mixed'),
              rate('mixed_least'), rate('mixed_most'),
              data.step ? stepSeconds(one.mixed_bytes_per_s).toFixed(2) : '-', note];
    },
  },
});
