// The page follows the folders: it asks every other second for what changed, and draws that alone.

import { comparison } from "./compare.js";
import { spark } from "./curves.js";
import { RunList } from "./list.js";
import { ago, counted, duration, element, percent } from "./numbers.js";

const EVERY = 2000, SLOWEST = 15000, CARDS = 6;
const at = (name) => document.getElementById(name);
let version = 0, wait = EVERY, timer = 0, asking = false, details = [], allCards = false, drawn = "", state = null, told = new Map();
const list = new RunList((show) => { chosen(show); });

async function ask(path) {
  const reply = await fetch(path, { cache: "no-store", credentials: "same-origin" });
  if (reply.status === 401) throw new Error("The page needs its token again: open the address that fedstill watch printed.");
  if (!reply.ok) throw new Error(`The page could not be updated (${reply.status}).`);
  return reply.json();
}

async function update() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  try {
    state = await ask(`state.json?since=${version}`);
    wait = state.unread ? 200 : EVERY;
    const changed = new Set([...state.runs.map((run) => run.id), ...state.gone]);
    version = state.version;
    list.update(state.runs, state.gone, state.whole, state.now);
    restore();
    draw();
    if ([...list.chosen].some((name) => changed.has(name)) || details.length !== list.chosen.size) await compare();
    trouble(state.missing.length ? `There is no folder ${state.missing.join(", ")} any more.` : "");
  } catch (error) {
    wait = Math.min(SLOWEST, wait * 2);
    trouble(error instanceof TypeError ? "fedstill watch does not answer: it has ended, or the connection is broken. What is shown is from before." : error.message);
  } finally {
    asking = false;
    if (!document.hidden) timer = setTimeout(update, wait);
  }
}

function trouble(sentence) {
  at("trouble").hidden = !sentence;
  if (at("trouble").textContent !== sentence) at("trouble").textContent = sentence;
}

// Which runs are chosen is in the address, so that it can be kept.
let restored = false;
function restore() {
  if (restored || state.unread) return;
  restored = true;
  const names = decodeURIComponent(location.hash.replace(/^#runs=?/, "")).split(",").filter(Boolean);
  if (names.length && names.every((name) => /^[0-9a-f]{16}$/.test(name))) { list.choose(names); bar(); }
}

function draw() {
  const runs = [...list.runs.values()];
  const running = runs.filter((run) => run.state === "running");
  const studies = state.studies.filter((one) => one.state === "running");
  const deployments = state.deployments.filter((one) => one.alive);
  const parts = [running.length ? counted(running.length, "run") : "", studies.length ? counted(studies.length, "study").replace("studys", "studies") : "", deployments.length ? counted(deployments.length, "deployment") : ""].filter(Boolean);
  const title = counted(runs.length, "run") + (parts.length ? `; under way: ${parts.join(", ")}` : "");
  at("heading").textContent = state.unread ? `Reading ${counted(state.unread, "more run")} …` : title;
  document.title = `${running.length ? `${running.length} running: ` : ""}Fedstill`;
  const best = runs.reduce((top, run) => ((run.best ?? -1) > (top?.best ?? -1) ? run : top), null);
  at("about").replaceChildren(...about(runs, best));
  at("when").textContent = `${state.folders.join(", ")}, looked at ${new Date(state.now * 1000).toLocaleTimeString()}`;
  const cards = [...studies.map(studyCard), ...deployments.map(deploymentCard), ...running.sort((a, b) => b.changed - a.changed).map(runCard)];
  const earlier = [...state.studies.filter((one) => one.state !== "running").map(studyCard), ...state.deployments.filter((one) => !one.alive).map(deploymentCard)];
  place("under-way", "cards", allCards ? cards : cards.slice(0, CARDS));
  at("all-cards").hidden = cards.length <= CARDS;
  at("all-cards").textContent = allCards ? `Show the first ${CARDS}` : `Show all ${cards.length}`;
  place("studies", "earlier", earlier);
  at("runs").hidden = !runs.length;
  const failed = state.failures.map((one) => element("li", {}, element("strong", {}, one.cell || "a run"), one.refused ? " was refused: " : ": ", one.error));
  at("failures").hidden = !failed.length;
  const all = JSON.stringify(state.failures);
  if (all !== drawn) { drawn = all; at("failed").replaceChildren(...failed); }
  announce(running);
}

function about(runs, best) {
  if (!runs.length) return ["No run has begun here yet. This page shows the first one as soon as there is one."];
  if (!best || best.best === null) return ["Nothing was measured yet."];
  const said = [`The best so far is `, element("button", { type: "button", class: "link", on: { click: () => { list.choose([best.id]); chosen(true); } } }, best.what), ` with ${percent(best.best)} of test accuracy in its best round.`];
  if (state.left_out) said.push(` ${counted(state.left_out, "older run")} are left out: name a smaller folder.`);
  return said;
}

// A reader who does not see the page hears what ended, not every round.
function announce(running) {
  const before = told;
  told = new Map([...list.runs.values()].map((run) => [run.id, run.state]));
  const ended = [...list.runs.values()].filter((run) => before.get(run.id) === "running" && run.state !== "running");
  if (ended.length) at("news").textContent = ended.map((run) => `${run.what}: ${run.state}, ${percent(run.last)}`).join("; ");
}

function place(section, inside, cards) {
  at(section).hidden = !cards.length;
  const open = [...at(inside).querySelectorAll("details[open]")].map((one) => one.dataset.name);
  const name = at(inside).contains(document.activeElement) ? document.activeElement.dataset.name : "";
  at(inside).replaceChildren(...cards);
  for (const one of at(inside).querySelectorAll("details")) if (open.includes(one.dataset.name)) one.open = true;
  if (name) at(inside).querySelector(`[data-name="${CSS.escape(name)}"]`)?.focus();
}

function progress(done, total, label) {
  return element("progress", { value: Math.min(done, total), max: Math.max(1, total), "aria-label": label });
}

function card(kind, title, state, ...inside) {
  return element("article", { class: "card" }, element("p", { class: "kind" }, kind, " ", element("span", { class: `state ${state.replaceAll(" ", "-")}` }, state)), element("h3", {}, title), ...inside);
}

function runCard(run) {
  const failed = run.failures ? `, ${counted(run.failures, "failed reply").replace("replys", "replies")}` : "";
  const open = element("button", { type: "button", class: "link", "data-name": run.id, on: { click: () => { list.choose([run.id]); chosen(true); } } }, run.what);
  return card("Run", open, run.state,
    progress(run.round, run.rounds, `rounds of ${run.what}`),
    element("p", {}, `round ${run.round} of ${run.rounds}${run.left === null ? "" : `, about ${duration(run.left)} left`}${failed}`),
    spark(run.curve, `accuracy of ${run.what}`),
    element("p", {}, `accuracy ${percent(run.last)}, best ${percent(run.best)}`),
    run.non_finite ? element("p", { class: "alarm" }, `${counted(run.non_finite, "round")} with a model that is not finite`) : "");
}

function studyCard(study) {
  const over = study.done + study.failed + study.refused;
  const rest = [study.failed ? `${study.failed} failed` : "", study.refused ? `${study.refused} refused` : "", typeof study.left === "number" ? `about ${duration(study.left)} left` : ""].filter(Boolean);
  const working = study.working.map((one) => element("li", {}, `${one.cell}, ${percent(one.share, 0)}`));
  return card("Study", study.name, study.state,
    progress(Math.max(over, study.progress), study.total, `runs of ${study.name}`),
    element("p", {}, [`${study.done} of ${counted(study.total, "run")} done`, ...rest].join(", ")),
    working.length ? element("ul", { class: "small" }, ...working) : "",
    study.about ? element("p", { class: "quiet small" }, study.about) : "",
    study.state === "running" ? "" : element("p", { class: "quiet small" }, `${ago(state.now, study.changed)} `, element("code", {}, study.command)));
}

function deploymentCard(one) {
  const connected = one.sites.filter((site) => site.connected).length;
  const rows = one.sites.map((site) => {
    const how = site.refused ? "refused" : site.connected ? "connected" : "not connected";
    const why = site.refused || site.failed;
    return element("tr", {}, element("th", { scope: "row" }, `site ${site.site}`), element("td", {}, element("span", { class: `state ${how.replaceAll(" ", "-")}` }, how)), element("td", { class: "words" }, why));
  });
  const sites = element("details", { "data-name": `sites ${one.folder}`, open: one.sites.length <= 12 }, element("summary", {}, "Sites"),
    element("div", { class: "scroll" }, element("table", {}, element("caption", {}, `Sites of ${one.name}`), element("tbody", {}, ...rows))));
  return card("Deployment", one.name, one.state,
    one.rounds ? progress(one.round, one.rounds, `rounds of ${one.name}`) : "",
    element("p", {}, `${one.rounds ? `round ${one.round} of ${one.rounds}, ` : ""}${connected} of ${counted(one.sites.length, "site")} connected`),
    one.sites.length ? sites : "");
}

function bar() {
  const names = [...list.chosen];
  at("bar").hidden = !names.length;
  at("bar-text").textContent = `${counted(names.length, "run")} chosen`;
  at("show-chosen").textContent = names.length > 1 ? "Compare" : "Show";
  history.replaceState(null, "", names.length ? `#runs=${names.join(",")}` : location.pathname);
}

async function chosen(show) {
  bar();
  try { await compare(); } catch (error) { trouble(error.message); }
  if (show && !at("chosen").hidden) { at("chosen-heading").scrollIntoView(); at("chosen-heading").focus({ preventScroll: true }); }
}

async function compare() {
  const names = [...list.chosen];
  const found = names.length ? (await ask(`runs.json?${names.slice(0, 30).map((name) => `id=${name}`).join("&")}`)).runs : [];
  if (names.join() !== [...list.chosen].join()) return;  // the choice changed meanwhile, and is asked for already
  details = names.length > 30 ? names.map((name) => found.find((run) => run.id === name)) : found;
  drawChosen();
}

function drawChosen() {
  const runs = details.filter(Boolean);
  at("chosen").hidden = !runs.length;
  if (!runs.length) return;
  at("chosen-heading").textContent = runs.length > 1 ? `${counted(runs.length, "run")} beside each other` : runs[0].what;
  const open = [...at("comparison").querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...at("comparison").querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const inside = at("comparison").contains(document.activeElement) ? [...at("comparison").querySelectorAll("select, button, summary")].indexOf(document.activeElement) : -1;
  at("comparison").replaceChildren(...comparison(runs, drawChosen, Math.min(900, Math.max(300, at("comparison").clientWidth - 40))));
  at("comparison").querySelectorAll("details").forEach((one, number) => { one.open = open[number] ?? false; });
  at("comparison").querySelectorAll(".scroll").forEach((one, number) => { one.scrollLeft = scrolled[number] ?? 0; });
  if (inside >= 0) at("comparison").querySelectorAll("select, button, summary")[inside]?.focus({ preventScroll: true });
}

at("show-chosen").addEventListener("click", () => chosen(true));
at("clear").addEventListener("click", () => { list.choose([]); chosen(false); at("find").focus(); });
at("all-cards").addEventListener("click", () => { allCards = !allCards; draw(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) update(); });
addEventListener("resize", () => { if (details.length) drawChosen(); });
update();
