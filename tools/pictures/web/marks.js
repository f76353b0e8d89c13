'use strict';
// How marks look. A style is {fill, ink, hatch, shape}: colours are hex or the name of a variable of
// frame.css; the shape is a bar, a dot, a ring or a range. What a colour says is said by a hatch or
// by words as well.

const theme = {
  colours: new Map(), patterns: new Map(),
  colour(name) {
    if (!name.startsWith('--')) return name;
    if (!this.colours.has(name)) {
      const style = getComputedStyle(document.documentElement);
      this.colours.set(name, style.getPropertyValue(name).trim());
    }
    return this.colours.get(name);
  },
  forget() { this.colours.clear(); this.patterns.clear(); },
};

// Lines of each hatch inside a tile of 8 x 8.
const kHatches = {
  diagonal: [[-2, 2, 2, -2], [-2, 10, 10, -2], [6, 10, 10, 6]],
  cross: [[-2, 2, 2, -2], [-2, 10, 10, -2], [6, 10, 10, 6],
          [-2, 6, 2, 10], [-2, -2, 10, 10], [6, -2, 10, 2]],
  level: [[0, 2, 8, 2], [0, 6, 8, 6]],
};

function hatchPattern(context, style) {
  const key = style.hatch + style.fill + style.line;
  if (!theme.patterns.has(key)) {
    const tile = document.createElement('canvas');
    tile.width = tile.height = 8;
    const pen = tile.getContext('2d');
    pen.fillStyle = theme.colour(style.fill);
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = theme.colour(style.line);
    pen.lineWidth = 1.5;
    for (const [x0, y0, x1, y1] of kHatches[style.hatch]) {
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.lineTo(x1, y1);
      pen.stroke();
    }
    theme.patterns.set(key, context.createPattern(tile, 'repeat'));
  }
  return theme.patterns.get(key);
}

function fillOf(context, style) {
  return style.hatch ? hatchPattern(context, style) : theme.colour(style.fill);
}

const kShapes = {
  bar(context, style, x, y, width, height) {
    context.fillStyle = fillOf(context, style);
    context.fillRect(x, y, width, height);
    if (style.hatch && width > 3) {
      context.strokeStyle = theme.colour(style.line);
      context.strokeRect(x + .5, y + .5, width - 1, height - 1);
    }
  },
  dot(context, style, x, y, width, height) {
    context.fillStyle = theme.colour(style.fill);
    context.beginPath();
    context.arc(x + width / 2, y + height / 2, Math.min(5, height / 2 - 1), 0, 7);
    context.fill();
  },
  ring(context, style, x, y, width, height) {
    context.strokeStyle = theme.colour(style.fill);
    context.lineWidth = 1.5;
    context.beginPath();
    context.arc(x + width / 2, y + height / 2, Math.min(4.5, height / 2 - 1.5), 0, 7);
    context.stroke();
    context.lineWidth = 1;
  },
  diamond(context, style, x, y, width, height) {
    const middle = x + width / 2, half = Math.min(5.5, height / 2 - .5), across = y + height / 2;
    context.fillStyle = theme.colour(style.fill);
    context.beginPath();
    context.moveTo(middle - half, across);
    context.lineTo(middle, across - half);
    context.lineTo(middle + half, across);
    context.lineTo(middle, across + half);
    context.fill();
  },
  range(context, style, x, y, width, height) {
    context.fillStyle = theme.colour(style.fill);
    context.fillRect(x, y + height / 2 - 2.5, Math.max(width, 1), 5);
  },
};

function drawShape(context, style, x, y, width, height) {
  kShapes[style.shape || 'bar'](context, style, x, y, width, height);
}

// Every text in a picture, so that a judge can look at its size and contrast.
const drawnTexts = new Set();
function drawText(context, text, x, y, ink, paper) {
  const size = 11;
  context.font = size + 'px system-ui, sans-serif';
  context.fillStyle = theme.colour(ink);
  context.fillText(text, x, y);
  drawnTexts.add([theme.colour(ink), theme.colour(paper), size].join(' '));
}

function swatch(style) {
  const canvas = document.createElement('canvas');
  canvas.width = 44;
  canvas.height = 28;
  canvas.setAttribute('aria-hidden', 'true');
  const context = canvas.getContext('2d');
  context.scale(2, 2);
  drawShape(context, style, 0, 0, 22, 14);
  return canvas;
}
