"use strict";
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = (theme) => { root.dataset.theme = theme; };
paint(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => paint(dark.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => paint(root.dataset.theme === "dark" ? "light" : "dark"));

// On a telephone the first look is the results; everything else unfolds.
if (innerWidth <= 720) for (const part of document.querySelectorAll(".part:not(.first)")) part.open = false;

const DATA = JSON.parse(document.getElementById("data").textContent);
const format = (value) => Number(value).toPrecision(4).replace(/\.?0+($|e)/, "$1").replace("-", "−");

for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg");
  const tip = figure.querySelector(".tip");
  const curves = DATA[figure.dataset.panel];
  const [left, right, first, last] = ["left", "right", "first", "last"].map((name) => Number(svg.dataset[name]));
  const updates = [...new Set(curves.flatMap((curve) => curve.updates))].sort((a, b) => a - b);

  const show = (update) => {
    const x = last > first ? left + ((right - left) * (update - first)) / (last - first) : (left + right) / 2;
    svg.querySelector(".cursor").setAttribute("d", `M${x} 10V184`);
    tip.replaceChildren(`update ${update}`);
    curves.forEach((curve, index) => {
      const at = curve.updates.indexOf(update);
      if (at < 0) return;
      const line = document.createElement("div");
      line.className = `c${index + 1}`;
      const spread = curve.low[at] < curve.high[at] ? ` (${format(curve.low[at])} to ${format(curve.high[at])})` : "";
      line.textContent = `${curve.label} ${format(curve.values[at])}${spread}`;
      tip.append(line);
    });
    tip.hidden = false;
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const place = x * scale + 22;
    tip.style.left = `${Math.max(4, place + tip.offsetWidth > figure.clientWidth ? x * scale - tip.offsetWidth - 2 : place)}px`;
  };
  const hide = () => {
    svg.querySelector(".cursor").removeAttribute("d");
    tip.hidden = true;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const wanted = first + ((x - left) / (right - left)) * (last - first);
    show(updates.reduce((best, update) => (Math.abs(update - wanted) < Math.abs(best - wanted) ? update : best)));
  });
  svg.addEventListener("pointerleave", hide);
}
