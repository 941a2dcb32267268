// What every page must satisfy, as a function that returns complaints. It reads the page as it is shown: what is hidden
// or folded is not looked at. Contrast and names follow WCAG 2.2 (1.4.3 AA, 1.1.1, 1.3.1, 4.1.2).
() => {
  const complaints = new Set();
  const shown = (node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && node.getClientRects().length > 0;
  const place = (node) => `<${node.tagName.toLowerCase()}${node.id ? ` id=${node.id}` : ""}${node.getAttribute("class") ? ` class="${node.getAttribute("class")}"` : ""}> ${JSON.stringify(node.textContent.trim().slice(0, 50))}`;
  const complain = (what, node) => complaints.add(`${what}: ${place(node)}`);

  // ---- contrast ----
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const parsed = new Map();
  const parse = (text) => {
    if (!parsed.has(text)) {
      const plain = /^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/.exec(text);
      if (plain) parsed.set(text, [+plain[1], +plain[2], +plain[3], plain[4] === undefined ? 1 : +plain[4]]);
      else {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        parsed.set(text, [r, g, b, a / 255]);
      }
    }
    return parsed.get(text);
  };
  const over = (above, below) => [0, 1, 2].map((i) => above[i] * above[3] + below[i] * (1 - above[3])).concat(1);
  const grounds = new Map();
  const ground = (node) => {
    if (!node) return parse(getComputedStyle(document.documentElement).colorScheme.includes("dark") ? "rgb(18, 18, 18)" : "rgb(255, 255, 255)");
    if (!grounds.has(node)) grounds.set(node, over(parse(getComputedStyle(node).backgroundColor), ground(node.parentElement)));
    return grounds.get(node);
  };
  const opacities = new Map([[null, 1]]);
  const opacity = (node) => {
    if (!opacities.has(node)) opacities.set(node, Number(getComputedStyle(node).opacity) * opacity(node.parentElement));
    return opacities.get(node);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const node = text.parentElement;
    if (seen.has(node) || !text.data.trim() || node.closest("script, style, noscript, :disabled, [aria-hidden=true]") || !shown(node)) continue;
    seen.add(node);
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const [r, g, b, a] = parse(node instanceof SVGElement ? style.fill : style.color);
    const below = ground(node), ratio = contrast(over([r, g, b, a * opacity(node)], below), below);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < needed - 0.005) complain(`contrast ${ratio.toFixed(2)} of ${needed}`, node);
  }

  // ---- names ----
  const named = (node) => {
    const labels = (node.getAttribute("aria-labelledby") || "").split(/\s+/).map((id) => document.getElementById(id)?.textContent || "");
    return [node.getAttribute("aria-label"), node.getAttribute("title"), ...labels, ...[...(node.labels || [])].map((label) => label.textContent)].some((text) => text?.trim());
  };
  const contentNamed = (node) => [...node.querySelectorAll("img[alt], [aria-label], svg title")].some((each) => (each.alt || each.getAttribute("aria-label") || each.textContent).trim());
  for (const node of document.querySelectorAll("input:not([type=hidden]), select, textarea")) if (shown(node) && !named(node)) complain("no label", node);
  for (const node of document.querySelectorAll("button, a[href], summary, [role=button], [role=tab]")) {
    if (shown(node) && !node.textContent.trim() && !named(node) && !contentNamed(node)) complain("no name", node);
  }
  for (const node of document.images) if (!node.hasAttribute("alt")) complain("no alternative text", node);
  for (const node of document.querySelectorAll("[role=img]")) if (!named(node) && !node.querySelector("title")) complain("no alternative text", node);
  for (const node of document.querySelectorAll("iframe")) if (shown(node) && !node.title) complain("no title", node);
  if (!document.documentElement.lang) complain("no language", document.documentElement);
  if (!document.title.trim()) complain("no title", document.documentElement);
  if (/maximum-scale|user-scalable=no/.test(document.querySelector("meta[name=viewport]")?.content ?? "user-scalable=no")) complain("cannot be zoomed", document.documentElement);

  // ---- structure ----
  const ids = new Set();
  for (const node of document.querySelectorAll("[id]")) {
    if (ids.has(node.id)) complain("id given twice", node);
    ids.add(node.id);
  }
  let level = 0;
  const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(shown);
  for (const heading of headings) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) complain(`heading of level ${own} after ${level || "none"}`, heading);
    if (!heading.textContent.trim()) complain("empty heading", heading);
    level = own;
  }
  if (headings.filter((heading) => heading.tagName === "H1").length !== 1) complain("not one heading of level 1", document.body);

  // ---- width: text lines of code may scroll in their own box, nothing else does ----
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) {
    const wide = [...document.body.querySelectorAll("*")].filter((node) => shown(node) && node.getBoundingClientRect().right > width + 1);
    complain(`page is ${document.documentElement.scrollWidth} wide in ${width}`, wide.at(-1) || document.body);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!shown(table) || table.closest("pre, .highlight")) continue;
    let room = table.parentElement;
    while (room.parentElement && room.clientWidth === 0) room = room.parentElement;
    if (table.scrollWidth > room.clientWidth + 1) complain(`table is ${table.scrollWidth} wide in ${room.clientWidth}`, table);
  }
  return [...complaints];
}
