/** Thumbnails, with a key where the service wants one. */

import { h } from "./dom.js";
import { icon } from "./icons.js";
import { labelled } from "./words.js";

/**
 * @typedef {object} Pictures
 * @property {(item: {label: string | null, thumbnail: string | null}, alt?: string) => HTMLElement} thumbnail
 */

/**
 * An img element cannot send an API key, so with one the bytes are fetched when the frame comes into sight.
 * @param {import("./api.js").Api} api
 * @returns {Pictures}
 */
export function createPictures(api) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      seen.unobserve(entry.target);
      fetched(entry.target);
    }
  }, { rootMargin: "200px" });

  /** @param {any} image */
  async function fetched(image) {
    try {
      const url = URL.createObjectURL(await api.picture(image.dataset.source));
      image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
      image.src = url;
    } catch {
      instead(image);
    }
  }

  /** @param {Element} image */
  function instead(image) {
    image.replaceWith(icon("picture"));
  }

  return {
    thumbnail(item, alt = labelled(item.label)) {
      if (!item.thumbnail) return h("span", { class: "frame" }, icon("picture"));
      const image = h("img", { alt, loading: "lazy", decoding: "async", onerror: () => instead(image) });
      if (api.hasKey()) {
        image.dataset.source = item.thumbnail;
        seen.observe(image);
      } else {
        image.src = item.thumbnail;
      }
      return h("span", { class: "frame" }, image);
    },
  };
}
