'use strict';
// The shard map: a strip for each rank and state, all on one scale of bytes. The numbers of a piece
// are tensor, file, offset, the bytes that it takes there beyond its elements', and place.

const kHole = {fill: '--paper', line: '--warn', hatch: 'cross', above: true};
const kPadding = {fill: '--paper', line: '--soft', hatch: 'level'};

function twiceStyle(style) { return {...style, line: style.ink, hatch: 'diagonal', above: true}; }

function decoded(strip) {
  const [tensor, file, offset, beyond, place] = columnsOf(strip.numbers, 5);
  const bytes = (i) => data.places[place[i]][1];
  return {n: tensor.length, tensor, file, offset, place, at: begins(tensor.length, bytes),
          end: (i) => offset[i] + bytes(i) + beyond[i]};
}

function fileWords(pieces, i) {
  return [['file', data.files[pieces.file[i]]],
          ['bytes of the file', `${pieces.offset[i]}-${pieces.end(i)}`]];
}

function stripRow(strip) {
  const pieces = strip.pieces = decoded(strip), twice = new Map(strip.twice || []);
  const marks = stripMarks(pieces, {
    tell(i) {
      const [name, facts] = identity(pieces.tensor[i]);
      const [rows, bytes, layer] = data.places[pieces.place[i]];
      facts.push(['rank', strip.rank], ['rows', rows], ['size', bytesText(bytes)],
                 ...fileWords(pieces, i));
      const at = layer >= 0 ? layer : data.tensors[pieces.tensor[i]][4];
      if (at >= 0) facts.push(['layer', layerWords(at)]);
      if (twice.has(i)) facts.push(['stored twice', twice.get(i)]);
      return [name, ...facts];
    },
  });
  if (twice.size) {
    const plain = marks.style;
    marks.style = (i) => twice.has(i) ? twiceStyle(plain(i)) : plain(i);
    marks.least = (i) => twice.has(i) ? 4 : 0;
  }
  return {label: `rank ${strip.rank}`, value: bytesText(strip.bytes), marks};
}

// What no shard holds, and what belongs to no tensor.
function extraRow(label, value, style, items) {
  const at = begins(items.length, (i) => items[i].bytes);
  return {label, value, marks: {
    n: items.length, from: (i) => at[i], to: (i) => at[i + 1], least: () => 6,
    style: () => style, name: (i) => items[i].name, tell: (i) => items[i].tell,
  }};
}

function holesRow(holes) {
  const items = holes.map(([tensor, rows, bytes]) => {
    const [name, facts] = identity(tensor);
    return {name, bytes, tell: [name, ...facts, ['in no shard', rows], ['size', bytesText(bytes)]]};
  });
  const bytes = items.reduce((sum, one) => sum + one.bytes, 0);
  return extraRow('missing', bytesText(bytes), kHole, items);
}

const states = [...new Set(data.strips.map((strip) => strip.state))];
for (const [tensor] of data.holes)
  if (!states.includes(data.tensors[tensor][1])) states.push(data.tensors[tensor][1]);
const tall = data.strips.length > 48 ? 15 : 26;
const sections = states.map((state) => {
  const strips = data.strips.filter((strip) => strip.state === state);
  const holes = data.holes.filter(([tensor]) => data.tensors[tensor][1] === state);
  const bytes = strips.reduce((sum, strip) => sum + strip.bytes, 0);
  const ranks = strips.length === 1 ? '1 rank' : countText(strips.length) + ' ranks';
  return {title: state, note: `${bytesText(bytes)} on ${ranks}`, span: data.span, tall,
          zooms: true, rows: [...strips.map(stripRow), ...(holes.length ? [holesRow(holes)] : [])]};
});
if (data.padding)
  sections.push({title: 'In no tensor', span: data.span, tall, zooms: true,
    note: 'what fills flat buffers up to their alignment, drawn at four bytes an element',
    rows: [extraRow('padding', countText(data.padding) + ' el', kPadding, [
      {name: 'padding', bytes: 4 * data.padding,
       tell: ['padding', ['elements', countText(data.padding)]]}])]});

const legend = layerLegend();
if (data.strips.some(({pieces}) =>
  pieces.tensor.some((tensor, i) => layerOf(tensor, pieces.place[i]) < 0)))
  legend.push([kNoLayerStyle, 'in no layer']);
if (data.strips.some((strip) => strip.twice))
  legend.push([twiceStyle(kLayerStyles[0]), 'stored twice']);
if (data.holes.length) legend.push([kHole, 'in no shard']);
if (data.padding) legend.push([kPadding, 'padding']);

const pieceOf = piecesOf(data.strips);
picture({legend, sections, table: {
  columns: [['tensor'], ['state'], ['rank', 'right'], ['rows'], ['file'], ['from byte', 'right'],
            ['to byte', 'right'], ['size', 'right']],
  n: pieceOf.count,
  name(i) {
    const [strip, k] = pieceOf(i);
    return data.tensors[strip.pieces.tensor[k]][0];
  },
  row(i) {
    const [{rank, state, pieces}, k] = pieceOf(i), [rows, bytes] = data.places[pieces.place[k]];
    return [data.tensors[pieces.tensor[k]][0], state, rank, rows, data.files[pieces.file[k]],
            pieces.offset[k], pieces.end(k), bytesText(bytes)];
  },
}});
