/** A reliability diagram: how often answers are right, against how sure they were. */

import { columns, h, s } from "./dom.js";
import { count, percent } from "./words.js";

const SIDE = 320;
const LEFT = 52;
const TOP = 14;
const STRIP = 44;
const CAPTION = "On the dashed line, answers with a probability of 80 % are correct 80 times in 100. Each item was left "
  + "out in turn; the bars below count the answers.";

/**
 * @typedef {{confidence: number, accuracy: number, count: number}} Bin
 */

/** @param {number} share */
const across = (share) => LEFT + SIDE * share;
/** @param {number} share */
const up = (share) => TOP + SIDE * (1 - share);

/**
 * @param {{bins: Bin[], ece: number, accuracy: number, items: number}} reliability
 * @returns {HTMLElement} the picture, and the same as a table.
 */
export function reliabilityDiagram(reliability) {
  const bins = reliability.bins.filter((each) => each.count > 0);
  const right = `${percent(reliability.accuracy)} correct`;
  const off = `expected calibration error ${percent(reliability.ece)}`;
  const text = `Reliability diagram of ${count(reliability.items)} answers: ${right}, ${off}.`;
  const viewBox = `0 0 ${LEFT + SIDE + 16} ${TOP + SIDE + STRIP + 62}`;
  const picture = s("svg", { viewBox, role: "img", "aria-label": text, class: "diagram" },
    grid(), s("line", { class: "ideal", x1: across(0), y1: up(0), x2: across(1), y2: up(1) }),
    s("text", { class: "note", x: across(0.03), y: up(0.94) }, "above the line: underconfident"),
    s("text", { class: "note", x: across(0.97), y: up(0.05), "text-anchor": "end" }, "below: overconfident"),
    line(bins), strip(bins));
  return h("figure", {}, picture,
    h("figcaption", {}, CAPTION),
    h("details", {}, h("summary", {}, "Show as a table"), table(bins)));
}

function grid() {
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const bottom = TOP + SIDE + STRIP + 26;
  const turned = `translate(13 ${up(0.5)}) rotate(-90)`;
  return s("g", { class: "grid" },
    ticks.map((share) => [
      s("line", { x1: across(0), x2: across(1), y1: up(share), y2: up(share) }),
      s("line", { x1: across(share), x2: across(share), y1: up(0), y2: up(1) }),
      s("text", { x: LEFT - 8, y: up(share) + 4, "text-anchor": "end" }, Math.round(100 * share)),
      s("text", { x: across(share), y: bottom, "text-anchor": "middle" }, Math.round(100 * share)),
    ]),
    s("text", { class: "axis", x: across(0.5), y: bottom + 24, "text-anchor": "middle" }, "predicted probability, in %"),
    s("text", { class: "axis", transform: turned, "text-anchor": "middle" }, "correct, in %"));
}

/** @param {Bin[]} bins */
function line(bins) {
  const points = bins.map((each) => `${across(each.confidence).toFixed(1)},${up(each.accuracy).toFixed(1)}`).join(" ");
  return s("g", { class: "measured" }, s("polyline", { points }),
    bins.map((each) => {
      const words = `${percent(each.confidence)} given, ${percent(each.accuracy)} right, ${count(each.count)} answers`;
      return s("circle", { cx: across(each.confidence), cy: up(each.accuracy), r: 5 }, s("title", {}, words));
    }));
}

/** How many answers fell into each bin. @param {Bin[]} bins */
function strip(bins) {
  const most = Math.max(1, ...bins.map((each) => each.count));
  const base = TOP + SIDE + STRIP + 8;
  return s("g", { class: "strip" }, bins.map((each) => {
    const height = Math.max(1.5, ((STRIP - 8) * each.count) / most);
    return s("rect", { x: across(each.confidence) - 8, y: base - height, width: 16, height, rx: 2 });
  }));
}

/** @param {Bin[]} bins */
function table(bins) {
  const cells = bins.map((each) => [percent(each.confidence), percent(each.accuracy), count(each.count)]);
  const rows = cells.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell))));
  return h("table", { class: "numbers" },
    h("caption", { class: "unseen" }, "Reliability by probability"),
    columns("Predicted probability", "Right", "Answers"),
    h("tbody", {}, rows));
}
