// Rules of accessibility that a machine can check; each gives a list of offenders.
() => {
  const shown = (element) => element.checkVisibility();
  const label = (element) => element.getAttribute("aria-label") || element.labels?.[0]?.textContent;
  const named = (element) => (label(element) || element.textContent || "").trim();
  const where = (element) => element.outerHTML.slice(0, 120);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const levels = all("main h1, main h2, main h3").map((each) => Number(each.tagName[1]));
  const ids = all("[id]").map((each) => each.id);
  const pointers = ["aria-labelledby", "aria-describedby", "aria-controls", "for"];
  const idsIn = (element, name) => (element.getAttribute(name) ?? "").split(" ").filter(Boolean);
  const pointed = (element) => pointers.flatMap((name) => idsIn(element, name));
  return {
    fields: all("input, textarea, select").filter((each) => !named(each)).map(where),
    buttons: all("button, a[href]").filter((each) => shown(each) && !named(each)).map(where),
    images: all("img").filter((each) => !each.hasAttribute("alt")).map(where),
    headings: levels.filter((level, index) => (index ? level > levels[index - 1] + 1 : level !== 1)),
    firsts: all("main h1").length === 1 ? [] : ["h1"],
    twice: ids.filter((id, index) => ids.indexOf(id) !== index),
    dangling: all("*").flatMap(pointed).filter((id) => !ids.includes(id)),
    headers: all("th").filter((each) => !each.hasAttribute("scope")).map(where),
    language: document.documentElement.lang ? [] : ["lang"],
    tabindex: all("[tabindex]").filter((each) => each.tabIndex > 0).map(where),
    small: all("button, .button, nav a").filter((each) => shown(each) && each.offsetHeight < 24).map(where),
  };
}
