/** The view that says what the gallery is made of: the model's card, how sure it may be, and what is in it. */

import { reliabilityDiagram } from "./diagram.js";
import { h, heading, hint } from "./dom.js";
import { bySize, count, counted, distance, itemsOf, percent, size } from "./words.js";

const CLASSES = 30;
/** Facts of a card that are told already. */
const TOLD = ["name", "fingerprint", "dimension"];

/**
 * @param {import("./main.js").App} app
 * @returns {import("./main.js").View}
 */
export function modelView(app) {
  const content = h("div", { class: "columns" });
  const element = h("div", { class: "view" },
    heading("Model", "The model of the vectors, the reliability of its probabilities, and what is enrolled."),
    content);

  async function load() {
    content.setAttribute("aria-busy", "true");
    try {
      const told = await app.refresh();
      content.replaceChildren(
        section("Reliability", reliability(told.reliability)),
        section("Gallery", facts(galleryFacts(told)), notes(told.stats?.notes)),
        section("Model card", facts(modelFacts(told)), rest(told.card)),
        section("Calibration", calibration(told.calibration)),
        section("Classes", classes(told.stats ?? {})));
    } catch (error) {
      app.complain(error);
    } finally {
      content.removeAttribute("aria-busy");
    }
  }
  return { title: "Model", element, show: load };
}

/** @param {string} title @param {...any} parts */
function section(title, ...parts) {
  const id = `part-${title.toLowerCase().replace(" ", "-")}`;
  const head = h("h2", { id: `${id}-title` }, title);
  return h("section", { class: "sheet", id, "aria-labelledby": `${id}-title` }, head, ...parts);
}

/** @param {any} value @returns {value is string | number | boolean} */
const plain = (value) => ["string", "number", "boolean"].includes(typeof value);

/** The plain facts of a document. @param {Record<string, any> | null} document @returns {[string, any][]} */
const facet = (document) => Object.entries(document ?? {}).filter(([, value]) => plain(value));

/** "false_accept_rate" as words. @param {string} name */
const spoken = (name) => (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");

/** @param {any} value */
function shown(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(4)));
}

/** A table of two columns. @param {[string, any][]} pairs */
function facts(pairs) {
  const told = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const rows = told.map(([name, value]) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value instanceof Node ? value : shown(value))));
  return h("table", { class: "pairs" }, h("tbody", {}, rows));
}

/** @param {any} told */
function galleryFacts({ stats = {} }) {
  return [
    ["Items", stats.items],
    ["Classes", stats.class_count],
    ["Without a label", stats.unlabelled],
    ["Search", stats.index],
    ["Size on disk", plain(stats.size) ? size(stats.size) : null],
    ["Writes", stats.generation],
  ];
}

/** @param {any} told */
function modelFacts(told) {
  const parts = facet(told.space).map(([name, value]) => (name === "name" ? value : `${name} ${shown(value)}`));
  if (told.space?.name === "learned") {
    parts.splice(0, 1, `learned similarity, over ${told.space.base?.name}`, "a distance is minus the similarity");
  }
  const kinds = { vector: "your own vectors", image: "images", audio: "recordings" };
  return [
    ["Name", told.name],
    ["Takes", kinds[told.kind] ?? told.kind],
    ["Dimension", told.dimension],
    ["Space", parts.join(", ")],
    ["Fingerprint", told.fingerprint ? h("code", { class: "long" }, told.fingerprint) : "none"],
    ...facet(told.card).filter(([name]) => !TOLD.includes(name)).map(([name, value]) => [spoken(name), value]),
  ];
}

/** What a card says beyond plain facts, as it is. @param {Record<string, any> | undefined} card */
function rest(card) {
  const deep = Object.entries(card ?? {}).filter(([, value]) => value && typeof value === "object");
  return deep.map(([name, value]) =>
    h("details", {}, h("summary", {}, spoken(name)), h("pre", { tabindex: 0 }, JSON.stringify(value, null, 2))));
}

/** @param {string[] | undefined} all */
function notes(all) {
  return (all ?? []).length > 0 && h("ul", { class: "notes" }, all.map((each) => h("li", {}, each)));
}

/** @param {any} told */
function reliability(told) {
  if (!told || told.reason || !told.bins?.length) return hint(told?.reason || "Nothing to show yet.");
  const numbers = [
    ["Correct answers", percent(told.accuracy)],
    ["Expected calibration error", percent(told.ece)],
    ["Items tested", count(told.items)],
  ];
  const figures = numbers.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
  const fit = told.fitted_by && hint(`Probabilities are fitted ${told.fitted_by}.`);
  return h("div", {}, h("dl", { class: "figures" }, figures), reliabilityDiagram(told), fit);
}

/** @param {number | null | undefined} value */
const shareOf = (value) => (plain(value) ? percent(value) : null);

/** @param {any} told */
function calibration(told) {
  if (!told) return hint("Not calibrated yet; this happens on the first query.");
  const { identification = {}, horizon = {}, pairs = {} } = told;
  const rows = [
    ["Calibrated on", counted(told.items, "item")],
    ["Neighbours used", told.k],
    ["Temperature", identification.temperature],
    ["Unknown beyond distance", plain(horizon.threshold) ? distance(horizon.threshold) : null],
    ["Queries of enrolled classes within", percent(told.accept)],
    ["Queries of other classes called unknown", plain(horizon.rejected) ? percent(horizon.rejected) : null],
    ["Called known by", horizon.score || null],
    ["Queries of enrolled classes called known", shareOf(horizon.forecast?.enrolled_known)],
    ["The same of those named rightly", shareOf(horizon.forecast?.named_known)],
    ["Queries of other classes called known", shareOf(horizon.forecast?.strangers_known)],
    ["The most of these that may be", shareOf(horizon.strangers)],
    ["Pairs of the same class", pairs.genuine],
    ["Pairs of different classes", pairs.impostors],
  ];
  const reasons = [identification.reason, horizon.reason, pairs.reason].filter(Boolean);
  return h("div", {}, hint("Calibrated on the gallery itself, leaving out each item in turn."), facts(rows),
    notes([...reasons, ...(told.notes ?? [])]));
}

/** @param {any} stats */
function classes(stats) {
  const all = bySize(stats.classes);
  const most = Math.max(1, ...all.map(([, n]) => n));
  const rows = all.slice(0, CLASSES).map(([label, n]) => {
    const bar = h("span", { class: "share", "aria-hidden": "true" });
    bar.style.inlineSize = `${(100 * n) / most}%`;
    const link = h("a", { href: itemsOf(label), class: "name", title: label }, label);
    return h("li", {}, link, h("span", { class: "track" }, bar), h("span", { class: "fact" }, count(n)));
  });
  const more = (stats.class_count ?? all.length) - rows.length;
  if (!all.length) return hint("No labelled items yet.");
  return h("div", {}, h("ol", { class: "sizes" }, rows), more > 0 && hint(`and ${count(more)} more.`));
}
