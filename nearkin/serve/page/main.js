/** Puts the page together: routes, theme, messages, and what all views share. */

import { ApiError, createApi } from "./api.js";
import { askForKey, confirm } from "./dialogs.js";
import { button, byId, h } from "./dom.js";
import { icon } from "./icons.js";
import { identifyView } from "./identify.js";
import { itemsView } from "./items.js";
import { mapView } from "./map.js";
import { modelView } from "./model.js";
import { createPictures } from "./pictures.js";
import { reviewView } from "./review.js";
import { bySize, counted } from "./words.js";

/**
 * @typedef {object} View
 * @property {string} title
 * @property {HTMLElement} element
 * @property {(parameters: URLSearchParams) => void} show called each time it comes into sight.
 * @property {() => void} [hide]
 *
 * @typedef {object} App what a view is given.
 * @property {import("./api.js").Api} api
 * @property {import("./pictures.js").Pictures} pictures
 * @property {typeof confirm} confirm
 * @property {(text: string) => void} say tells a screen reader; sighted readers see it in the view itself.
 * @property {(error: unknown) => void} complain shows an error to everybody.
 * @property {() => Promise<any>} model what /v1/model says; asked once.
 * @property {() => Promise<any>} refresh asks again what /v1/model says, after a write.
 * @property {Session} session the last question.
 *
 * @typedef {object} Session
 * @property {import("./api.js").Query | null} query
 * @property {string | null} preview the address of its picture.
 * @property {import("./api.js").Answer | null} answer
 */

const ROUTES = { identify: identifyView, map: mapView, review: reviewView, items: itemsView, model: modelView };
const LABELS_OFFERED = 2000;
const READS = "This service is read-only: you cannot change anything.";
const KEY_READS = "This key or service is read-only: you cannot change anything.";

/** Goes along with the heading of the view in sight. */
const reader = h("p", { class: "hint reader", hidden: true });

/** @param {string} text */
function say(text) {
  // The same text twice is said twice only if it was away in between.
  byId("status").textContent = "";
  setTimeout(() => (byId("status").textContent = text), 30);
}

/** @param {unknown} error */
function complain(error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error);
  const text = error instanceof ApiError ? error.message : "Something went wrong. Try reloading the page.";
  const note = h("div", { class: "problem" }, h("p", {}, text));
  const sign = [icon("close"), h("span", { class: "unseen" }, "Dismiss")];
  note.append(button(sign, () => note.remove(), { class: "quiet round" }));
  byId("problems").replaceChildren(note);
}

/** @param {any} told what /v1/model says. */
function introduce(told) {
  const items = told.stats?.items;
  byId("gallery").textContent = told.name;
  byId("gallery-size").textContent = items === undefined ? "" : `· ${counted(items, "item")}`;
  const labels = bySize(told.stats?.classes).slice(0, LABELS_OFFERED).map(([label]) => label);
  byId("labels").replaceChildren(...labels.map((value) => h("option", { value })));
}

/**
 * Offer what this caller may do. A service that does not say lets everybody write, or refuses in its own words.
 * @param {boolean} write @param {boolean} hasKey
 */
function allow(write, hasKey) {
  document.documentElement.dataset.may = write ? "write" : "read";
  reader.hidden = write;
  reader.textContent = hasKey ? KEY_READS : READS;
}

/** @returns {App} */
function createApp() {
  /** @type {Promise<any> | null} */
  let told = null;
  const showKey = () => (byId("key").hidden = !api.hasKey());
  const api = createApi({
    askForKey,
    onkey(key) {
      showKey();
      // Another key may be allowed more, or less.
      if (key) refresh().catch(() => {});
    },
  });
  showKey();

  function refresh() {
    const asked = api.model().then((answer) => {
      introduce(answer);
      allow(answer.may?.write !== false, api.hasKey());
      return answer;
    });
    asked.catch(() => {
      if (told === asked) told = null;
      document.documentElement.dataset.may ??= "write";
    });
    told = asked;
    return asked;
  }
  const session = { query: null, preview: null, answer: null };
  const model = () => told ?? refresh();
  return { api, pictures: createPictures(api), confirm, say, complain, model, refresh, session };
}

/** A theme chosen here is remembered; until then the system's holds. */
function themes() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  function paint() {
    byId("theme-icon").replaceChildren(icon(dark() ? "sun" : "moon"));
    byId("theme-name").textContent = dark() ? "Light theme" : "Dark theme";
    root.dispatchEvent(new CustomEvent("themechange"));
  }
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("nearkin-theme", root.dataset.theme);
    } catch {
      // Storage may be forbidden; the choice then lasts until the page is left.
    }
    paint();
  });
  system.addEventListener("change", paint);
  paint();
}

/** @param {App} app */
function routes(app) {
  /** @type {Map<string, View>} */
  const views = new Map();
  /** @type {View | null} */
  let current = null;

  function go() {
    const [name, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    const route = Object.hasOwn(ROUTES, name) ? name : "identify";
    if (!views.has(route)) views.set(route, ROUTES[route](app));
    const view = views.get(route);
    const first = current === null;
    if (view !== current) {
      current?.hide?.();
      byId("problems").replaceChildren();
      view.element.querySelector(".heading").append(reader);
      byId("main").replaceChildren(view.element);
      document.title = `${view.title} · nearkin`;
      for (const link of document.querySelectorAll("nav a")) {
        if (link.getAttribute("href") === `#/${route}`) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
      current = view;
      if (!first) {
        scrollTo(0, 0);
        view.element.querySelector("h1")?.focus({ preventScroll: true });
      }
    }
    view.show(new URLSearchParams(query));
  }
  addEventListener("hashchange", go);
  go();
}

const app = createApp();
byId("skip").addEventListener("click", (event) => {
  // The address is for routes, so the jump is made by hand.
  event.preventDefault();
  byId("main").focus();
});
byId("key").addEventListener("click", () => app.api.changeKey());
themes();
routes(app);
app.model().catch(app.complain);
