// The lines in which names are shown in a tile of some width, and whether anything but their ends is out of sight.
async ([names, width]) => {
  const { shortName } = await import("/static/labels.js");
  return names.map((name) => {
    const element = shortName(name);
    const tile = document.createElement("div");
    tile.className = "tile";
    tile.style.inlineSize = `${width}px`;
    tile.append(element);
    document.body.append(tile);
    const range = document.createRange();
    const lines = new Map();
    for (const node of [...element.childNodes].filter((each) => each.nodeType === Node.TEXT_NODE)) {
      for (let at = 0; at < node.length; at += 1) {
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        const { top } = range.getClientRects()[0] ?? {};
        lines.set(top, (lines.get(top) ?? "") + node.data[at]);
      }
    }
    const height = element.getBoundingClientRect().height / parseFloat(getComputedStyle(element).lineHeight);
    const told = { title: element.title, text: element.textContent };
    tile.remove();
    return { lines: [...lines.values()], height: Math.round(height), ...told };
  });
}
