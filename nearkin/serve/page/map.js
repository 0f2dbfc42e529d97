/** The view that shows the gallery as a map, with the last query in it. */

import { button, h, heading, hint } from "./dom.js";
import { icon } from "./icons.js";
import { breakable } from "./labels.js";
import { classesOf, draw, drawSign, lookOf, pixel, pointAt, pointToward, wholeView } from "./scatter.js";
import { count, counted, labelled } from "./words.js";

const LIMIT = 2000;
const LEGEND = 14;
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const HELP = "Arrow keys move between items, Enter highlights the class, Escape clears it. Plus and minus zoom, "
  + "0 shows everything.";

/** Whether the page is dark now. */
function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * @param {import("./main.js").App} app
 * @returns {import("./main.js").View}
 */
export function mapView(app) {
  const named = { "aria-label": "Map of the gallery", "aria-describedby": "map-help" };
  const canvas = h("canvas", { tabindex: 0, role: "application", ...named });
  const tip = h("div", { class: "tip", hidden: true });
  const stage = h("div", { class: "stage" }, canvas, tip, h("div", { class: "zoom" },
    zoomButton("plus", "Zoom in", () => zoom(1.5)),
    zoomButton("minus", "Zoom out", () => zoom(1 / 1.5)),
    zoomButton("whole", "Show everything", whole)));
  const legend = h("ul", { class: "legend" });
  const facts = hint();
  const queryNote = h("p", { class: "querynote", hidden: true });
  const element = h("div", { class: "view" },
    heading("Map", "Items that are similar to the model are close together."),
    h("div", { class: "atlas" }, stage,
      h("aside", { "aria-label": "Legend" }, queryNote, h("h2", {}, "Largest classes"), legend, facts)),
    h("p", { class: "hint", id: "map-help" }, HELP));

  const scene = {
    points: [], looks: new Map(), camera: { x: 0.5, y: 0.5, scale: 1 }, size: { width: 0, height: 0 },
    dark: isDark(), at: -1, picked: undefined, query: null,
  };
  let pictured = true;
  let frame = 0;
  let tipTimer = 0;

  function redraw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      const ratio = devicePixelRatio || 1;
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      draw(context, scene);
      canvas.dataset.drawn = String(scene.points.length);
    });
  }

  function whole() {
    scene.camera = wholeView(scene.query ? [...scene.points, scene.query] : scene.points, scene.size);
    look(scene.at);
  }

  /** @param {number} factor */
  function zoom(factor) {
    scene.camera = { ...scene.camera, scale: scene.camera.scale * factor };
    look(scene.at);
  }

  /** Look at a point: ring it and show what it is. @param {number} index */
  function look(index) {
    scene.at = index;
    clearTimeout(tipTimer);
    const point = scene.points[index];
    tip.hidden = !point;
    if (point) {
      const words = [h("b", {}, breakable(labelled(point.label))), h("span", { class: "fact" }, breakable(point.id))];
      tip.replaceChildren(h("span", { class: "frame" }), h("div", {}, words));
      const item = { ...point, thumbnail: pictured ? `/v1/items/${encodeURIComponent(point.id)}/thumbnail` : null };
      // A hand that sweeps over the map must not ask for every picture on its way.
      tipTimer = setTimeout(() => tip.firstChild.replaceWith(app.pictures.thumbnail(item, "")), 90);
      const [x, y] = pixel(point, scene.camera, scene.size);
      const below = y + 14 + tip.offsetHeight <= scene.size.height;
      tip.style.left = `${Math.max(4, Math.min(x + 14, scene.size.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(4, below ? y + 14 : y - 14 - tip.offsetHeight)}px`;
    }
    redraw();
  }

  /** @param {string | null | undefined} label */
  function pick(label) {
    scene.picked = scene.picked === label ? undefined : label;
    // An entry's label may be null, but never undefined, which stands for no class.
    for (const each of legend.querySelectorAll("button")) {
      each.setAttribute("aria-pressed", String(each.label === scene.picked));
    }
    redraw();
  }

  function drawLegend() {
    const classes = classesOf(scene.points);
    scene.looks = new Map(classes.map(([label], rank) => [label, lookOf(rank)]));
    legend.replaceChildren(...classes.slice(0, LEGEND).map(([label, size]) => {
      const sign = h("canvas", { width: 32, height: 32, class: "sign", "aria-hidden": "true" });
      drawSign(sign, scene.looks.get(label), scene.dark);
      const words = [h("span", { class: "name" }, labelled(label)), h("span", { class: "fact" }, count(size))];
      const entry = button([sign, ...words], () => pick(label), { "aria-pressed": "false", title: labelled(label) });
      entry.label = label;
      return h("li", {}, entry);
    }));
    const more = classes.length - LEGEND;
    const [items, kinds] = [counted(scene.points.length, "item"), counted(classes.length, "class", "classes")];
    facts.textContent = `${items}, ${kinds}${more > 0 ? `, ${more} not listed` : ""}.`;
    canvas.setAttribute("aria-label", `Map of ${items} in ${kinds}`);
  }

  async function load() {
    stage.setAttribute("aria-busy", "true");
    try {
      const [{ points }, model] = await Promise.all([app.api.map(LIMIT), app.model()]);
      pictured = model.kind === "image";
      Object.assign(scene, { points, at: -1, picked: undefined, query: await place() });
      queryNote.hidden = !scene.query;
      const { preview } = app.session;
      const star = h("span", { class: "star", "aria-hidden": "true" }, "★");
      queryNote.replaceChildren(star, "your query", preview ? h("img", { src: preview, alt: "" }) : "");
      drawLegend();
      whole();
      app.say(`${facts.textContent}${scene.query ? " The query is marked with a star." : ""}`);
    } catch (error) {
      app.complain(error);
    } finally {
      stage.removeAttribute("aria-busy");
    }
  }

  /** Where the last query lies: asked each time, since the map is made anew after a write and moves what lies in it. */
  async function place() {
    const { query, answer } = app.session;
    if (!query || !answer) return null;
    try {
      return (await app.api.identify(query, { neighbours: 1, place: true })).place;
    } catch (error) {
      // The map is worth seeing without the query too.
      app.complain(error);
      return null;
    }
  }

  new ResizeObserver(() => {
    const { clientWidth: width, clientHeight: height } = canvas;
    const ratio = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    scene.size = { width, height };
    whole();
  }).observe(canvas);

  follow(canvas, scene, { look, pick, zoom, redraw });
  canvas.addEventListener("focus", () => {
    if (scene.at < 0 && scene.points.length && canvas.matches(":focus-visible")) look(0);
  });
  canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const point = scene.points[scene.at];
    const [nearer, further] = [() => zoom(1.5), () => zoom(1 / 1.5)];
    const stand = { Escape: () => pick(undefined), Enter: () => point && pick(point.label) };
    const keys = { "+": nearer, "=": nearer, "-": further, 0: whole, ...stand };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in DIRECTIONS && scene.points.length) {
      look(scene.at < 0 ? 0 : pointToward(scene.points, scene.at, DIRECTIONS[event.key]));
      app.say(`${labelled(scene.points[scene.at].label)}, ${scene.points[scene.at].id}`);
    } else if (Object.hasOwn(keys, event.key)) keys[event.key]();
    else return;
    event.preventDefault();
  });
  document.documentElement.addEventListener("themechange", () => {
    scene.dark = isDark();
    drawLegend();
    redraw();
  });

  return { title: "Map", element, show: load };
}

/** @param {"plus" | "minus" | "whole"} name @param {string} words @param {() => void} act */
function zoomButton(name, words, act) {
  return button([icon(name), h("span", { class: "unseen" }, words)], act, { class: "quiet round", title: words });
}

/**
 * Follow the pointer: hover looks, a click picks a class, a drag moves the map, the wheel with Ctrl zooms.
 * @param {HTMLCanvasElement} canvas @param {any} scene
 * @param {{look: (index: number) => void, pick: (label: any) => void, zoom: (factor: number) => void,
 *   redraw: () => void}} acts
 */
function follow(canvas, scene, { look, pick, zoom, redraw }) {
  /** @type {{x: number, y: number, moved: boolean} | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) {
      const index = pointAt(scene.points, event.offsetX, event.offsetY, scene.camera, scene.size);
      if (index !== scene.at) look(index);
      return;
    }
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    const { x, y, scale } = scene.camera;
    scene.camera = { x: x - dx / scale, y: y + dy / scale, scale };
    drag = { x: event.offsetX, y: event.offsetY, moved: true };
    if (scene.at >= 0) look(-1);
    else redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const still = drag && !drag.moved;
    drag = null;
    if (!still) return;
    const index = pointAt(scene.points, event.offsetX, event.offsetY, scene.camera, scene.size);
    look(index);
    pick(index < 0 ? undefined : scene.points[index].label);
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => drag || look(-1));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
  }, { passive: false });
}
