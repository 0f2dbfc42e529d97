/** Points in the plane: how they look, where they lie on a canvas, and which one is meant. */

/**
 * @typedef {{id: string, label: string | null, x: number, y: number}} Point
 * @typedef {{x: number, y: number, scale: number}} Camera the point of the plane in the middle, and pixels a unit.
 * @typedef {{width: number, height: number}} Size
 * @typedef {{colour: number, shape: number}} Look
 */

// Okabe and Ito's colours, told apart with any kind of colour vision, as dark or as light as their paper needs.
const COLOURS = {
  light: ["#0072b2", "#c65300", "#00805f", "#a3517e", "#3d4a57", "#2e93c9", "#9a7400"],
  dark: ["#56b4e9", "#f0883e", "#35c796", "#e08fbd", "#b9c3cd", "#8fd0f5", "#e9c84a"],
};
const OTHERS = { light: "#7b8794", dark: "#7d8893" };
const QUERY = { light: "#b3261e", dark: "#ff8a80" };
const SHAPES = [circle, square, triangle, diamond, cross];
const RADIUS = 4.6;
const OUTLINE = 1.2;
const MARGIN = 28;

/** How many classes have a look of their own; those beyond are drawn alike, as small rings. */
export const LOOKS = COLOURS.light.length * SHAPES.length;

/** @param {number} rank of a class by size, from 0. @returns {Look | null} */
export function lookOf(rank) {
  return rank < LOOKS ? { colour: rank % COLOURS.light.length, shape: Math.floor(rank / COLOURS.light.length) } : null;
}

/**
 * Labels by the number of their points, largest first.
 * @param {Point[]} points
 * @returns {[string | null, number][]}
 */
export function classesOf(points) {
  const sizes = new Map();
  for (const { label } of points) sizes.set(label, (sizes.get(label) ?? 0) + 1);
  return [...sizes].sort((a, b) => b[1] - a[1] || String(a[0]).localeCompare(String(b[0])));
}

/**
 * The camera that sees all points; a unit is as long in both directions.
 * @param {{x: number, y: number}[]} points
 * @param {Size} size
 * @returns {Camera}
 */
export function wholeView(points, size) {
  const corners = points.length ? points : [{ x: 0, y: 0 }, { x: 1, y: 1 }];
  const [xs, ys] = [corners.map((each) => each.x), corners.map((each) => each.y)];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const wide = (size.width - 2 * MARGIN) / Math.max(right - left, 1e-3);
  const tall = (size.height - 2 * MARGIN) / Math.max(high - low, 1e-3);
  return { x: (left + right) / 2, y: (low + high) / 2, scale: Math.min(wide, tall) };
}

/**
 * Where a point lies on the canvas; y points up.
 * @param {{x: number, y: number}} point
 * @param {Camera} camera
 * @param {Size} size
 * @returns {[number, number]}
 */
export function pixel(point, camera, size) {
  return [size.width / 2 + (point.x - camera.x) * camera.scale, size.height / 2 - (point.y - camera.y) * camera.scale];
}

/**
 * The point nearest to a pixel, within reach.
 * @param {Point[]} points @param {number} x @param {number} y @param {Camera} camera @param {Size} size
 * @returns {number} its index, or -1.
 */
export function pointAt(points, x, y, camera, size) {
  let best = -1;
  let nearest = 14 ** 2;
  points.forEach((point, index) => {
    const [px, py] = pixel(point, camera, size);
    const squared = (px - x) ** 2 + (py - y) ** 2;
    if (squared < nearest) [best, nearest] = [index, squared];
  });
  return best;
}

/**
 * The next point in a direction; what lies straight ahead counts as nearer than what lies aside.
 * @param {Point[]} points @param {number} from @param {[number, number]} direction a unit vector, y up.
 * @returns {number} its index; `from` if there is none.
 */
export function pointToward(points, from, [ux, uy]) {
  const origin = points[from];
  let best = from;
  let cost = Infinity;
  points.forEach((point, index) => {
    const [dx, dy] = [point.x - origin.x, point.y - origin.y];
    const ahead = dx * ux + dy * uy;
    const aside = Math.abs(dx * uy - dy * ux);
    const way = ahead + 2 * aside;
    if (index !== from && ahead > 1e-9 && aside <= 2 * ahead && way < cost) [best, cost] = [index, way];
  });
  return best;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{points: Point[], looks: Map<string | null, Look | null>, camera: Camera, size: Size, dark: boolean,
 *   at: number, picked: string | null | undefined, query: {x: number, y: number} | null}} scene
 *   `at` is the point that is looked at, -1 for none; `picked` the class that stands out, undefined for none.
 */
export function draw(context, { points, looks, camera, size, dark, at, picked, query }) {
  const theme = dark ? "dark" : "light";
  const paper = dark ? "#1b2128" : "#ffffff";
  context.clearRect(0, 0, size.width, size.height);
  const [front, back] = [[], []];
  for (const point of points) {
    const [x, y] = pixel(point, camera, size);
    if (x < -9 || y < -9 || x > size.width + 9 || y > size.height + 9) continue;
    const stands = picked === undefined || picked === point.label;
    (stands ? front : back).push({ look: looks.get(point.label) ?? null, x, y });
  }
  drawFaint(context, back, theme);
  drawSolid(context, front, theme, paper);
  if (at >= 0 && points[at]) ring(context, pixel(points[at], camera, size), dark ? "#ffffff" : "#14202b");
  if (query) star(context, pixel(query, camera, size), QUERY[theme], paper);
}

/** @typedef {{look: Look | null, x: number, y: number}} Mark a point as it is drawn. */

/**
 * Points that stand back, one path a colour: where they crowd they stay as faint as one alone.
 * @param {CanvasRenderingContext2D} context @param {Mark[]} marks @param {"light" | "dark"} theme
 */
function drawFaint(context, marks, theme) {
  const paths = new Map();
  for (const { look, x, y } of marks) {
    const colour = colourOf(look, theme);
    if (!paths.has(colour)) paths.set(colour, new Path2D());
    trace(paths.get(colour), look, x, y);
  }
  context.globalAlpha = 0.13;
  for (const [colour, path] of paths) {
    context.fillStyle = colour;
    context.fill(path);
  }
  context.globalAlpha = 1;
}

/**
 * Points one after the other, each on an outline of its own: an outline must part a point from those below it, and
 * never lie on fills of its class, which would leave nothing but a mesh where points crowd.
 * @param {CanvasRenderingContext2D} context @param {Mark[]} marks @param {"light" | "dark"} theme
 * @param {string} paper
 */
function drawSolid(context, marks, theme, paper) {
  const shapes = new Map();
  context.save();
  context.lineWidth = OUTLINE;
  // Half of the paper's colour: where points crowd, outlines cover much, and their class must still be seen.
  context.strokeStyle = `${paper}80`;
  for (const { look, x, y } of marks) {
    const shape = look?.shape ?? -1;
    if (!shapes.has(shape)) shapes.set(shape, trace(new Path2D(), look, 0, 0));
    context.translate(x, y);
    context.stroke(shapes.get(shape));
    context.fillStyle = colourOf(look, theme);
    context.fill(shapes.get(shape));
    context.translate(-x, -y);
  }
  context.restore();
}

/** @param {Look | null} look @param {"light" | "dark"} theme */
function colourOf(look, theme) {
  return look ? COLOURS[theme][look.colour] : OTHERS[theme];
}

/** Add a look's shape to a path. @param {Path2D} path @param {Look | null} look @param {number} x @param {number} y */
function trace(path, look, x, y) {
  (look ? SHAPES[look.shape] : circle)(path, x, y, look ? RADIUS : 2.6);
  return path;
}

/** A class's sign, for the legend. @param {HTMLCanvasElement} canvas @param {Look | null} look @param {boolean} dark */
export function drawSign(canvas, look, dark) {
  const context = canvas.getContext("2d");
  const theme = dark ? "dark" : "light";
  const path = new Path2D();
  context.setTransform(canvas.width / 16, 0, 0, canvas.height / 16, 0, 0);
  context.clearRect(0, 0, 16, 16);
  (look ? SHAPES[look.shape] : circle)(path, 8, 8, look ? 5.4 : 3);
  context.fillStyle = colourOf(look, theme);
  context.fill(path);
}

/** @param {CanvasRenderingContext2D} context @param {[number, number]} place @param {string} colour */
function ring(context, [x, y], colour) {
  context.lineWidth = 2;
  context.strokeStyle = colour;
  context.beginPath();
  context.arc(x, y, RADIUS + 4, 0, 2 * Math.PI);
  context.stroke();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number]} place
 * @param {string} colour
 * @param {string} paper
 */
function star(context, [x, y], colour, paper) {
  const path = new Path2D();
  for (let corner = 0; corner < 10; corner += 1) {
    const [angle, radius] = [(Math.PI * (corner - 2.5)) / 5, corner % 2 ? 5 : 12];
    path.lineTo(x + radius * Math.cos(angle), y + radius * Math.sin(angle));
  }
  path.closePath();
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeStyle = paper;
  context.stroke(path);
  context.fillStyle = colour;
  context.fill(path);
}

/** @param {Path2D} path @param {number} x @param {number} y @param {number} r */
function circle(path, x, y, r) {
  path.moveTo(x + r, y);
  path.arc(x, y, r, 0, 2 * Math.PI);
}

/** @param {Path2D} path @param {[number, number][]} corners */
function polygon(path, corners) {
  corners.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
  path.closePath();
}

/** @param {Path2D} path @param {number} x @param {number} y @param {number} r */
function square(path, x, y, r) {
  path.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r);
}

/** @param {Path2D} path @param {number} x @param {number} y @param {number} r */
function triangle(path, x, y, r) {
  polygon(path, [[x, y - 1.2 * r], [x + 1.1 * r, y + 0.8 * r], [x - 1.1 * r, y + 0.8 * r]]);
}

/** @param {Path2D} path @param {number} x @param {number} y @param {number} r */
function diamond(path, x, y, r) {
  polygon(path, [[x, y - 1.3 * r], [x + 1.1 * r, y], [x, y + 1.3 * r], [x - 1.1 * r, y]]);
}

/** @param {Path2D} path @param {number} x @param {number} y @param {number} r */
function cross(path, x, y, r) {
  const [a, b] = [0.42 * r, 1.15 * r];
  polygon(path, [
    [x - a, y - b], [x + a, y - b], [x + a, y - a], [x + b, y - a], [x + b, y + a], [x + a, y + a],
    [x + a, y + b], [x - a, y + b], [x - a, y + a], [x - b, y + a], [x - b, y - a], [x - a, y - a],
  ]);
}
