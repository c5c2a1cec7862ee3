// Signs to try without drawing: five of each of three alphabets, as strokes, and the same sign by another hand.

const circle = (x, y, across, down) =>
  Array.from({ length: 13 }, (_, i) => [x + across * Math.sin((i * Math.PI) / 6), y - down * Math.cos((i * Math.PI) / 6)]);

// On a square of side 100; the points of a smooth stroke are joined by curves.
export const ALPHABETS = [
  {
    name: "Katakana",
    smooth: false,
    signs: [
      [[[22, 22], [78, 22], [56, 46]], [[50, 38], [46, 62], [28, 84]]],
      [[[26, 34], [72, 28]], [[20, 58], [80, 50]], [[44, 12], [58, 88]]],
      [[[16, 38], [84, 38]], [[36, 18], [36, 58]], [[64, 18], [64, 54], [44, 86]]],
      [[[28, 22], [70, 22], [70, 82]], [[30, 51], [70, 51]], [[26, 81], [70, 81]]],
      [[[36, 24], [33, 58], [18, 82]], [[56, 20], [56, 80], [84, 54]]],
    ],
  },
  {
    name: "Greek",
    smooth: true,
    signs: [
      [[[78, 22], [62, 52], [42, 74], [24, 62], [28, 38], [46, 30], [62, 50], [68, 70], [82, 74]]],
      [[[28, 16], [42, 20], [54, 48], [74, 86]], [[51, 42], [38, 64], [24, 86]]],
      [circle(50, 48, 26, 22), [[50, 10], [50, 50], [50, 90]]],
      [[[30, 30], [18, 54], [30, 76], [46, 66], [50, 46], [54, 66], [70, 76], [82, 54], [70, 30]]],
      [circle(50, 50, 22, 38), [[28, 50], [50, 50], [72, 50]]],
    ],
  },
  {
    name: "Runes",
    smooth: false,
    signs: [
      [[[36, 12], [36, 88]], [[36, 42], [68, 20]], [[36, 60], [68, 38]]],
      [[[32, 88], [32, 14], [66, 36], [66, 88]]],
      [[[36, 10], [36, 90]], [[36, 28], [66, 48], [36, 68]]],
      [[[34, 88], [34, 12], [64, 30], [34, 50], [66, 88]]],
      [[[50, 10], [50, 90]], [[26, 18], [50, 46], [74, 18]]],
    ],
  },
];

// Points between the given ones on a Catmull–Rom curve.
function curved(stroke) {
  const at = (i) => stroke[Math.min(stroke.length - 1, Math.max(0, i))];
  const between = (i, t) =>
    [0, 1].map((axis) => {
      const [a, b, c, d] = [at(i - 1), at(i), at(i + 1), at(i + 2)].map((point) => point[axis]);
      return b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
    });
  const inner = stroke.slice(1).flatMap((_, i) => Array.from({ length: 6 }, (_, k) => between(i, k / 6)));
  return [...inner, stroke.at(-1)];
}

// `unsteady` 0 is the sign as it stands above; 1 leans, stretches and shakes it as people do.
export function written(alphabet, index, unsteady = 0) {
  const about = (size) => unsteady * size * (Math.random() + Math.random() - 1);
  const [turn, lean, wide, tall] = [about(0.2), about(0.25), 1 + about(0.25), 1 + about(0.25)];
  const moved = ([x, y]) => {
    const [right, down] = [wide * (x - 50) + lean * (y - 50) + about(5), tall * (y - 50) + about(5)];
    return [50 + right * Math.cos(turn) - down * Math.sin(turn), 50 + right * Math.sin(turn) + down * Math.cos(turn)];
  };
  return alphabet.signs[index].map((stroke) => {
    const points = stroke.map(moved);
    return (alphabet.smooth ? curved(points) : points).map(([x, y]) => [x / 100, y / 100]);
  });
}
