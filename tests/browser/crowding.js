// How much of a crowd's middle has the colour of its class: a hundred points of one class, some pixels apart.
async () => {
  const { draw, lookOf } = await import("/static/scatter.js");
  const size = { width: 120, height: 120 };
  const place = (index) => ({ x: (index % 10) * 3 - 15 + (index % 3), y: Math.floor(index / 10) * 3 - 15 + (index % 2) });
  const points = Array.from({ length: 100 }, (_, index) => ({ id: String(index), label: "a", ...place(index) }));
  const looks = new Map([["a", lookOf(0)]]);
  const scene = { points, looks, camera: { x: 0, y: 0, scale: 1 }, size, at: -1, query: null };
  return [undefined, "other"].flatMap((picked) => [false, true].map((dark) => {
    const context = new OffscreenCanvas(size.width, size.height).getContext("2d", { willReadFrequently: true });
    draw(context, { ...scene, picked, dark });
    const pixels = context.getImageData(50, 50, 20, 20).data;
    const means = [0, 1, 2, 3].map((part) => pixels.filter((_, at) => at % 4 === part).reduce((a, b) => a + b) / 400);
    return means.map(Math.round);
  }));
}
