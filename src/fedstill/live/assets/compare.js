// Chosen runs: curves on one pair of axes, settings that differ, metrics, and where the models are.

import { chart, swatch } from "./curves.js";
import { bytes, counted, duration, element, isShare, percent, shown, spoken } from "./numbers.js";

const FIRST = ["accuracy", "class_accuracy", "auc", "f1", "loss", "training loss"];
const CHECKS = ["mse", "constant", "non_finite"];  // what a run checks itself by
let metric = "accuracy";

export function comparison(runs, redraw, width) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => !CHECKS.includes(name));
  names.sort((a, b) => (FIRST.indexOf(a) + 1 || 99) - (FIRST.indexOf(b) + 1 || 99) || a.localeCompare(b));
  if (!names.includes(metric)) metric = names[0] ?? "accuracy";
  return [figure(runs, names, redraw, width), ...verdict(runs), settings(runs), metrics(runs), ...runs.map((run, place) => details(run, place, runs.length))];
}

function figure(runs, names, redraw, width) {
  const curves = runs.map((run) => ({ title: run.what, points: run.curves[metric] ?? [] }));
  const choice = element("select", { id: "metric", on: { change: (event) => { metric = event.target.value; redraw(); document.getElementById("metric").focus(); } } },
    ...names.map((name) => element("option", { value: name, selected: name === metric }, spoken(name))));
  const key = element("ul", { class: "key" }, ...runs.map((run, place) => element("li", {}, element("span", {}, swatch(place), run.what))));
  return element("figure", {},
    element("p", { class: "controls" }, element("label", { for: "metric" }, "Curve of", choice)),
    chart(metric, curves, width),
    element("figcaption", {}, key));
}

// Which of two is ahead, and by what: the question that is asked first.
function verdict(runs) {
  if (runs.length !== 2 || runs.some((run) => typeof run.best !== "number")) return [];
  const [first, second] = [...runs].sort((a, b) => b.best - a.best);
  const points = (100 * (first.best - second.best)).toFixed(2);
  // What only one of two methods has goes with the method.
  const both = (path) => runs.every((run) => (run.settings[path] ?? null) !== null);
  const paths = differing(runs).filter((path) => path !== "seed" && (both(path) || !path.startsWith("method.")));
  const seeds = differing(runs).includes("seed");
  const words = paths.slice(0, 4).map((path) => `${path} (${shown(first.settings[path])} and ${shown(second.settings[path])})`);
  const more = paths.length > 4 ? ` and ${counted(paths.length - 4, "more setting")}` : "";
  const why = words.length ? `They differ in ${words.join(", ")}${more}.` : seeds ? "They differ in the seed alone: what lies between them is chance." : "Their settings are equal.";
  const caution = words.length && seeds ? " They also differ in the seed." : "";
  const lead = first.best === second.best ? `Both reach ${percent(first.best)} in their best rounds. ` : `${first.what} is ahead by ${points}\u00a0points in the best round. `;
  return [
    element("p", { class: "about" }, lead, why, caution),
    element("p", { class: "quiet" }, "Whether the test samples can tell them apart:"),
    copied(`fedstill show ${runs.map((run) => quoted(run.folder)).join(" ")}`),
  ];
}

function metrics(runs) {
  const rows = [
    ["state", (run) => run.state],
    ["rounds", (run) => `${run.round} of ${run.rounds}`],
    ["accuracy, last round", (run) => percent(run.last)],
    ["accuracy, best round", (run) => (run.best === null ? "–" : `${percent(run.best)} (round ${run.best_round})`)],
  ];
  const kept = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.last ?? {})))].filter((name) => name !== "accuracy");
  const final = (run, name) => run.metrics.last?.[name] ?? lastOf(run, name);
  const others = [...new Set([...kept, ...runs.flatMap((run) => Object.keys(run.curves))])].filter((name) => name !== "accuracy" && !CHECKS.includes(name)).slice(0, 12);
  for (const name of others) {
    const values = runs.map((run) => final(run, name) ?? null);
    const share = isShare(name, values);
    rows.push([`${spoken(name)}, last round`, (run) => (share ? percent(final(run, name)) : shown(final(run, name)))]);
  }
  rows.push(["sent", (run) => bytes(run.bytes)], ["time", (run) => duration(run.seconds)], ["failed replies", (run) => String(run.failures)]);
  return table("Metrics", "metric", runs, rows);
}

function lastOf(run, name) {
  const points = (run.curves[name] ?? []).filter(([, value]) => typeof value === "number");
  return points.length ? points.at(-1)[1] : undefined;
}

function differing(runs) {
  const paths = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  return paths.filter((path) => new Set(runs.map((run) => JSON.stringify(run.settings[path] ?? null))).size > 1);
}

function settings(runs) {
  if (runs.length < 2) return element("span");
  const rows = differing(runs).map((path) => [path, (run) => shown(run.settings[path])]);
  if (!rows.length) return element("p", {}, "Their settings are equal.");
  return table("Settings that differ", "setting", runs, rows);
}

function table(title, what, runs, rows) {
  const head = element("tr", {}, element("th", { scope: "col" }, element("span", { class: "title" }, what)),
    ...runs.map((run, place) => element("th", { scope: "col" }, element("span", { class: "title" }, swatch(place), " ", run.what))));
  const body = rows.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), ...runs.map((run) => element("td", { class: "value" }, value(run)))));
  return element("div", {}, element("h3", {}, title),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, element("table", {}, element("caption", {}, title), element("thead", {}, head), element("tbody", {}, ...body))));
}

function details(run, place, several) {
  const folder = quoted(run.folder);
  const which = run.models.some((one) => one.which === "best") ? " --which best" : "";
  const inside = [
    element("h4", {}, "Its model"),
    ...(run.models.length
      ? [element("ul", { class: "files" }, ...run.models.map((one) => element("li", {}, `${one.which}: `, element("code", {}, one.file)))),
         element("p", {}, "To use it elsewhere:"), copied(`fedstill export ${folder} model.onnx${which}`), copied(`fedstill predict ${folder} FILE${which}`)]
      : [element("p", {}, run.state === "finished" ? "This method shares no model." : "Models are kept when a run is finished.")]),
    element("p", {}, "To look closer:"), copied(`fedstill show ${folder}`),
    ...(run.notes.length ? [element("h4", {}, `Failures, the last ${run.notes.length}`), element("ul", {}, ...[...run.notes].reverse().map((one) => element("li", {}, one)))] : []),
    element("details", {}, element("summary", {}, "All settings"), element("dl", {}, ...Object.entries(run.settings).flatMap(([path, value]) => [element("dt", {}, path), element("dd", {}, shown(value))]))),
  ];
  return element("section", { class: "run", "aria-label": run.what }, element("h3", {}, several > 1 ? swatch(place) : "", several > 1 ? " " : "", run.what), element("p", { class: "quiet small" }, run.folder), ...inside);
}

// As a shell reads it: a folder may be called anything.
const quoted = (folder) => (/^[\w@%+=:,./][\w@%+=:,./-]*$/.test(folder) ? folder : `'${folder.replaceAll("'", "'\\''")}'`);

function copied(command) {
  const button = element("button", { type: "button", class: "plain", "aria-label": `Copy: ${command}` }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(command); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(button.previousSibling); button.textContent = "Selected"; }
  });
  return element("p", { class: "copied" }, element("code", {}, command), button);
}
