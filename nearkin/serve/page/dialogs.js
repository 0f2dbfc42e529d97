/** The two questions the page asks: are you sure, and which key. */

import { byId } from "./dom.js";

/**
 * Open a dialog and wait for its answer; Escape counts as no.
 * @param {any} dialog
 * @returns {Promise<boolean>}
 */
function answered(dialog) {
  const before = document.activeElement;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(dialog.returnValue === "yes");
    }, { once: true });
  });
}

/**
 * @param {{title: string, text: string, action: string, picture?: Node}} question
 * @returns {Promise<boolean>}
 */
export function confirm({ title, text, action, picture }) {
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = action;
  byId("confirm-picture").replaceChildren(...(picture ? [picture] : []));
  const answer = answered(byId("confirm-dialog"));
  byId("confirm-no").focus();
  return answer;
}

/**
 * Ask for an API key.
 * @param {string} text why it is asked for.
 * @returns {Promise<string | null>} the key, or null.
 */
export async function askForKey(text) {
  const input = byId("key-input");
  byId("key-text").textContent = text;
  input.value = "";
  // Not a submit button: Enter in the field must mean yes.
  byId("key-no").onclick = () => byId("key-dialog").close("no");
  const given = await answered(byId("key-dialog"));
  const key = input.value.trim();
  input.value = "";
  return given && key ? key : null;
}
