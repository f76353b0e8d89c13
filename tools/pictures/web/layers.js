'use strict';
// How layers look and what they are called. `data.layers` is [[stack, first, last], ...]:
// "model.layers", 3, 3; a negative number is no layer.

// Paul Tol's "bright" scheme, told apart with any colour vision; the ink of a text upon it has a
// contrast of at least 4.5.
const kLayerStyles = [
  {fill: '#4477AA', ink: '#ffffff'}, {fill: '#EE6677', ink: '#000000'},
  {fill: '#228833', ink: '#ffffff'}, {fill: '#CCBB44', ink: '#000000'},
  {fill: '#66CCEE', ink: '#000000'}, {fill: '#AA3377', ink: '#ffffff'}];
const kNoLayerStyle = {fill: '#9aa1aa', ink: '#000000'};

const kSeveralLayersStyle = {fill: '#9aa1aa', ink: '#000000', line: '#000000', hatch: 'level'};

function layerStyle(layer) {
  if (layer < 0) return kNoLayerStyle;
  const [, first, last] = data.layers[layer];
  return first === last ? kLayerStyles[first % kLayerStyles.length] : kSeveralLayersStyle;
}

function layerText(layer) {
  if (layer < 0) return '';
  const [, first, last] = data.layers[layer];
  return first === last ? String(first) : `${first}-${last}`;
}

function layerWords(layer) {
  const [stack] = data.layers[layer];
  return stack ? `${layerText(layer)} of ${stack}` : layerText(layer);
}

function layerLegend() {
  const items = [];
  const single = data.layers.filter(([, first, last]) => first === last);
  const shown = new Set(single.map(([, first]) => first % kLayerStyles.length));
  const again = single.some(([, first]) => first >= kLayerStyles.length);
  kLayerStyles.forEach((style, i) => {
    const last = i === kLayerStyles.length - 1;
    if (shown.has(i)) items.push([style, `layer ${i}${last && again ? ', then again' : ''}`]);
  });
  if (single.length < data.layers.length)
    items.push([kSeveralLayersStyle, 'several layers in one piece']);
  return items;
}
