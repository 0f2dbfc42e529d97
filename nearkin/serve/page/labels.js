/** Labels as they are given and shown: fields that cut nothing unsaid, and names that break where they may. */

import { byId, freshId, h } from "./dom.js";
import { labelled } from "./words.js";

/** How many characters the service takes. */
const LONGEST = 1000;
/** Where a name may break: after separators, but not inside a number such as 1.5. */
const SEAMS = /(?<=[_.,:;|/\\+=@-])(?<!\d[.,](?=\d))(?=[\p{L}\p{N}])/u;

/**
 * A name whose lines break after "_" and the like; a word breaks only if it does not fit at all.
 * @param {string} text
 * @returns {Node[]}
 */
export function breakable(text) {
  return text.split(SEAMS).flatMap((part, index) => (index ? [h("wbr"), part] : [part]));
}

/**
 * A label in the little room of a tile: at most two lines, all of it in its tooltip.
 * @param {string | null} label
 */
export function shortName(label) {
  return h("span", { class: "name", title: labelled(label) }, breakable(labelled(label)));
}

/**
 * A field for a label, and the line below it that tells what does not fit.
 * @param {Record<string, any>} [attributes]
 */
export function labelField(attributes = {}) {
  const id = freshId("label");
  const note = h("p", { class: "hint", id: `${id}-note`, role: "status" });
  const own = { id, list: "labels", autocomplete: "off", maxlength: LONGEST, "aria-describedby": `${id}-note` };
  const input = h("input", { ...own, ...attributes });
  input.addEventListener("input", () => (note.textContent = ""));
  input.addEventListener("paste", (/** @type {ClipboardEvent} */ event) => {
    const room = LONGEST - input.value.length + (input.selectionEnd - input.selectionStart);
    const cut = (event.clipboardData?.getData("text") ?? "").length > room;
    // The browser cuts after this event, and its own input event would take the words away.
    if (cut) setTimeout(() => (note.textContent = `A label has at most ${LONGEST} characters; the rest was cut off.`));
  });
  return { input, note };
}

/**
 * The label that is meant by a text, and what must be said about it. Blanks around a label are rarely meant, unless
 * the gallery has a label that is spelt so.
 * @param {string} text
 * @returns {{label: string, told: string}}
 */
export function meant(text) {
  const label = text.trim();
  const known = [...byId("labels").options].some((each) => each.value === text);
  if (label === text || (known && label)) return { label: text, told: "" };
  return { label, told: label ? " Surrounding blanks were removed." : "" };
}
