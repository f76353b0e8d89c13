'use strict';
// The plan of a conversion: who gets how much from whom, and a strip for each state and rank of the
// result. The numbers of a piece are tensor, place, rank that it comes from, file and offset there,
// file and offset in the result.

function fromStyle(from, to) {
  const style = kLayerStyles[from % kLayerStyles.length];
  return from === to ? style : {...style, line: '--paper', hatch: 'diagonal'};
}

function stripRow(strip) {
  const [tensor, place, from, source, sourceAt, target, targetAt] = columnsOf(strip.numbers, 7);
  const at = begins(tensor.length, (i) => data.places[place[i]][1]);
  strip.pieces = {n: tensor.length, tensor, place, from, source, sourceAt, target, targetAt, at};
  const marks = stripMarks(strip.pieces, {
    style: (i) => fromStyle(from[i], strip.rank),
    group: (i) => from[i],
    text: () => '',
    groupText: (i) => `rank ${from[i]}`,
    tell(i) {
      const [name, facts] = identity(tensor[i]), [rows, bytes] = data.places[place[i]];
      const way = from[i] === strip.rank ? `stays at rank ${strip.rank}`
                                         : `moves from rank ${from[i]} to rank ${strip.rank}`;
      return [name, ['', way], ...facts, ['rows', rows], ['size', bytesText(bytes)],
              ['out of', data.files[source[i]]], ['from byte', sourceAt[i]],
              ['into', data.files[target[i]]], ['from byte', targetAt[i]]];
    },
  });
  return {label: `rank ${strip.rank}`, value: bytesText(strip.bytes), marks};
}

// --- between which ranks -----------------------------------------------------------------------

// Lightness alone: the same for every colour vision, and in print.
const kAmounts = [
  {fill: '#d7e5f4', ink: '#000000'}, {fill: '#a9c8e6', ink: '#000000'},
  {fill: '#6fa3d3', ink: '#000000'}, {fill: '#33699f', ink: '#ffffff'},
  {fill: '#123a63', ink: '#ffffff'}];

const mostMoved = data.flows.reduce(
  (most, [from, to, bytes]) => from === to ? most : Math.max(most, bytes), 1);

function flowStyle([from, to, bytes]) {
  if (from === to) return {fill: '--panel', ink: '--ink'};
  const level = Math.ceil(kAmounts.length * bytes / mostMoved) - 1;
  return kAmounts[Math.max(0, Math.min(level, kAmounts.length - 1))];
}

function flowWords([from, to, bytes]) {
  return from === to ? [`${bytesText(bytes)} stay at rank ${from}`]
                     : [`${bytesText(bytes)} move from rank ${from} to rank ${to}`];
}

function flowRow(from, flows) {
  const sent = flows.reduce((sum, [a, b, bytes]) => sum + (a === b ? 0 : bytes), 0);
  return {label: `rank ${from}`, value: `sends ${bytesText(sent)}`, marks: {
    n: flows.length, from: (i) => flows[i][1], to: (i) => flows[i][1] + 1,
    style: (i) => flowStyle(flows[i]), text: (i) => bytesText(flows[i][2]),
    name: () => '', tell: (i) => flowWords(flows[i]),
  }};
}

const world = data.flows.reduce((most, [, to]) => Math.max(most, to + 1), 1);
const every = Math.ceil(world / 16);
const ticks = [];
for (let to = 0; to < world; to += every) ticks.push([to + .5, String(to)]);
const senders = [...new Set(data.flows.map(([from]) => from))].sort((a, b) => a - b);
const matrix = {
  title: 'Between which ranks', span: world, ticks, widths: {value: '9em', 'narrow-value': '7.4em'},
  note: 'down: the rank that holds it; across: the rank that gets it; darker: more moves',
  tall: senders.length > 48 ? 15 : 26,
  rows: [{label: 'to rank', axis: ticks, marks: {n: 0}},
         ...senders.map((from) => flowRow(from, data.flows.filter(([a]) => a === from)))],
};

const states = [...new Set(data.strips.map((strip) => strip.state))];
const tall = data.strips.length > 48 ? 15 : 26;
const sections = states.map((state) => {
  const strips = data.strips.filter((strip) => strip.state === state);
  const rows = strips.map(stripRow);
  const sum = (wanted) => strips.reduce((all, {rank, pieces}) => {
    for (let i = 0; i < pieces.n; ++i)
      if ((pieces.from[i] === rank) === wanted) all += data.places[pieces.place[i]][1];
    return all;
  }, 0);
  return {title: state, span: data.span, tall, zooms: true, rows,
          note: `${bytesText(sum(true))} stay, ${bytesText(sum(false))} move`};
});

const colours = kLayerStyles.slice(0, Math.min(kLayerStyles.length, senders.length))
  .map((style, i) => {
    const again = i === kLayerStyles.length - 1 && senders.length > kLayerStyles.length;
    return [style, `from rank ${i}${again ? ', then again' : ''}`];
  });
const legend = [...colours, [fromStyle(0, 1), 'hatched: moves from another rank'],
                [kNoLayerStyle, 'plain: stays']];

const pieceOf = piecesOf(data.strips);
picture({legend, sections: [matrix, ...sections], table: {
  columns: [['tensor'], ['state'], ['rows'], ['from rank', 'right'], ['to rank', 'right'],
            ['size', 'right'], ['out of'], ['from byte', 'right'], ['into'],
            ['from byte', 'right']],
  n: pieceOf.count,
  name(i) {
    const [{pieces}, k] = pieceOf(i);
    return data.tensors[pieces.tensor[k]][0];
  },
  row(i) {
    const [{rank, state, pieces}, k] = pieceOf(i), [rows, bytes] = data.places[pieces.place[k]];
    return [data.tensors[pieces.tensor[k]][0], state, rows, pieces.from[k], rank,
            bytesText(bytes), data.files[pieces.source[k]], pieces.sourceAt[k],
            data.files[pieces.target[k]], pieces.targetAt[k]];
  },
}});
