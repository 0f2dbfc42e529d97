/** An answer as a reader sees it: the label, how sure, and what is near. */

import { columns, h, hint } from "./dom.js";
import { icon } from "./icons.js";
import { breakable, shortName } from "./labels.js";
import { distance, itemsOf, labelled, percent } from "./words.js";

const STRANGE = "It does not look like any class in this gallery; the label is only the nearest class.";
const VERDICTS = {
  true: { word: "Known", icon: "check", class: "known", text: "It belongs to a class in this gallery." },
  false: { word: "Unknown", icon: "question", class: "unknown", text: STRANGE },
  null: { word: "Cannot tell", icon: "dash", class: "undecided", text: "" },
};
const LEADS = { true: "", false: "nearest: ", null: "perhaps: " };

/**
 * A bar with its number beside it.
 * @param {number} probability
 * @param {string} label what a screen reader calls it.
 */
export function meter(probability, label) {
  const fill = h("span", { class: "fill" });
  fill.style.inlineSize = `${100 * Math.min(1, Math.max(0, probability))}%`;
  const bar = h("span", {
    class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(100 * probability), "aria-valuetext": percent(probability),
  }, fill);
  const number = h("span", { class: "percent", "aria-hidden": "true" }, percent(probability));
  return h("span", { class: "measure" }, bar, number);
}

/** One sentence that says it all; screen readers are told it. @param {import("./api.js").Answer} told */
function summary(told) {
  if (told.label === null) return `No label. ${told.reason}`;
  const sure = told.probability !== null && `Probability ${percent(told.probability)}, if it is of an enrolled class.`;
  const words = [`${VERDICTS[String(told.known)].word}: ${told.label}.`, sure, told.reason, told.note];
  return words.filter(Boolean).join(" ");
}

/**
 * @param {import("./main.js").App} app
 * @param {import("./api.js").Answer} told
 * @param {HTMLElement} actions
 * @returns {HTMLElement[]}
 */
export function answerOf(app, told, actions) {
  const verdict = VERDICTS[String(told.known)];
  const lead = told.label === null ? "" : LEADS[String(told.known)];
  const head = h("div", { class: "verdict" },
    h("p", { class: `badge ${verdict.class}` }, icon(verdict.icon), verdict.word),
    h("h2", { class: "label" }, lead && h("small", {}, lead), breakable(labelled(told.label))),
    told.probability !== null && meter(told.probability, `Probability of ${labelled(told.label)}`),
    told.probability !== null && h("p", { class: "given" }, "How likely this label is, if it is of an enrolled class."),
    hint(told.reason || verdict.text),
    told.note && h("p", { class: "notice warning" }, told.note));
  const others = told.candidates.filter((each) => each.label !== told.label).slice(0, 4);
  return [
    h("p", { class: "summary unseen" }, summary(told)),
    h("div", { class: "card" }, head, others.length > 0 && candidates(others),
      told.forecast && forecast(told.forecast, told.known), actions),
    neighbours(app, told.neighbours),
  ];
}

/**
 * What this gallery answers, of what is enrolled and of what is not.
 * @param {import("./api.js").Forecast} told
 * @param {boolean | null} known the column of this answer is set off.
 */
function forecast(told, known) {
  const verdicts = [true, null, false];
  const row = (name, yes, no) => h("tr", {}, h("th", { scope: "row" }, name),
    [yes, Math.max(0, 1 - yes - no), no].map((share, place) =>
      h("td", { class: verdicts[place] === known ? "here" : "" }, percent(share))));
  return h("div", { class: "forecast" },
    h("h3", {}, "What this gallery answers"),
    h("table", {},
      columns("Asked about", ...verdicts.map((each) => VERDICTS[String(each)].word)),
      h("tbody", {},
        row("an enrolled class", told.enrolled_known, told.enrolled_unknown),
        row("any other class", told.strangers_known, told.strangers_unknown))),
    hint("A forecast, from leaving out its own items and classes."));
}

/** @param {{label: string, probability: number}[]} others */
function candidates(others) {
  const rows = others.map(({ label, probability }) =>
    h("li", {}, h("span", { class: "name" }, breakable(label)), meter(probability, `Probability of ${label}`)));
  return h("div", { class: "candidates" }, h("h3", {}, "Other candidates"), h("ol", {}, rows));
}

/** @param {import("./main.js").App} app @param {import("./api.js").Neighbour[]} found */
function neighbours(app, found) {
  const cards = found.map((each) => h("li", { class: "tile" },
    h("a", { href: itemsOf(each.label), title: `Items of ${labelled(each.label)}` },
      app.pictures.thumbnail(each, ""),
      shortName(each.label),
      h("span", { class: "fact" }, h("span", { class: "unseen" }, "distance "), distance(each.distance)))));
  return h("div", { class: "neighbours" },
    h("h3", {}, "Nearest items"),
    cards.length ? h("ol", { class: "tiles" }, cards) : hint("The gallery is empty."));
}
