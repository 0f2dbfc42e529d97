/** Making elements. Text becomes text nodes, never markup, so a label can hold any character. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 */

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {Child[]} children
 */
function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child || child === 0 || child === ""));
  return element;
}

/**
 * An HTML element. Attributes that are null, undefined or false are left out; `onclick` and the like are listeners.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/**
 * An SVG element, made as `h` makes HTML.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function s(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * A button that does something.
 * @param {Child | Child[]} content
 * @param {(event: MouseEvent) => void} onclick
 * @param {Record<string, any>} [attributes]
 */
export function button(content, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, content);
}

/**
 * What a view begins with; the title takes the focus when the view comes into sight.
 * @param {string} title
 * @param {string} text
 */
export function heading(title, text) {
  return h("header", { class: "heading" }, h("h1", { tabindex: -1 }, title), h("p", {}, text));
}

/** Words beside the matter. @param {...Child} words */
export function hint(...words) {
  return h("p", { class: "hint" }, ...words);
}

/** The head of a table. @param {...string} names */
export function columns(...names) {
  return h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name))));
}

/**
 * An element by id; the page's own markup has it.
 * @param {string} id
 * @returns {any}
 */
export function byId(id) {
  return document.getElementById(id);
}

let ids = 0;

/** An id that no other element has. @param {string} stem */
export function freshId(stem) {
  ids += 1;
  return `${stem}-${ids}`;
}

/**
 * Mark an element busy and its buttons unusable while a promise is under way.
 * @template T
 * @param {Element} element
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
export async function busyWhile(element, work) {
  const buttons = [...element.querySelectorAll("button:not(:disabled)")];
  const focused = document.activeElement;
  element.setAttribute("aria-busy", "true");
  for (const each of buttons) each.disabled = true;
  try {
    return await work();
  } finally {
    element.removeAttribute("aria-busy");
    for (const each of buttons) each.disabled = false;
    // A disabled button loses the focus; whoever works by keyboard must not be thrown to the top of the page.
    if (document.activeElement === document.body && focused?.isConnected && element.contains(focused)) focused.focus();
  }
}
