/** The view that lists what is in the gallery, page by page; labels can be edited and items deleted. */

import { busyWhile, button, columns, h, heading, hint } from "./dom.js";
import { icon } from "./icons.js";
import { breakable, labelField, meant } from "./labels.js";
import { counted, labelled, moment } from "./words.js";

const PAGE = 30;
const HELP = "Compare metadata by name; label, id and added always exist. Examples:";
const EXAMPLES = [
  "label = 'red apple'", "label is null", "price < 10 and site in ('north', 'south')", "added >= '2026-11'",
  "not (checked = true)",
];

/**
 * @param {import("./main.js").App} app
 * @returns {import("./main.js").View}
 */
export function itemsView(app) {
  const described = { "aria-describedby": "where-hint", placeholder: "all items" };
  const field = h("input", { id: "where", type: "search", autocomplete: "off", spellcheck: "false", ...described });
  const body = h("tbody");
  const head = columns("Item", "Label", "Facts", "Added", "Actions");
  head.querySelector("th:last-child").classList.add("writes");
  const table = h("table", { class: "items" },
    h("caption", { class: "unseen" }, "Items of the gallery"),
    head, body);
  const place = h("p", { class: "hint", role: "status" });
  const back = button("Previous page", () => turn(starts.slice(0, -1)));
  const on = button("Next page", () => turn([...starts, next]));
  const pager = h("div", { class: "row pager" }, back, on, place);
  const list = h("section", { "aria-label": "List" }, h("div", { class: "sheet" }, table), pager);
  const element = h("div", { class: "view" },
    heading("Items", "All enrolled items."),
    filter(field, (where) => (location.hash = where ? `#/items?where=${encodeURIComponent(where)}` : "#/items")), list);

  let where = "";
  /** Where the pages up to this one begin. @type {(string | null)[]} */
  let starts = [null];
  /** @type {string | null} */
  let next = null;

  function nothing() {
    if (starts.length > 1) return "That was the last page.";
    return where ? "No item matches the condition." : "The gallery is empty.";
  }

  /** @param {(string | null)[]} wanted */
  function turn(wanted) {
    return busyWhile(list, async () => {
      try {
        const page = await app.api.items({ after: wanted.at(-1), limit: PAGE, where });
        [starts, next] = [wanted, page.next];
        body.replaceChildren(...page.items.map((item) => row(app, item)));
        const here = `Page ${starts.length}, ${counted(page.items.length, "item")}`;
        place.textContent = page.items.length ? here : nothing();
        if (starts.length > 1 || next) scrollTo({ top: 0 });
      } catch (error) {
        app.complain(error);
      }
    }).then(() => {
      back.disabled = starts.length === 1;
      on.disabled = next === null;
    });
  }

  return {
    title: "Items",
    element,
    show(parameters) {
      where = parameters.get("where") ?? "";
      field.value = where;
      turn([null]);
    },
  };
}

/** @param {HTMLInputElement} field @param {(where: string) => void} use */
function filter(field, use) {
  const examples = EXAMPLES.map((each) => h("li", {}, button(h("code", {}, each), () => {
    field.value = each;
    field.focus();
  }, { class: "quiet example" })));
  const clear = button("Clear", () => {
    field.value = "";
    use("");
  }, { class: "quiet" });
  return h("form", { class: "filter", role: "search", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    use(field.value.trim());
  } },
    h("label", { for: "where" }, "Filter"),
    h("div", { class: "row" }, field, button("Filter", () => {}, { type: "submit", class: "primary" }), clear),
    h("details", {}, h("summary", { id: "where-hint" }, "How to write a condition"),
      hint(HELP),
      h("ul", { class: "examples" }, examples)));
}

/** @param {Record<string, any>} metadata */
function facts(metadata) {
  const pairs = Object.entries(metadata ?? {});
  if (!pairs.length) return "–";
  const rows = pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))));
  return h("dl", { class: "facts" }, rows);
}

/** @param {import("./main.js").App} app @param {import("./api.js").Item} item */
function row(app, item) {
  const shown = h("span", { class: item.label === null ? "name none" : "name" }, breakable(labelled(item.label)));
  const label = h("td", { "data-name": "Label" }, shown);
  const edit = button("Edit label", () => {
    label.replaceChildren(editor);
    input.value = item.label ?? "";
    news.textContent = "";
    input.focus();
    input.select();
  }, { class: "quiet", "aria-label": `Edit label of ${item.id}` });
  const { input, note } = labelField({ "aria-label": `Label of ${item.id}` });
  const close = () => {
    label.replaceChildren(shown, news);
    edit.focus();
  };
  const editor = h("form", { class: "row edit", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    save();
  }, onkeydown: (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && close() },
    input, button("Save", () => {}, { type: "submit", class: "primary" }), button("Cancel", close, { class: "quiet" }),
    note);
  const news = hint();

  async function save() {
    if (input.value === (item.label ?? "")) return close();
    const given = meant(input.value);
    const wanted = given.label || null;
    try {
      if (wanted !== item.label) await busyWhile(editor, () => app.api.relabel(item.id, wanted));
      item.label = wanted;
      shown.replaceChildren(...breakable(labelled(wanted)));
      news.textContent = given.told;
      shown.classList.toggle("none", wanted === null);
      close();
      app.say(`${item.id} is now labelled ${labelled(wanted)}.${given.told}`);
      app.refresh().catch(() => {});
    } catch (error) {
      app.complain(error);
    }
  }

  async function remove() {
    const sure = await app.confirm({
      title: "Delete this item?", action: "Delete", picture: app.pictures.thumbnail(item),
      text: `${item.id}, labelled “${labelled(item.label)}”, will be removed from the gallery permanently.`,
    });
    if (!sure) return;
    try {
      await busyWhile(line, () => app.api.remove(item.id));
      const neighbour = line.nextElementSibling ?? line.previousElementSibling;
      line.remove();
      (neighbour?.querySelector("button.danger") ?? document.querySelector("h1")).focus();
      app.say(`${item.id} was deleted.`);
      app.refresh().catch(() => {});
    } catch (error) {
      app.complain(error);
    }
  }

  const who = h("div", { class: "who" }, app.pictures.thumbnail(item), h("span", { class: "id" }, breakable(item.id)));
  const away = button([icon("close"), "Delete"], remove, { class: "quiet danger", "aria-label": `Delete ${item.id}` });
  const added = item.added ? h("time", { datetime: item.added }, moment(item.added)) : "–";
  const line = h("tr", {},
    h("th", { scope: "row" }, who),
    label,
    h("td", { "data-name": "Facts" }, facts(item.metadata)),
    h("td", { class: "when", "data-name": "Added" }, added),
    h("td", { class: "writes" }, h("div", { class: "row" }, edit, away)));
  return line;
}
