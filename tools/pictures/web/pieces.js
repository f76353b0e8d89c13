'use strict';
// Strips of pieces, which the shard map and the plan of a conversion share. `data` has
//   layers   [[stack, first, last], ...]: "model.layers", 3, 3
//   tensors  [[name, state, dtype, shape, layer], ...]; -1: in no layer, or each piece in its own
//   files    [name, ...]
//   places   [[rows, bytes, layer], ...]: what a piece is of its tensor
// and of each strip `numbers`, so many for each piece, each less that of the piece before.

// "attn.weight" of "layers.3.attn.weight".
function shortName(name) { return name.split('.').slice(-2).join('.'); }

function layerOf(tensor, place) {
  return data.tensors[tensor][4] >= 0 ? data.tensors[tensor][4] : data.places[place][2];
}

// `pieces` are {n, tensor[], place[], at[]}: `at` is where each begins, in bytes of its strip.
function stripMarks(pieces, more) {
  const layer = (i) => layerOf(pieces.tensor[i], pieces.place[i]);
  return {
    n: pieces.n,
    from: (i) => pieces.at[i],
    to: (i) => pieces.at[i + 1],
    style: (i) => layerStyle(layer(i)),
    text: (i) => shortName(data.tensors[pieces.tensor[i]][0]),
    group: layer,
    groupText: (i) => layerText(layer(i)),
    name: (i) => data.tensors[pieces.tensor[i]][0],
    ...more,
  };
}

function identity(tensor) {
  const [name, state, dtype, shape] = data.tensors[tensor];
  return [name, [['state', state], ['dtype', dtype], ['shape', shape]].filter(([, value]) => value)];
}

// Where each of `n` pieces begins; one number more for the end of the last.
function begins(n, bytesOf) {
  const at = new Float64Array(n + 1);
  for (let i = 0; i < n; ++i) at[i + 1] = at[i] + bytesOf(i);
  return at;
}

// `numbers` of `count` for each piece, as an array for each of the `count`.
function columnsOf(numbers, count) {
  const n = numbers.length / count;
  return Array.from({length: count}, (_, column) => {
    const out = new Float64Array(n);
    for (let i = 0, value = 0; i < n; ++i) out[i] = value += numbers[count * i + column];
    return out;
  });
}

// The pieces of all strips, numbered through: answers [strip, number in the strip].
function piecesOf(strips) {
  const first = [0];
  for (const strip of strips) first.push(first[first.length - 1] + strip.pieces.n);
  const find = (i) => {
    let low = 0, high = strips.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (first[middle] <= i) low = middle; else high = middle;
    }
    return [strips[low], i - first[low]];
  };
  find.count = first[first.length - 1];
  return find;
}
