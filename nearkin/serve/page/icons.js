/** Small line icons; they accompany words and are hidden from screen readers. */

import { s } from "./dom.js";

const PATHS = {
  upload: ["M12 16V4m0 0L7 9m5-5 5 5", "M4 15v3a2 2 0 0 0 2 2h12a2 2 0 0 0 2-2v-3"],
  check: ["M5 12.5 10 17.5 19.5 7"],
  question: ["M9 9.3a3 3 0 1 1 4.3 2.7c-.9.5-1.3 1-1.3 2", "M12 17.3v.2"],
  dash: ["M6 12h12"],
  arrow: ["M4 12h15", "M13.5 6.5 19 12l-5.5 5.5"],
  sun: [
    "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8Z",
    "M12 2.5v2m0 15v2M2.5 12h2m15 0h2M5.3 5.3l1.4 1.4m10.6 10.6 1.4 1.4m0-13.4-1.4 1.4M6.7 17.3l-1.4 1.4",
  ],
  moon: ["M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z"],
  pin: [
    "M12 21s-6.5-6-6.5-11a6.5 6.5 0 0 1 13 0c0 5-6.5 11-6.5 11Z",
    "M12 12.2a2.2 2.2 0 1 0 0-4.4 2.2 2.2 0 0 0 0 4.4Z",
  ],
  plus: ["M12 5v14M5 12h14"],
  minus: ["M5 12h14"],
  whole: ["M4 9V5a1 1 0 0 1 1-1h4m6 0h4a1 1 0 0 1 1 1v4m0 6v4a1 1 0 0 1-1 1h-4m-6 0H5a1 1 0 0 1-1-1v-4"],
  close: ["M6 6l12 12M18 6 6 18"],
  picture: [
    "M4 6a1 1 0 0 1 1-1h14a1 1 0 0 1 1 1v12a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1Z",
    "m4.5 17 5-5.5 3.5 3.5 2.5-2.5 4 4.5",
    "M15.5 8.8v.1",
  ],
};

/**
 * @param {keyof typeof PATHS} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const paths = PATHS[name].map((d) => s("path", { d }));
  return s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, ...paths);
}
