"use strict";
const rows = [...document.querySelectorAll("tbody.episode")];
const table = document.getElementById("episodes");
const search = document.getElementById("search");
let kind = "";
function show() {
  const wanted = search.value.toLowerCase();
  let n = 0;
  for (const row of rows) {
    row.hidden = (kind && row.dataset.kind !== kind) || !row.dataset.name.toLowerCase().includes(wanted);
    n += !row.hidden;
  }
  document.getElementById("shown").textContent = n + " of " + rows.length;
}
search.addEventListener("input", show);
for (const chip of document.querySelectorAll("#chips button")) {
  chip.addEventListener("click", () => {
    kind = kind === chip.dataset.kind ? "" : chip.dataset.kind;
    for (const each of document.querySelectorAll("#chips button")) {
      each.setAttribute("aria-pressed", String(each.dataset.kind === kind));
    }
    show();
  });
}
for (const head of document.querySelectorAll("th button")) {
  head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const each of document.querySelectorAll("th button")) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.querySelector("tr").cells[head.dataset.column].dataset.value;
    const numbers = head.dataset.column > 1 && head.dataset.column < 6;
    rows.sort((a, b) => (numbers ? key(a) - key(b) : key(a).localeCompare(key(b))) * (down ? -1 : 1));
    table.append(...rows);
  });
}
for (const row of rows) {
  row.querySelector("tr").addEventListener("click", (event) => {
    if (event.target.closest("a")) return;
    const detail = row.querySelector("tr.detail");
    detail.hidden = !detail.hidden;
    row.querySelector("button.open").setAttribute("aria-expanded", String(!detail.hidden));
  });
}
show();
