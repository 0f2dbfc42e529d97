/** The view that helps to clean up: labels that their neighbours contradict, and items that are almost the same. */

import { meter } from "./answer.js";
import { ApiError } from "./api.js";
import { busyWhile, button, h, heading, hint } from "./dom.js";
import { icon } from "./icons.js";
import { breakable, shortName } from "./labels.js";
import { counted, distance, labelled, percent } from "./words.js";

const DISMISSED = "nearkin-dismissed";
const SHOWN = 60;

/** Suspects that a reader called right; remembered for this visit. */
const dismissed = {
  /** @returns {Set<string>} */
  all: () => new Set(JSON.parse(sessionStorage.getItem(DISMISSED) ?? "[]")),
  /** @param {string} name */
  add: (name) => sessionStorage.setItem(DISMISSED, JSON.stringify([...dismissed.all(), name].slice(-5000))),
};

/** A suspect that gets another label is another suspect. @param {any} suspect */
const nameOf = (suspect) => JSON.stringify([suspect.item.id, suspect.item.label, suspect.suggested]);

/**
 * @param {import("./main.js").App} app
 * @returns {import("./main.js").View}
 */
export function reviewView(app) {
  const suspects = h("ul", { class: "cases" });
  const groups = h("ul", { class: "cases groups" });
  const parts = [
    { list: suspects, note: h("p", { class: "hint", role: "status" }) },
    { list: groups, note: h("p", { class: "hint", role: "status" }) },
  ];
  const element = h("div", { class: "view" },
    heading("Review", "A gallery is as good as its labels. Check these."),
    h("section", { "aria-labelledby": "suspects" }, h("h2", { id: "suspects" }, "Suspicious labels"),
      hint("Items whose nearest neighbours have another label; the least plausible labels first."),
      parts[0].note, suspects),
    h("section", { "aria-labelledby": "duplicates" }, h("h2", { id: "duplicates" }, "Duplicates"),
      hint("Items that the model can hardly distinguish."), parts[1].note, groups));

  /**
   * @param {{list: HTMLElement, note: HTMLElement}} part
   * @param {() => Promise<HTMLElement[]>} ask
   * @param {string} none
   * @param {(n: number) => string} some
   */
  async function fill({ list, note }, ask, none, some) {
    note.textContent = list.childElementCount ? note.textContent : "Looking through the gallery…";
    list.setAttribute("aria-busy", "true");
    try {
      const cases = await ask();
      list.replaceChildren(...cases.slice(0, SHOWN));
      const rest = cases.length > SHOWN ? ` The first ${SHOWN} are shown; come back when they are done.` : "";
      note.textContent = cases.length ? some(cases.length) + rest : none;
    } catch (error) {
      list.replaceChildren();
      // What a gallery cannot say yet, for want of items, is no fault.
      const unready = error instanceof ApiError && [400, 409, 422].includes(error.status);
      note.textContent = unready ? error.message : "This could not be loaded.";
      if (!unready) app.complain(error);
    } finally {
      list.removeAttribute("aria-busy");
    }
  }

  return {
    title: "Review",
    element,
    show() {
      fill(parts[0], async () => {
        const right = dismissed.all();
        const { suspects: found } = await app.api.suspects();
        return found.filter((each) => !right.has(nameOf(each))).map((each) => suspectCase(app, each));
      }, "Nothing to do: no suspicious labels.", (n) => `${counted(n, "label")} to check.`);
      fill(parts[1], async () => (await app.api.duplicates()).duplicates.map((each) => duplicateCase(app, each)),
        "Nothing to do: no near duplicates.", (n) => `${counted(n, "group")} to check.`);
    },
  };
}

/**
 * Put a line in the place of a case that is done, and the focus on it.
 * @param {import("./main.js").App} app @param {HTMLElement} box @param {string} text @param {Node[]} choices
 */
function settle(app, box, text, ...choices) {
  const line = h("p", { class: "settled", tabindex: -1 }, icon("check"), h("span", {}, text), ...choices);
  box.replaceChildren(line);
  line.focus();
  app.say(text);
}

/** @param {import("./main.js").App} app @param {any} suspect */
function suspectCase(app, suspect) {
  const { item, suggested, probability, own } = suspect;
  const box = h("li", { class: "case" });
  const content = [
    app.pictures.thumbnail(item),
    h("div", { class: "story" },
      h("p", { class: "change" },
        h("span", { class: "unseen" }, "Labelled "), h("span", { class: "had" }, breakable(labelled(item.label))),
        icon("arrow"),
        h("span", { class: "unseen" }, " neighbours say "), h("b", {}, breakable(suggested))),
      meter(probability, `Probability of ${suggested}`),
      h("p", { class: "fact" }, `${item.id} · own label ${percent(own)}`),
      h("div", { class: "row" },
        button(`Relabel to “${suggested}”`, relabel, { class: "soft writes" }),
        button("It is correct", () => {
          dismissed.add(nameOf(suspect));
          settle(app, box, `“${labelled(item.label)}” stays; it will not be shown again in this session.`);
        }))),
  ];

  async function relabel() {
    try {
      await busyWhile(box, () => app.api.relabel(item.id, suggested));
      settle(app, box, `Relabelled to “${suggested}”.`, button("Undo", undo));
      app.refresh().catch(() => {});
    } catch (error) {
      app.complain(error);
    }
  }
  async function undo() {
    try {
      await busyWhile(box, () => app.api.relabel(item.id, item.label));
      box.replaceChildren(...content);
      box.querySelector("button").focus();
      app.say("Undone.");
      app.refresh().catch(() => {});
    } catch (error) {
      app.complain(error);
    }
  }
  box.append(...content);
  return box;
}

/** @param {import("./main.js").App} app @param {{items: import("./api.js").Item[], distance: number}} group */
function duplicateCase(app, group) {
  const box = h("li", { class: "case group" });
  const differ = new Set(group.items.map((each) => each.label)).size > 1;
  let left = group.items.length;
  const tiles = group.items.map((item) => {
    const named = { "aria-label": `Remove this one: ${item.id}` };
    const tile = h("li", { class: "tile" }, app.pictures.thumbnail(item),
      shortName(item.label), h("span", { class: "fact" }, breakable(item.id)),
      button("Remove this one", remove, { class: "quiet danger writes", ...named }));
    async function remove() {
      const sure = await app.confirm({
        title: "Remove this one?", action: "Remove", picture: app.pictures.thumbnail(item),
        text: `${item.id}, labelled “${labelled(item.label)}”, will be removed permanently. The other items of its group stay.`,
      });
      if (!sure) return;
      try {
        await busyWhile(box, () => app.api.remove(item.id));
        tile.remove();
        left -= 1;
        if (left < 2) settle(app, box, "Only one item is left in this group.");
        else {
          box.querySelector("button").focus();
          app.say(`${item.id} was removed.`);
        }
        app.refresh().catch(() => {});
      } catch (error) {
        app.complain(error);
      }
    }
    return tile;
  });
  const near = `${counted(group.items.length, "item")} within distance ${distance(group.distance)}`;
  box.append(h("div", { class: "story" },
    h("p", { class: "fact" }, near, differ && h("b", { class: "differ" }, "their labels differ")),
    h("ul", { class: "tiles" }, tiles)));
  return box;
}
