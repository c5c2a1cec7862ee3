// A drawing as strokes, and the picture that a model of characters is given of it: ink 1 on paper 0.
//
// Strokes are lists of points [x, y] in a square of side 1. Drawings of Omniglot are thin lines of even width on 28 × 28
// pixels, mostly some 18 pixels large and near the middle; a visitor's are brought to that.

const WIDTH = 1.6 / 28; // of a line
const EXTENT = 16.5 / 28; // of a drawing's larger side, without its line's width
const CENTRE = 13.5 / 28;
const SCALES = [0.5, 2]; // a dot is not blown up into a blot
const FINE = 4; // dots drawn for each pixel's side, whose mean is its intensity

export function fitted(strokes) {
  const points = strokes.flat();
  const range = (axis) => [Math.min(...points.map((p) => p[axis])), Math.max(...points.map((p) => p[axis]))];
  const [[left, right], [top, bottom]] = [range(0), range(1)];
  const side = Math.max(right - left, bottom - top, 1e-6);
  const scale = Math.min(SCALES[1], Math.max(SCALES[0], EXTENT / side));
  const moved = ([x, y]) => [CENTRE + (x - (left + right) / 2) * scale, CENTRE + (y - (top + bottom) / 2) * scale];
  return strokes.map((stroke) => stroke.map(moved));
}

export function trace(context, strokes, side, width) {
  Object.assign(context, { lineWidth: width * side, lineCap: "round", lineJoin: "round" });
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach(([x, y], i) => (i ? context.lineTo(x * side, y * side) : context.moveTo(x * side, y * side)));
    if (stroke.length === 1) context.lineTo(stroke[0][0] * side + 1e-3, stroke[0][1] * side);
    context.stroke();
  }
}

let fine = null; // the canvas that pictures are made on

export function picture(strokes, size) {
  const side = size * FINE;
  fine ??= document.createElement("canvas");
  fine.width = fine.height = side; // and empty
  const context = fine.getContext("2d", { willReadFrequently: true });
  trace(context, fitted(strokes), side, WIDTH);
  const { data } = context.getImageData(0, 0, side, side);
  const pixels = new Array(size * size).fill(0);
  for (let i = 0; i < side * side; i += 1) {
    const [row, column] = [Math.floor(i / side / FINE), Math.floor((i % side) / FINE)];
    pixels[row * size + column] += data[4 * i + 3];
  }
  return pixels.map((sum) => Math.round((1000 * sum) / (255 * FINE * FINE)) / 1000);
}
