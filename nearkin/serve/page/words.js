/** Numbers and names as a reader wants them. */

/**
 * A probability in per cent. Neither 100 % nor 0 % is said of what is not certain.
 * @param {number} share
 */
export function percent(share) {
  if (share < 1 && share >= 0.995) return "> 99 %";
  if (share > 0 && share < 0.005) return "< 1 %";
  return `${Math.round(100 * share)} %`;
}

/** A distance with three digits that count; minus a learned similarity may be below zero. @param {number} value */
export function distance(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.001) return value.toExponential(1).replace(/^-/, "−");
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 3;
  return value.toFixed(digits).replace(/^-/, "−");
}

/** @param {number} value */
export function count(value) {
  return value.toLocaleString("en-GB");
}

/**
 * "1 item", "2 items".
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** @param {number} bytes */
export function size(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, bytes > 0 ? Math.floor(Math.log10(bytes) / 3) : 0);
  const value = bytes / 1000 ** step;
  return `${value.toFixed(step && value < 10 ? 1 : 0)} ${units[step]}`;
}

/** An ISO time as a local date and time. @param {string} iso */
export function moment(iso) {
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return iso;
  return time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** What an item is called where a label may be missing. @param {string | null | undefined} label */
export function labelled(label) {
  return label ?? "no label";
}

/**
 * Labels with the number of their items, largest class first; as they come, labels such as "10" are before all others.
 * @param {Record<string, number> | undefined} classes
 * @returns {[string, number][]}
 */
export function bySize(classes) {
  return Object.entries(classes ?? {}).sort((a, b) => b[1] - a[1]);
}

/** The address of the list of all items of a label. @param {string | null} label */
export function itemsOf(label) {
  const where = label === null ? "label is null" : `label = '${label.replaceAll("'", "''")}'`;
  return `#/items?where=${encodeURIComponent(where)}`;
}
