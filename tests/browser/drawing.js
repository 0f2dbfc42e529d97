// How many milliseconds it takes to paint two thousand points: the median of nine times.
async () => {
  const { classesOf, draw, lookOf, wholeView } = await import("/static/scatter.js");
  const place = (index) => ({ x: Math.sin(index), y: Math.cos(1.7 * index) });
  const point = (index) => ({ id: String(index), label: `c${index % 60}`, ...place(index) });
  const points = Array.from({ length: 2000 }, (_, index) => point(index));
  const looks = new Map(classesOf(points).map(([label], rank) => [label, lookOf(rank)]));
  const size = { width: 860, height: 640 };
  const camera = wholeView(points, size);
  const scene = { points, looks, camera, size, dark: false, at: 3, picked: undefined, query: { x: 0, y: 0 } };
  const context = new OffscreenCanvas(size.width, size.height).getContext("2d", { willReadFrequently: true });
  const times = Array.from({ length: 10 }, () => {
    const from = performance.now();
    draw(context, scene);
    context.getImageData(0, 0, 1, 1);
    return performance.now() - from;
  });
  return times.slice(1).sort((a, b) => a - b)[4];
}
