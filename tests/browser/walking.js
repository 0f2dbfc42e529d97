// Where arrow keys lead from the first of five points, and which points their own pixels mean.
async () => {
  const { pixel, pointAt, pointToward, wholeView } = await import("/static/scatter.js");
  const places = [[0, 0], [1, 0], [2, 0.1], [0, 1], [-1, -0.2]];
  const points = places.map(([x, y], index) => ({ id: String(index), label: "a", x, y }));
  const size = { width: 400, height: 300 };
  const camera = wholeView(points, size);
  const pixels = points.map((point) => pixel(point, camera, size));
  return {
    walk: [[1, 0], [-1, 0], [0, 1], [0, -1]].map((way) => pointToward(points, 0, way)),
    found: pixels.map(([x, y]) => pointAt(points, x, y, camera, size)),
    inside: pixels.every(([x, y]) => x >= 0 && x <= 400 && y >= 0 && y <= 300),
  };
}
