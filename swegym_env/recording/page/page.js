"use strict";
// Everything of an episode is put into the page as text (textContent, createTextNode); nothing is ever parsed as markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const EPISODES = DATA.episodes;
const MANY_TESTS = 300;
const LONG = 300; // turns: beyond, the page does only what is seen
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const state = { episode: 0, turn: 0, open: new Set(), query: "", match: -1, matches: [], chip: "all", diff: "final", kept: false, rows: [] };

// ---- what an episode is -------------------------------------------------------------------------------------------

function outcome(episode) {
  if (episode.valid === false) return "invalid";
  if (!episode.finished) return "unfinished";
  return episode.resolved ? "resolved" : "unresolved";
}
const OUTCOMES = ["resolved", "unresolved", "invalid", "unfinished"];

const played = new Map();
for (const episode of EPISODES) played.set(episode.instance, (played.get(episode.instance) || 0) + 1);

for (const [index, episode] of EPISODES.entries()) {
  episode.index = index;
  episode.again = played.get(episode.instance) > 1;
  episode.outcome = outcome(episode);
  episode.reward = episode.turns.reduce((sum, turn) => sum + turn.reward, 0);
  episode.seconds = episode.turns.reduce((sum, turn) => sum + turn.seconds, 0);
  episode.at = { turn: -1, patch: "" };
}

function number(value) {
  const text = Math.abs(value) >= 1000 ? value.toFixed(0) : value.toFixed(3).replace(/\.?0+$/, "");
  return text.replace("-", "−") || "0";
}
function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 90 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds / 60)} min`;
}
function moment(text) {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString().slice(0, 19).replace("T", " ");
}
// The notes of a record as [name, value] pairs of plain values; the names of nested ones are joined by a dot.
function plainNotes(notes, prefix = "") {
  return Object.entries(notes).flatMap(([key, value]) => {
    const name = `${prefix}${key.replaceAll("_", " ")}`;
    if (value === null || value === "") return [];
    if (Array.isArray(value)) return value.length ? [[name, value.map((each) => (typeof each === "object" ? JSON.stringify(each) : String(each))).join(", ")]] : [];
    if (typeof value === "object") return plainNotes(value, `${name} · `);
    return [[name, typeof value === "number" ? number(value) : String(value)]];
  });
}
function plural(count, word) { return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`; }

// The patch after a turn; turns hold what changed: [characters kept at the head, at the tail, what is between].
function patchAt(episode, turn) {
  let { turn: at, patch } = episode.at;
  if (turn < at) { at = -1; patch = ""; }
  for (let next = at + 1; next <= turn; next++) {
    const change = episode.turns[next].patch;
    if (change) patch = patch.slice(0, change[0]) + change[2] + (change[1] ? patch.slice(-change[1]) : "");
  }
  episode.at = { turn, patch };
  return patch;
}

// ---- text in colours ----------------------------------------------------------------------------------------------

// Ranges are [start, end, class], sorted, apart. Matches of the search are laid over them.
function paint(text, ranges, query) {
  const pieces = document.createDocumentFragment();
  const marks = [];
  if (query) {
    const lower = text.toLowerCase();
    for (let at = lower.indexOf(query); at >= 0; at = lower.indexOf(query, at + query.length)) marks.push([at, at + query.length]);
  }
  let position = 0, mark = 0;
  const plain = (from, to, kind) => {
    while (from < to) {
      while (mark < marks.length && marks[mark][1] <= from) mark++;
      const hit = marks[mark];
      const inside = hit && hit[0] <= from;
      const end = hit ? Math.min(to, inside ? hit[1] : Math.max(hit[0], from)) : to;
      const piece = document.createTextNode(text.slice(from, end));
      let node = kind ? make("span", { class: kind }, piece) : piece;
      if (inside) node = make("mark", {}, node);
      pieces.append(node);
      from = end;
    }
  };
  for (const [start, end, kind] of ranges) {
    if (start > position) plain(position, start, "");
    plain(Math.max(start, position), end, kind);
    position = Math.max(position, end);
  }
  plain(position, text.length, "");
  return pieces;
}

const SHELL = new RegExp([
  "(?<m><\\/?(?:execute|tool_call|function|parameter|arg_key|arg_value)[^>\\n]{0,80}>|^```\\w*$)",
  "(?<think><think>[^]*?(?:<\\/think>|$))",
  "(?<here><<-?\\s*['\"]?(?<word>\\w+)['\"]?[^\\n]*\\n[^]*?^\\s*\\k<word>(?=$|<\\/))",
  "(?<c>(?:^|(?<=\\s))#[^\\n]*)",
  "(?<s>'[^']*'|\"(?:\\\\[^]|[^\"\\\\])*\")",
  "(?<v>\\$(?:\\w+|\\{[^}\\n]*\\}|[?!#@*$]))",
  "(?<f>(?<=\\s)--?[A-Za-z][\\w-]*)",
  "(?<w>\\b(?:if|then|elif|else|fi|for|while|until|do|done|case|esac|in|function)\\b)",
].join("|"), "gm");
const COMMAND_WORD = /(?:^|<execute>|[|&;(]|\bdo\b|\bthen\b)[ \t]*([A-Za-z_.\/][\w.\/+-]*)/gm;

function shellRanges(text) {
  if (text.length > 60000) return [];
  const ranges = [];
  for (const found of text.matchAll(SHELL)) {
    const groups = found.groups;
    const start = found.index, end = start + found[0].length;
    if (groups.here) {
      const body = start + found[0].indexOf("\n");
      ranges.push([start, body, "f"], [body, end, "s"]);
    } else if (groups.think) ranges.push([start, end, "c"]);
    else ranges.push([start, end, ["m", "c", "s", "v", "f", "w"].find((kind) => groups[kind])]);
  }
  const words = [];
  let next = 0;
  for (const found of text.matchAll(COMMAND_WORD)) {
    const end = found.index + found[0].length, start = end - found[1].length;
    while (next < ranges.length && ranges[next][1] <= start) next++;
    if (next >= ranges.length || ranges[next][0] >= end) words.push([start, end, "x"]);
  }
  return [...ranges, ...words].sort((a, b) => a[0] - b[0]);
}

// Where an action holds commands, as [start, end]: between its marks, or all of it where the format is the bare command.
function commands(text, format) {
  const found = [];
  for (const match of text.matchAll(/<think>[^]*?(?:<\/think>|$)|<(execute|tool_call)>([^]*?)(?:<\/\1>|$)|^```(?:bash|sh|shell)\n([^]*?)(?:^```|$(?![^]))/gm)) {
    const body = match[2] ?? match[3];
    if (body === undefined) continue;
    const start = match.index + match[0].indexOf(body, match[1] ? match[1].length + 2 : match[0].indexOf("\n"));
    found.push([start, start + body.length]);
  }
  return found.length || (format && format !== "raw") ? found : [[0, text.length]];
}

function actionRanges(text, format) {
  const inside = commands(text, format);
  const thoughts = [...text.matchAll(/<think>[^]*?(?:<\/think>|$)/g)].map((each) => [each.index, each.index + each[0].length, "c"]);
  const painted = inside.flatMap(([start, end]) => shellRanges(text.slice(start, end)).map(([from, to, kind]) => [start + from, start + to, kind]));
  const known = inside.length === 1 && inside[0][0] === 0 ? [] : thoughts; // shellRanges finds them itself in a bare command
  return [...known, ...painted].sort((a, b) => a[0] - b[0]);
}

const BAD_LINE = /^(?:Traceback|[\w.]*(?:Error|Exception)\b|FAIL(?:ED|URE)?\b|ERROR\b|E  |fatal:|error:|bash: |.*: (?:command not found|No such file))/;
const GOOD_LINE = /^(?:OK\b|PASSED\b|=+ \d+ passed)|\.\.\. ok$|\bPASSED\b/;
const PLACE = /^(\s*File "[^"]+", line \d+)|^([\w.\/-]+\.\w+:\d+)/;

function outputRanges(text) {
  const ranges = [];
  const diff = /^(?:diff --git|@@ )/m.test(text);
  let start = 0;
  for (const line of text.split("\n")) {
    const end = start + line.length;
    const place = PLACE.exec(line);
    if (line.startsWith("[exit code ")) ranges.push([start, end, line.startsWith("[exit code 0") ? "k" : "e"]);
    else if (line.startsWith("[... ")) ranges.push([start, end, "m"]);
    else if (diff && /^@@ /.test(line)) ranges.push([start, end, "r"]);
    else if (diff && line.startsWith("+")) ranges.push([start, end, "k"]);
    else if (diff && line.startsWith("-")) ranges.push([start, end, "e"]);
    else if (place) ranges.push([start, start + place[0].length, "r"]);
    else if (BAD_LINE.test(line)) ranges.push([start, end, "e"]);
    else if (GOOD_LINE.test(line)) ranges.push([start, end, "k"]);
    start = end + 1;
  }
  return ranges;
}

// ---- the list of episodes -----------------------------------------------------------------------------------------

function chosenEpisodes() {
  const wanted = $("episode-search").value.trim().toLowerCase();
  const order = { time: (e) => e.recordedAt, instance: (e) => e.instance, reward: (e) => -e.reward, turns: (e) => -e.turns.length }[$("sort").value];
  const matches = (e) => [e.instance, e.repo, e.endReason, JSON.stringify(e.notes)].some((text) => text.toLowerCase().includes(wanted));
  return EPISODES
    .filter((e) => (state.chip === "all" || e.outcome === state.chip) && (!wanted || matches(e)))
    .sort((a, b) => (order(a) < order(b) ? -1 : order(a) > order(b) ? 1 : a.index - b.index));
}

function showEpisodes() {
  const chosen = chosenEpisodes();
  $("episodes").replaceChildren(...chosen.map((episode) => make("li", {},
    make("button", { "data-episode": episode.index, "aria-current": String(episode.index === state.episode), title: episode.place, onclick: () => { showEpisode(episode.index); showPane("turns"); } },
      make("span", { class: `dot ${episode.outcome}`, role: "img", "aria-label": episode.outcome }),
      make("span", { class: "name" }, episode.instance),
      make("span", { class: "facts" }, `${plural(episode.turns.length, "turn")} · reward ${number(episode.reward)} · ${episode.endReason.replace("_", " ")}`),
      episode.again || policyOf(episode) ? make("span", { class: "facts" }, which(episode).join(" · ")) : null))));
  if (!chosen.length) $("episodes").append(make("li", { class: "label" }, "no episode fits"));
  for (const chip of $("chips").children) chip.setAttribute("aria-pressed", String(chip.dataset.chip === state.chip));
}

function policyOf(episode) { return typeof episode.notes.policy === "string" ? episode.notes.policy : ""; }

// What tells episodes of one instance apart.
function which(episode) {
  const sample = typeof episode.notes.sample === "number" ? [`sample ${episode.notes.sample}`] : [];
  const seed = episode.seed === null || episode.seed === undefined ? [] : [`seed ${episode.seed}`];
  return [policyOf(episode), ...sample, ...seed, moment(episode.recordedAt)].filter(Boolean);
}

function showChips() {
  const counts = Object.fromEntries(OUTCOMES.map((name) => [name, EPISODES.filter((e) => e.outcome === name).length]));
  const chips = [["all", EPISODES.length], ...Object.entries(counts).filter(([, count]) => count)];
  $("chips").replaceChildren(...chips.map(([name, count]) =>
    make("button", { "data-chip": name, onclick: () => { state.chip = name; showEpisodes(); } }, `${name} ${count}`)));
  // Episodes of several policies have no rate in common.
  const policies = [...new Set(EPISODES.map(policyOf))];
  const parts = policies.length < 2 ? [share(EPISODES)] : policies.map((policy) => `${policy || "no policy named"}: ${share(EPISODES.filter((e) => policyOf(e) === policy))}`);
  $("summary").textContent = [plural(EPISODES.length, "episode"), ...parts].filter(Boolean).join(" · ");
}

function share(episodes) {
  const resolved = episodes.filter((e) => e.outcome === "resolved").length;
  const judged = resolved + episodes.filter((e) => e.outcome === "unresolved").length;
  if (!judged) return "";
  const percent = Math.round((100 * resolved) / judged);
  return judged < episodes.length ? `${resolved} of ${judged} judged resolved (${percent} %)` : `${percent} % resolved`;
}

// ---- one episode --------------------------------------------------------------------------------------------------

function showEpisode(index, turn = 0) {
  const episode = EPISODES[index];
  Object.assign(state, { episode: index, turn: -1, open: new Set(), match: -1, matches: [], diff: turn > 0 ? "turn" : "final", kept: false });
  $("instance").textContent = episode.instance;
  const good = { resolved: "good", unresolved: "bad", invalid: "warn" }[episode.outcome] || "";
  $("badges").replaceChildren(
    make("span", { class: `badge ${good}` }, episode.outcome),
    ...[episode.endReason.replace("_", " "), `reward ${number(episode.reward)}`, plural(episode.turns.length, "turn"), duration(episode.seconds), ...which(episode)]
      .map((text) => make("span", { class: "badge" }, text)));
  showOverview(episode);
  nearby.disconnect();
  state.rows = episode.turns.map((each, at) => turnRow(each, at));
  $("turns").replaceChildren(...state.rows);
  for (const item of state.rows) nearby.observe(item);
  showEpisodes();
  document.querySelector('#episodes [aria-current="true"]')?.scrollIntoView({ block: "nearest" });
  $("scroll").scrollTop = 0;
  if (episode.turns.length <= 8) unfoldAll(true);
  foldLabel();
  if (state.query) search(state.query);
  select(Math.min(turn, episode.turns.length - 1), turn > 0, false);
}

// The line that stands for a turn: the first of its command, or of its text if it has none.
function oneLine(text, code) {
  const [start, end] = code[0] || [0, text.length];
  const bare = text.slice(start, end).replace(/<think>[^]*?(?:<\/think>|$)/g, "").trim();
  return bare.split("\n", 1)[0].slice(0, 400) || "(empty)";
}

function turnRow(turn, at) {
  const facts = make("span", { class: "facts" });
  if (turn.patch && turn.stat) facts.append(make("span", { class: "plus" }, `+${turn.stat[0]}`), make("span", { class: "minus" }, `−${turn.stat[1]}`));
  if (turn.reward) facts.append(make("span", { class: "badge reward", title: "reward" }, `${turn.reward > 0 ? "+" : ""}${number(turn.reward)}`));
  if (turn.error) facts.append(make("span", { class: "badge warn", title: "the action could not be read" }, "unread"));
  else if (turn.exitCode > 0) facts.append(make("span", { class: "badge bad", title: "exit code" }, `exit ${turn.exitCode}`));
  facts.append(make("span", {}, duration(turn.seconds)));
  const code = commands(turn.action, EPISODES[state.episode].format), head = oneLine(turn.action, code);
  return make("li", { class: "turn", "data-turn": at },
    make("button", { "aria-expanded": "false", onclick: () => { toggle(at); foldLabel(); select(at, false); } },
      make("span", { class: "number" }, String(at + 1)),
      make("span", { class: "line" }, paint(head, code.length ? shellRanges(head) : [], "")),
      facts));
}

const row = (at) => state.rows[at];

// In a long episode only turns near the window are filled; others when they come near or are selected.
const nearby = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    target.near = isIntersecting;
    if (isIntersecting && target.classList.contains("open") && !target.querySelector(".inside")) fillTurn(Number(target.dataset.turn));
  }
}, { root: $("scroll"), rootMargin: "900px" });

function refill(at, now) {
  if (now || row(at).near) fillTurn(at);
  else row(at).querySelector(".inside")?.remove();
}

function fillTurn(at) {
  const turn = EPISODES[state.episode].turns[at];
  row(at).querySelector(".inside")?.remove();
  const inside = make("div", { class: "inside" },
    make("div", { class: "label" }, "action"),
    make("pre", { class: "action" }, paint(turn.action, actionRanges(turn.action, EPISODES[state.episode].format), state.query)),
    make("div", { class: "label" }, "observation"),
    make("pre", { class: "observation" }, paint(turn.observation, outputRanges(turn.observation), state.query)));
  const parts = Object.entries(turn.parts || {}).filter(([, value]) => value);
  if (parts.length) inside.append(make("div", { class: "label" }, "reward"), make("div", {}, `${number(turn.reward)} = ${parts.map(([name, value]) => `${name} ${number(value)}`).join(" + ")}`));
  if (turn.tests) inside.append(make("div", { class: "label" }, "tests so far"), make("div", {}, Object.entries(turn.tests).map(([name, [passed, all]]) => `${name.replaceAll("_", " ")} ${passed} of ${all}`).join(" · ")));
  const scores = EPISODES[state.episode].judge;
  if (scores) inside.append(make("div", { class: "label" }, "judge"), make("div", {}, scores[at] === null || scores[at] === undefined ? "no vote" : number(scores[at])));
  row(at).append(inside);
}

function toggle(at, open = !state.open.has(at), now = true) {
  const item = row(at);
  if (!item) return;
  if (open && now && !item.querySelector(".inside")) fillTurn(at);
  if (open === state.open.has(at)) return;
  item.classList.toggle("open", open);
  if (open) { state.open.add(at); refill(at, now); } else { state.open.delete(at); item.querySelector(".inside")?.remove(); }
  item.firstChild.setAttribute("aria-expanded", String(open));
}

function unfoldAll(open) {
  const { turns } = EPISODES[state.episode];
  for (let at = 0; at < turns.length; at++) toggle(at, open, turns.length <= LONG);
  foldLabel();
}
function foldLabel() { $("fold").textContent = state.open.size ? "Fold all" : "Unfold all"; }

function select(at, scroll = true, chosen = true) {
  if (chosen && !state.kept) state.diff = "turn"; // until a tab is chosen, the diff follows the turn
  if (at < 0 || at >= EPISODES[state.episode].turns.length) return showDiff();
  if (state.turn >= 0) row(state.turn)?.classList.remove("selected");
  state.turn = at;
  row(at).classList.add("selected");
  if (scroll) row(at).scrollIntoView({ block: "nearest" });
  history.replaceState(null, "", `#${state.episode + 1}.${at + 1}`);
  showDiff();
  moveCursor();
}

// ---- overview: issue, tests, rewards ------------------------------------------------------------------------------

function showOverview(episode) {
  const cards = [];
  if (episode.failureReason) cards.push(make("div", { class: "card" }, make("h2", {}, make("span", { class: "no" }, "Why"), make("span", { class: "note" }, episode.failureReason))));
  const first = episode.prompt.replace(/\s+/g, " ").slice(0, 110);
  const body = make("div", { class: "body" }, make("div", { class: "prose" }, episode.prompt));
  if (episode.systemPrompt) body.append(make("div", { class: "label" }, "system prompt"), make("div", { class: "prose" }, episode.systemPrompt));
  cards.push(make("details", { class: "card", id: "task" }, make("summary", {}, "Task", make("span", { class: "note" }, `${first}…`)), body));
  if (episode.failToPassNames.length || episode.failToPass) cards.push(testsCard(episode));
  if (episode.turns.length) cards.push(make("div", { class: "card" }, make("h2", {}, "Rewards", make("span", { class: "note" }, "and exit codes, by turn")), make("div", { class: "body" }, chart(episode), legend())));
  const notes = plainNotes(episode.notes).filter(([name]) => name !== "sample");
  if (notes.length) cards.push(make("details", { class: "card", id: "notes" }, make("summary", {}, "Notes", make("span", { class: "note" }, notes.slice(0, 3).map(([name, value]) => `${name} ${value}`).join(" · "))),
    make("dl", { class: "body" }, ...notes.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))));
  $("overview").replaceChildren(...cards);
}

function testsCard(episode) {
  const failed = episode.failedTests ? new Set(episode.failedTests) : null;
  const judged = Boolean(episode.failToPass && failed);
  const cell = (state) => make("td", { class: { true: "yes", false: "no" }[state] || "unknown" }, { true: "✓", false: "✗" }[state] || "–");
  const table = (names, before) => make("table", { class: "tests" },
    make("tr", {}, make("th", {}, "test"), make("th", {}, "before"), make("th", {}, "after")),
    ...names.slice(0, MANY_TESTS).map((name) => make("tr", {}, make("td", {}, name), cell(before), cell(judged ? !failed.has(name) : null))));
  const counts = (pair) => (pair ? `${pair[0]} of ${pair[1]}` : "not judged");
  const body = make("div", { class: "body" }, make("div", { class: "label" }, "must be repaired"), table(episode.failToPassNames, false));
  const broken = judged ? episode.passToPassNames.filter((name) => failed.has(name)) : [];
  const kept = episode.passToPassNames.filter((name) => !broken.includes(name));
  if (broken.length) body.append(make("details", { open: broken.length <= 8 }, make("summary", { class: "label" }, `${plural(broken.length, "test")} broken by the work`), table(broken, true)));
  if (kept.length) body.append(make("details", {}, make("summary", { class: "label" }, `${plural(kept.length, "other test")}${kept.length > MANY_TESTS ? `, the first ${MANY_TESTS}` : ""}`), table(kept, true)));
  const solved = judged && !broken.length && episode.failToPass[0] === episode.failToPass[1];
  return make("details", { class: "card", id: "tests", open: judged && !solved && episode.failToPassNames.length <= 10 }, make("summary", {}, "Tests",
    make("span", { class: "note" }, `repaired ${counts(episode.failToPass)} · kept ${counts(episode.passToPass)}`)), body);
}

function chart(episode) {
  const W = 1000, H = 128, top = 8, bottom = 100, left = 46, strip = 114;
  const turns = episode.turns, step = (W - left) / turns.length, x = (at) => left + (at + 0.5) * step;
  let sum = 0;
  const sums = turns.map((turn) => (sum += turn.reward));
  const values = [0, ...sums, ...turns.map((turn) => turn.reward)];
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  const paths = { reward: "", fine: "", failed: "", unread: "", quiet: "" };
  for (const [at, turn] of turns.entries()) {
    if (turn.reward) paths.reward += `M${x(at).toFixed(2)} ${y(0).toFixed(1)}V${y(turn.reward).toFixed(1)}`;
    const kind = turn.error ? "unread" : turn.exitCode > 0 ? "failed" : turn.exitCode === 0 ? "fine" : "quiet";
    paths[kind] += `M${x(at).toFixed(2)} ${strip - 5}V${strip + 5}`;
  }
  const thick = Math.max(0.6, Math.min(14, step * 0.62)).toFixed(2);
  const line = `M${sums.map((value, at) => `${x(at).toFixed(2)} ${y(value).toFixed(1)}`).join("L")}`;
  const svg = make("svg:svg", { id: "chart", viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": "Reward by turn" },
    make("svg:path", { class: "zero", d: `M${left} ${y(0)}H${W}`, "vector-effect": "non-scaling-stroke" }),
    ...Object.entries(paths).filter(([, d]) => d).map(([kind, d]) => make("svg:path", { class: kind, d, "stroke-width": thick })),
    make("svg:path", { class: "sum", d: turns.length > 1 ? line : "", "vector-effect": "non-scaling-stroke" }),
    make("svg:path", { class: "cursor", id: "cursor", "vector-effect": "non-scaling-stroke" }));
  const labels = make("div", { class: "axis" });
  const box = make("div", { class: "chart" }, svg, labels);
  const apart = (value) => value === low || value === high || Math.min(y(low) - y(value), y(value) - y(high)) > 12;
  for (const value of new Set([high, 0, low])) {
    if (!apart(value)) continue;
    const label = make("span", {}, number(value));
    label.style.top = `${y(value)}px`;
    labels.append(label);
  }
  svg.addEventListener("click", (event) => {
    const frame = svg.getBoundingClientRect();
    const at = Math.floor((((event.clientX - frame.left) / frame.width) * W - left) / step);
    if (at >= 0 && at < turns.length) { select(at); toggle(at, true); row(at).scrollIntoView({ block: "center" }); }
  });
  const marks = [...new Set([1, Math.round((turns.length + 1) / 2), turns.length])];
  const numbers = make("div", { class: "ticks" }, ...marks.map((mark) => {
    const tick = make("span", {}, String(mark));
    tick.style.left = `${x(mark - 1) / 10}%`;
    return tick;
  }), make("span", { class: "title" }, "turn"));
  chart.x = x;
  return make("div", {}, make("div", { class: "axis-title" }, "reward"), box, numbers);
}

function moveCursor() {
  const cursor = $("cursor");
  if (cursor && state.turn >= 0) cursor.setAttribute("d", `M${chart.x(state.turn)} 4V122`);
}

function legend() {
  const entry = (colour, text) => {
    const line = make("i");
    line.style.background = `var(--${colour})`;
    return make("span", {}, line, text);
  };
  return make("div", { class: "legend" }, entry("reward", "reward: bar of the turn, line of the sum"), entry("ok", "exit code 0"), entry("bad", "another exit code"), entry("warn", "action not read"), entry("faint", "no command"));
}

// ---- the diff -----------------------------------------------------------------------------------------------------

const DIFFS = { final: "Final", turn: "After a turn", gold: "Gold" };

function showDiff() {
  const episode = EPISODES[state.episode], last = episode.turns.length - 1;
  const shown = state.diff === "gold" ? episode.goldPatch : state.diff === "final" ? patchAt(episode, last) : patchAt(episode, state.turn);
  const before = state.diff === "turn" && state.turn > 0 ? patchAt(episode, state.turn - 1) : null;
  $("diff-tabs").replaceChildren(...Object.entries(DIFFS).filter(([kind]) => kind !== "gold" || episode.goldPatch).map(([kind, title]) =>
    make("button", { role: "tab", "data-diff": kind, "aria-selected": String(kind === state.diff), onclick: () => { state.diff = kind; state.kept = kind !== "turn"; showDiff(); } },
      kind === "turn" ? `After turn ${state.turn + 1}` : title)));
  const known = before === null ? null : counted(before);
  const lines = shown.split("\n");
  const changed = lines.filter((line) => /^[+-](?!\+\+ |-- )/.test(line));
  const added = changed.filter((line) => line[0] === "+").length;
  $("diff-stat").textContent = changed.length ? `+${added} −${changed.length - added}` : "";
  $("diff").replaceChildren(shown ? diffLines(lines, known) : make("p", { class: "empty" }, state.diff === "turn" ? "No file is changed yet." : "No file is changed: the patch is empty."));
  if (state.diff === "turn") $("diff").querySelector(".new")?.scrollIntoView({ block: "center" });
}

function counted(patch) {
  const counts = new Map();
  for (const line of patch.split("\n")) counts.set(line, (counts.get(line) || 0) + 1);
  return counts;
}

function diffLines(lines, known) {
  const pieces = document.createDocumentFragment();
  let old = 0, now = 0, inHunk = false;
  for (const line of lines.slice(0, 20000)) {
    const seen = known ? known.get(line) || 0 : 1;
    if (known && seen) known.set(line, seen - 1);
    const fresh = known && !seen && /^[+-]/.test(line) ? " new" : "";
    if (line.startsWith("diff --git ")) {
      inHunk = false;
      const names = / b\/(.*)$/.exec(line);
      pieces.append(make("div", { class: "file" }, names ? names[1] : line));
      continue;
    }
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(line);
    if (hunk) { [old, now, inHunk] = [Number(hunk[1]), Number(hunk[2]), true]; pieces.append(diffLine("hunk", "", "", line)); continue; }
    if (!inHunk) {
      if (line && !/^(?:index |--- |\+\+\+ )/.test(line)) pieces.append(diffLine("meta", "", "", line));
    } else if (line[0] === "+") pieces.append(diffLine(`add${fresh}`, "", now++, line));
    else if (line[0] === "-") pieces.append(diffLine(`del${fresh}`, old++, "", line));
    else if (line[0] === " ") pieces.append(diffLine("", old++, now++, line));
    else if (line) pieces.append(diffLine("meta", "", "", line));
  }
  if (lines.length > 20000) pieces.append(diffLine("meta", "", "", `${plural(lines.length - 20000, "line")} more`));
  return pieces;
}

function diffLine(kind, old, now, text) {
  return make("div", { class: `l ${kind}` }, make("span", {}, String(old)), make("span", {}, String(now)), make("code", {}, text));
}

// ---- search -------------------------------------------------------------------------------------------------------

function search(query) {
  const episode = EPISODES[state.episode];
  state.query = query.toLowerCase();
  state.matches = [];
  if (state.query) {
    const matches = (turn) => turn.action.toLowerCase().includes(state.query) || turn.observation.toLowerCase().includes(state.query);
    for (const [at, turn] of episode.turns.entries()) if (matches(turn)) state.matches.push(at);
  }
  // Rows are taken out: to hide thousands of them where they are takes the browser seconds.
  $("turns").replaceChildren(...(state.query ? state.matches.map(row) : state.rows));
  if (state.query && !state.matches.length) $("turns").append(make("li", { class: "nothing" }, "No turn of this episode matches."));
  for (const at of state.open) refill(at, state.open.size <= LONG);
  state.match = -1;
  $("matches").textContent = state.query ? `${state.matches.length}` : "";
}

function nextMatch(direction) {
  if (!state.matches.length) return;
  state.match = (state.match + direction + state.matches.length) % state.matches.length;
  if (state.match < 0) state.match = state.matches.length - 1;
  const at = state.matches[state.match];
  toggle(at, true);
  select(at);
  document.querySelector("mark.current")?.classList.remove("current");
  const mark = row(at).querySelector("mark");
  mark?.classList.add("current");
  mark?.scrollIntoView({ block: "center" });
  $("matches").textContent = `${state.match + 1}/${state.matches.length}`;
}

// ---- keys and buttons ---------------------------------------------------------------------------------------------

function move(direction) {
  for (let at = state.turn + direction; at >= 0 && at < EPISODES[state.episode].turns.length; at += direction) {
    if (row(at).isConnected) return select(at);
  }
}
function moveEpisode(direction) {
  const chosen = chosenEpisodes(), at = chosen.findIndex((episode) => episode.index === state.episode);
  const next = chosen[at + direction];
  if (next) showEpisode(next.index);
}
function switchDiff() {
  const kinds = [...$("diff-tabs").children].map((tab) => tab.dataset.diff);
  state.diff = kinds[(kinds.indexOf(state.diff) + 1) % kinds.length];
  state.kept = state.diff !== "turn";
  showDiff();
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* a page without storage forgets it */ }
}
function switchTheme() { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); }

function fold() {
  toggle(state.turn);
  row(state.turn)?.scrollIntoView({ block: "nearest" });
  foldLabel();
}

const KEYS = {
  j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), J: () => moveEpisode(1), K: () => moveEpisode(-1),
  o: fold, Enter: fold, a: () => unfoldAll(!state.open.size),
  g: () => select(0), G: () => select(EPISODES[state.episode].turns.length - 1),
  "/": () => $("search").focus(), f: () => $("episode-search").focus(), n: () => nextMatch(1), N: () => nextMatch(-1),
  d: switchDiff, t: switchTheme, "?": () => $("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") { event.target.value = ""; event.target.dispatchEvent(new Event("input")); event.target.blur(); }
    if (event.key === "Enter" && event.target === $("search")) {
      if (state.query !== $("search").value.toLowerCase()) { clearTimeout(pause); search($("search").value); }
      nextMatch(event.shiftKey ? -1 : 1);
    }
    return;
  }
  const key = KEYS[event.key];
  if (!key || event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  event.preventDefault();
  if (document.activeElement instanceof HTMLButtonElement) document.activeElement.blur();
  key();
});
let pause = 0;
$("search").addEventListener("input", () => {
  clearTimeout(pause);
  const long = EPISODES[state.episode].turns.length > LONG;
  if (long) pause = setTimeout(() => search($("search").value), 150);
  else search($("search").value);
});
$("episode-search").addEventListener("input", showEpisodes);
$("sort").addEventListener("change", showEpisodes);
$("fold").addEventListener("click", () => unfoldAll(!state.open.size));
$("theme").addEventListener("click", switchTheme);
$("help").addEventListener("click", () => $("keys").showModal());
$("keys").addEventListener("click", (event) => { if (event.target === $("keys")) $("keys").close(); });

// On a telephone one pane is shown at a time.
function showPane(name) {
  document.body.dataset.pane = name;
  for (const button of $("panes").children) button.setAttribute("aria-pressed", String(button.dataset.pane === name));
}
for (const button of $("panes").children) button.addEventListener("click", () => showPane(button.dataset.pane));

function begin() {
  let theme = null;
  try { theme = localStorage.getItem("theme"); } catch { /* as above */ }
  document.documentElement.dataset.theme = theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  $("title").textContent = document.title = DATA.title;
  showChips();
  showPane("turns");
  goTo(location.hash);
  window.addEventListener("hashchange", () => goTo(location.hash));
}

// `#3.12` is the twelfth turn of the third episode, `#NAME` the episode in the folder of that name.
function goTo(hash) {
  const [, episode, turn] = /^#(\d+)\.(\d+)$/.exec(hash) || [];
  const named = EPISODES.findIndex((each) => `#${encodeURIComponent(each.place)}` === hash);
  const index = named >= 0 ? named : Number(episode) - 1;
  showEpisode(index >= 0 && index < EPISODES.length ? index : 0, Math.max(0, Number(turn) - 1 || 0));
}
begin();
