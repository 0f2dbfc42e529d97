/** The HTTP service, as functions. */

const KEY = "nearkin-key";
const NEEDS_KEY = "This gallery requires an API key.";

/** What the service, or the way to it, has against a request; the message is for the reader. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} [status] 0 if there was no answer at all.
   */
  constructor(message, status = 0) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

/**
 * @typedef {{file: Blob} | {vector: number[]}} Query
 * @typedef {{id: string, label: string | null, metadata: Record<string, any>, added: string,
 *   thumbnail: string | null}} Item
 * @typedef {Item & {distance: number}} Neighbour
 * @typedef {{enrolled_known: number, named_known: number, strangers_known: number, enrolled_unknown: number,
 *   strangers_unknown: number}} Forecast
 * @typedef {{label: string | null, probability: number | null, known: boolean | null, reason: string, note: string,
 *   forecast: Forecast | null,
 *   candidates: {label: string, probability: number}[], neighbours: Neighbour[],
 *   place: {x: number, y: number} | null}} Answer
 * @typedef {ReturnType<typeof createApi>} Api
 */

/** Only in this tab, and only until it is closed. */
const keyring = {
  get: () => sessionStorage.getItem(KEY),
  /** @param {string | null} key */
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

/**
 * A problem document in plain words.
 * @param {Response} response
 * @returns {Promise<ApiError>}
 */
async function problem(response) {
  let told = "";
  try {
    const body = await response.json();
    told = typeof body.detail === "string" ? body.detail : (body.title ?? "");
  } catch {
    // No document: the status alone must do.
  }
  const wait = Number(response.headers.get("Retry-After"));
  const later = wait > 0 ? ` Try again in ${wait} s.` : "";
  return new ApiError((told || `The service responded with status ${response.status}.`) + later, response.status);
}

/**
 * The body of a request about one image or vector.
 * @param {Query} query
 * @param {Record<string, any>} fields
 * @returns {RequestInit}
 */
function about(query, fields) {
  if ("vector" in query) return json({ ...fields, vector: query.vector });
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, String(value));
  form.append("image", query.file);
  return { method: "POST", body: form };
}

/** @param {any} body @param {string} [method] @returns {RequestInit} */
function json(body, method = "POST") {
  return { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
}

/** @param {Record<string, any>} fields */
function asked(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}

/** @param {string} id */
const path = (id) => `/v1/items/${encodeURIComponent(id)}`;

/**
 * @param {{askForKey: (text: string) => Promise<string | null>, onkey?: (key: string | null) => void}}
 *   options `onkey` is told the key that was given, or null.
 */
export function createApi({ askForKey, onkey = () => {} }) {
  /** @type {Promise<string | null> | null} */
  let asking = null;

  /** One question, however many requests were refused. @param {string} text */
  function newKey(text) {
    asking ??= askForKey(text).then((key) => {
      asking = null;
      if (key) keyring.set(key);
      onkey(key);
      return key;
    });
    return asking;
  }

  /** @param {string} url @param {RequestInit} request @returns {Promise<Response>} */
  async function send(url, request) {
    const key = keyring.get();
    const headers = new Headers(request.headers);
    if (key) headers.set("Authorization", `Bearer ${key}`);
    let response;
    try {
      response = await fetch(url, { ...request, headers, credentials: "same-origin" });
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      throw new ApiError("No response from the service. Is it still running?");
    }
    if (response.status === 401) {
      // Another request may have been given a key meanwhile.
      if (keyring.get() !== key) return send(url, request);
      const given = await newKey(key ? "The key was not accepted. Enter another key." : NEEDS_KEY);
      if (!given) throw new ApiError(NEEDS_KEY, 401);
      return send(url, request);
    }
    if (!response.ok) throw await problem(response);
    return response;
  }

  /** @param {string} url @param {RequestInit} [request] @returns {Promise<any>} */
  async function call(url, request = {}) {
    const response = await send(url, request);
    return response.status === 204 ? null : response.json();
  }

  return {
    hasKey: () => keyring.get() !== null,
    changeKey: () => newKey("Use another key for this gallery, for example one that can write."),
    /**
     * @param {Query} query
     * @param {Record<string, any>} [fields]
     * @param {AbortSignal} [signal]
     * @returns {Promise<Answer>}
     */
    identify: (query, fields = {}, signal) => call("/v1/identify", { ...about(query, fields), signal }),
    /** @param {string} label @param {Query} query @returns {Promise<{ids: string[]}>} */
    enrol: (label, query) =>
      call("/v1/enrol", "vector" in query ? json({ label, vectors: [query.vector] }) : about(query, { label })),
    /**
     * @param {{after?: string | null, limit?: number, where?: string}} page
     * @returns {Promise<{items: Item[], next: string | null}>}
     */
    items: (page) => call(`/v1/items${asked(page)}`),
    /** @param {string} id @returns {Promise<Item>} */
    item: (id) => call(path(id)),
    /** @param {string} id @param {string | null} label @returns {Promise<Item>} */
    relabel: (id, label) => call(path(id), json({ label }, "PATCH")),
    /** @param {string} id @returns {Promise<null>} */
    remove: (id) => call(path(id), { method: "DELETE" }),
    /** @param {number} limit */
    map: (limit) => call(`/v1/map${asked({ limit })}`),
    suspects: () => call("/v1/suspects"),
    duplicates: () => call("/v1/duplicates"),
    model: () => call("/v1/model"),
    /** @param {string} url @returns {Promise<Blob>} */
    picture: async (url) => (await send(url, {})).blob(),
  };
}
