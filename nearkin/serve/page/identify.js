/** The view that asks what something is: an image by file, drop or paste, or a vector. */

import { actionsFor } from "./actions.js";
import { answerOf } from "./answer.js";
import { button, h, heading } from "./dom.js";
import { icon } from "./icons.js";

const NEIGHBOURS = 12;
const ELSEWHERE = "This gallery contains your own vectors, so it cannot identify images. "
  + "Enter a vector instead.";

/** What the reader gives, by the kind of gallery; the content policy lets no sound be played, so it has no preview. */
const KINDS = {
  image: {
    noun: "image", choose: "Choose an image", accept: "image/*",
    hint: "Drop it anywhere on this page, or paste it with Ctrl+V or ⌘V.",
  },
  audio: { noun: "recording", choose: "Choose a recording", accept: "audio/*", hint: "Drop it anywhere on this page." },
};

/**
 * @param {import("./main.js").App} app
 * @returns {import("./main.js").View}
 */
export function identifyView(app) {
  const answer = h("section", { class: "answer", "aria-label": "Answer" }, waiting());
  const question = h("section", { class: "question", "aria-label": "Question" });
  const element = h("div", { class: "view" },
    heading("Identify", "Find the class of an item, its probability, and the most similar items."),
    h("div", { class: "ask" }, question, answer));
  let shown = false;
  let kind = "";
  /** @type {AbortController | null} */
  let underway = null;

  /** @param {import("./api.js").Query} query @param {string | null} preview */
  async function ask(query, preview) {
    underway?.abort();
    const mine = (underway = new AbortController());
    Object.assign(app.session, { query, preview, answer: null });
    answer.setAttribute("aria-busy", "true");
    app.say("Identifying…");
    try {
      const told = await app.api.identify(query, { neighbours: NEIGHBOURS }, mine.signal);
      app.session.answer = told;
      const actions = actionsFor(app, query, told, () => ask(query, preview));
      answer.replaceChildren(...answerOf(app, told, actions));
      app.say(answer.querySelector(".summary").textContent);
    } catch (error) {
      if (mine.signal.aborted) return;
      answer.replaceChildren(waiting());
      app.complain(error);
    } finally {
      if (underway === mine) answer.removeAttribute("aria-busy");
    }
  }

  function waiting() {
    return h("div", { class: "empty" }, icon("question"), h("p", {}, "The answer appears here."));
  }

  const asker = { ask, complain: app.complain };
  /** @type {{offer: (file: File) => void} | null} */
  let images = null;

  async function furnish() {
    const model = await app.model();
    if (model.kind === kind) return;
    kind = model.kind;
    images = kind === "vector" ? null : fileQuestion(question, KINDS[kind] ?? KINDS.image, asker);
    if (kind === "vector") vectorQuestion(question, model.dimension, asker);
  }

  /** The first file of a drop or a paste. @param {DataTransfer | null} transfer @returns {File | undefined} */
  const fileOf = (transfer) => [...(transfer?.files ?? [])][0];

  addEventListener("paste", (event) => {
    const file = shown && fileOf(event.clipboardData);
    if (!file || !images) return;
    event.preventDefault();
    images.offer(file);
  });
  addEventListener("dragover", (event) => {
    if (!shown || !images) return;
    event.preventDefault();
    question.classList.add("dragged");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) question.classList.remove("dragged");
  });
  addEventListener("drop", (event) => {
    question.classList.remove("dragged");
    if (!shown || !images) return;
    event.preventDefault();
    const file = fileOf(event.dataTransfer);
    if (file) images.offer(file);
  });

  return {
    title: "Identify",
    element,
    show() {
      shown = true;
      furnish().catch(app.complain);
    },
    hide: () => (shown = false),
  };
}

/**
 * A picture frame that takes a file.
 * @param {HTMLElement} place
 * @param {typeof KINDS.image} kind
 * @param {{ask: Function}} asker
 */
function fileQuestion(place, kind, { ask }) {
  const described = { "aria-describedby": "file-hint" };
  const input = h("input", { type: "file", id: "file", accept: kind.accept, class: "unseen", ...described });
  const canvas = h("div", { class: "easel" }, icon("picture"));
  const name = h("p", { class: "filename" });
  const choose = h("label", { for: "file", class: "button primary" }, icon("upload"), kind.choose);
  place.replaceChildren(canvas, name, input, choose, h("p", { class: "hint", id: "file-hint" }, kind.hint));
  /** @type {string | null} */
  let preview = null;

  /** @param {File} file */
  function offer(file) {
    const called = file.name || "pasted";
    if (preview) URL.revokeObjectURL(preview);
    preview = kind.noun === "image" ? URL.createObjectURL(file) : null;
    if (preview) {
      const noPreview = () => canvas.replaceChildren(icon("picture"), h("p", {}, "This browser cannot show the file."));
      canvas.replaceChildren(h("img", { src: preview, alt: `Your image: ${called}`, onerror: noPreview }));
    }
    name.textContent = called;
    ask({ file }, preview);
  }
  input.addEventListener("change", () => {
    if (input.files[0]) offer(input.files[0]);
    // The same file chosen again must count as a change.
    input.value = "";
  });
  return { offer };
}

/**
 * A field for numbers, for galleries of vectors the user brings.
 * @param {HTMLElement} place
 * @param {number} dimension
 * @param {{ask: Function}} asker
 */
function vectorQuestion(place, dimension, { ask }) {
  const described = { "aria-describedby": "vector-hint vector-error", placeholder: "[0.12, -0.4, …]" };
  const field = h("textarea", { id: "vector", rows: 8, spellcheck: "false", ...described });
  const error = h("p", { class: "wrong", id: "vector-error", role: "alert" });

  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    const vector = numbers(field.value);
    const ready = vector !== null && vector.length === dimension;
    const got = vector === null ? "This is not a list of numbers" : `These are ${vector.length} numbers`;
    error.textContent = ready ? "" : `${got}; the gallery requires ${dimension}, for example [0.5, -1, …].`;
    field.setAttribute("aria-invalid", String(!ready));
    if (ready) ask({ vector }, null);
    else field.focus();
  }
  place.replaceChildren(
    h("p", { class: "notice" }, ELSEWHERE),
    h("form", { onsubmit: submit, novalidate: true },
      h("label", { for: "vector" }, `Vector of ${dimension} numbers, as JSON`), field,
      h("p", { class: "hint", id: "vector-hint" }, "From the same model as the vectors in the gallery."), error,
      button("Identify", () => {}, { type: "submit", class: "primary" })));
}

/** @param {string} text @returns {number[] | null} */
function numbers(text) {
  try {
    const value = JSON.parse(text);
    return Array.isArray(value) && value.every((each) => typeof each === "number") ? value : null;
  } catch {
    return null;
  }
}
