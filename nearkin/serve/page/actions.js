/** What a reader can do with an answer: enrol the query, or say that the answer is wrong; both can be undone. */

import { busyWhile, button, h } from "./dom.js";
import { icon } from "./icons.js";
import { labelField, meant } from "./labels.js";
import { distance, labelled } from "./words.js";

/**
 * A button that opens a small form for a label.
 * @param {{opener: string, field: string, action: string, class?: string,
 *   submit: (given: {label: string, told: string}) => Promise<void>}} options
 */
function labelForm({ opener, field, action, submit, ...look }) {
  const { input, note } = labelField({ required: true });
  const form = h("form", { hidden: true, class: "inline", id: `${input.id}-form` },
    h("label", { for: input.id }, field),
    h("div", { class: "row" }, input, button(action, () => {}, { type: "submit", class: "primary" })), note);
  const controls = { "aria-expanded": "false", "aria-controls": `${input.id}-form` };
  const open = button(opener, () => toggle(form.hidden), { ...controls, ...look });

  /** @param {boolean} shown */
  function toggle(shown) {
    form.hidden = !shown;
    open.setAttribute("aria-expanded", String(shown));
    if (shown) {
      form.dispatchEvent(new CustomEvent("opened", { bubbles: true }));
      input.focus();
    }
  }
  form.addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    const given = meant(input.value);
    if (given.label) busyWhile(form, () => submit(given));
    else note.textContent = "A label cannot be blank.";
  });
  form.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape") return;
    toggle(false);
    open.focus();
  });
  return { open, form, close: () => toggle(false) };
}

/**
 * @param {import("./main.js").App} app
 * @param {import("./api.js").Query} query
 * @param {import("./api.js").Answer} told
 * @param {() => void} again asks the same query once more.
 * @returns {HTMLElement}
 */
export function actionsFor(app, query, told, again) {
  const news = h("div", { class: "news" });
  const panel = h("div", { class: "actions" });

  /** Say what happened, with what can be done about it. @param {string} text @param {(Node | false)[]} choices */
  function report(text, ...choices) {
    const line = h("div", { class: "notice", tabindex: -1 }, h("p", {}, text), h("div", { class: "row" }, ...choices));
    news.replaceChildren(line);
    line.focus();
    app.say(text);
  }

  /** Write, then refresh what is known of the gallery; errors are shown. @param {() => Promise<void>} work */
  async function write(work) {
    try {
      await work();
      app.refresh().catch(() => {});
    } catch (error) {
      app.complain(error);
    }
  }

  const askAgain = () => button("Ask again", again);

  /** @param {string[]} ids */
  const undoEnrol = (ids) => button("Undo", () => busyWhile(panel, () => write(async () => {
    for (const id of ids) await app.api.remove(id);
    report("Undone: the item was removed again.");
  })));

  /** @param {{label: string, told: string}} given */
  const enrol = ({ label, told: about }) => write(async () => {
    const { ids } = await app.api.enrol(label, query);
    closeAll();
    report(`Enrolled as “${label}”.${about}`, undoEnrol(ids), askAgain());
  });

  /** @param {{label: string, told: string}} given */
  const correct = ({ label, told: about }) => write(async () => {
    const { ids } = await app.api.enrol(label, query);
    closeAll();
    report(`Enrolled as “${label}”, so it will be recognised from now on.${about}`, undoEnrol(ids), askAgain());
    const nearest = told.neighbours[0];
    if (nearest && nearest.label !== label) news.append(misled(nearest, label));
  });

  /**
   * The nearest item spoke for the wrong label; it may be wrong itself.
   * @param {import("./api.js").Neighbour} item
   * @param {string} label
   */
  function misled(item, label) {
    const before = item.label;
    const relabel = () => busyWhile(panel, () => write(async () => {
      await app.api.relabel(item.id, label);
      const undo = () => busyWhile(panel, () => write(async () => {
        await app.api.relabel(item.id, before);
        report(`Undone: the item is labelled “${labelled(before)}” again.`);
      }));
      report(`The nearest item is now labelled “${label}”.`, button("Undo", undo), askAgain());
    }));
    const near = `The nearest item (distance ${distance(item.distance)}) is labelled “${labelled(before)}”.`;
    const keep = button("No, it is correct", () => box.remove(), { class: "quiet" });
    const box = h("div", { class: "notice misled" },
      app.pictures.thumbnail(item, ""),
      h("div", {},
        h("p", {}, `${near} Is that label wrong too?`),
        h("div", { class: "row" }, button(`Relabel it to “${label}”`, relabel), keep)));
    return box;
  }

  const wrong = labelForm({
    opener: "Wrong? Correct it…", field: "Correct label", action: "Correct", submit: correct,
  });
  // Where the answer may be right already, enrolling is not the first thing to do.
  const look = told.known === true ? {} : { class: "primary" };
  const add = labelForm({
    opener: "Enrol as…", field: "Label", action: "Enrol", submit: enrol, ...look,
  });
  const forms = [add, wrong];
  const closeAll = () => forms.forEach((each) => each.close());
  panel.addEventListener("opened", (event) => {
    for (const other of forms.filter((each) => each.form !== event.target)) other.close();
  });
  const inMap = h("a", { class: "button quiet", href: "#/map" }, icon("pin"), "Show in map");
  const choices = h("div", { class: "row" }, add.open, told.label !== null && wrong.open, inMap);
  for (const part of [add.open, add.form, wrong.open, wrong.form, news]) part.classList.add("writes");
  panel.append(choices, add.form, wrong.form, news);
  return panel;
}
