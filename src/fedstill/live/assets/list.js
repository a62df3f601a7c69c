// The list of runs: found by words and state, sorted by a heading, chosen by ticks.

import { spark } from "./curves.js";
import { ago, duration, element, percent } from "./numbers.js";

const FIRST = 30;  // rows that are shown before somebody asks for all
const COLUMNS = [
  { key: "what", title: "Run", word: true },
  { key: "state", title: "State", word: true },
  { key: "round", title: "Round", right: true, extra: true },
  { key: "curve", title: "Accuracy by round", extra: true },
  { key: "last", title: "Last", right: true },
  { key: "best", title: "Best", right: true },
  { key: "failures", title: "Failures", right: true, extra: true },
  { key: "left", title: "Time left", right: true, extra: true },
  { key: "seconds", title: "Time so far", right: true, extra: true },
  { key: "changed", title: "Changed", right: true, extra: true },
];

export class RunList {
  constructor(onChoose) {
    this.runs = new Map();
    this.rows = new Map();
    this.stale = new Set();
    this.chosen = new Set();
    this.onChoose = onChoose;
    this.sort = { key: "changed", down: true };
    this.all = false;
    this.now = 0;
    this.table = document.getElementById("list");
    this.find = document.getElementById("find");
    this.state = document.getElementById("state");
    this.more = document.getElementById("more");
    this.head();
    this.find.addEventListener("input", () => this.draw());
    this.state.addEventListener("change", () => this.draw());
    this.more.addEventListener("click", () => { this.all = !this.all; this.draw(); });
    document.getElementById("two-best").addEventListener("click", () => {
      const best = this.found().filter((run) => typeof run.best === "number").sort((a, b) => b.best - a.best || a.what.localeCompare(b.what));
      this.choose(best.slice(0, 2).map((run) => run.id));
      this.onChoose(true);
    });
  }

  head() {
    const row = element("tr", {}, element("th", { scope: "col", class: "tick" }, element("span", { class: "unseen" }, "Chosen")));
    for (const column of COLUMNS) {
      const sorts = column.key !== "curve";
      const act = () => {
        const same = this.sort.key === column.key;
        this.sort = { key: column.key, down: same ? !this.sort.down : !column.word };
        this.draw();
      };
      const inside = sorts ? element("button", { type: "button", on: { click: act } }, column.title) : element("span", { class: "title" }, column.title);
      row.append(element("th", { scope: "col", "data-key": column.key, class: `${column.right ? "right" : ""} ${column.extra ? "extra" : ""}` }, inside));
    }
    this.table.tHead.append(row);
  }

  update(runs, gone, whole, now) {
    if (whole) { this.runs.clear(); this.rows.clear(); }
    for (const name of gone) { this.runs.delete(name); this.rows.delete(name); this.chosen.delete(name); }
    for (const run of runs) { this.runs.set(run.id, run); this.stale.add(run.id); }
    for (const name of this.chosen) if (!this.runs.has(name) && whole) this.chosen.delete(name);
    this.now = now;
    this.draw();
  }

  choose(names) {
    this.chosen = new Set(names.filter((name) => this.runs.has(name)));
    for (const name of this.rows.keys()) this.stale.add(name);
    this.draw();
  }

  found() {
    const words = this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = this.state.value;
    return [...this.runs.values()].filter((run) => {
      if (state === "with failures" ? !run.failures && !run.skipped && !run.non_finite : state && run.state !== state) return false;
      const text = `${run.what} ${run.name} ${run.state}`.toLowerCase();
      return words.every((word) => (word.length > 1 && word[0] === "-" ? !text.includes(word.slice(1)) : text.includes(word)));
    });
  }

  draw() {
    const { key, down } = this.sort;
    const value = (run) => run[key];
    const found = this.found().sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      const known = (one === null || one === undefined) - (other === null || other === undefined);
      if (known) return known;
      const order = typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
      return (down ? -order : order) || a.what.localeCompare(b.what, "en", { numeric: true });
    });
    const top = Math.max(...[...this.runs.values()].map((run) => run.best ?? -1));
    const shown = this.all ? found : found.slice(0, FIRST);
    const rows = shown.map((run) => this.row(run, run.best !== null && run.best === top));
    const body = this.table.tBodies[0];
    // Only what differs is moved, so that the focus stays where it is.
    rows.forEach((row, place) => { if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null); });
    while (body.rows.length > rows.length) body.rows[body.rows.length - 1].remove();
    for (const heading of this.table.tHead.rows[0].cells) {
      if (heading.dataset.key === key) heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
    this.more.hidden = found.length <= FIRST;
    this.more.textContent = this.all ? `Show the first ${FIRST}` : `Show all ${found.length}`;
    document.getElementById("found").textContent = found.length === this.runs.size ? "" : `${found.length} of ${this.runs.size}`;
  }

  row(run, top) {
    const before = this.rows.get(run.id);
    if (before && !this.stale.has(run.id) && before.dataset.top === String(top)) {
      before.querySelector(".changed").textContent = ago(this.now, run.changed);
      return before;
    }
    const tick = element("input", { type: "checkbox", "aria-label": `choose ${run.what}`, checked: this.chosen.has(run.id), on: { change: (event) => {
      if (event.target.checked) this.chosen.add(run.id); else this.chosen.delete(run.id);
      this.onChoose(false);
    } } });
    const accuracy = typeof run.last === "number" ? `last ${percent(run.last)}` : "nothing measured yet";
    const row = element("tr", { "data-top": String(top), "data-run": run.id },
      element("td", { class: "tick" }, tick),
      element("th", { scope: "row" }, element("button", { type: "button", class: "link", title: run.name, on: { click: () => { this.choose([run.id]); this.onChoose(true); } } }, run.what)),
      element("td", {}, element("span", { class: `state ${run.state.replaceAll(" ", "-")}` }, element("span", { class: "state-word" }, run.state))),
      element("td", { class: "right extra" }, `${run.round}/${run.rounds}`),
      element("td", { class: "extra" }, spark(run.curve, `accuracy of ${run.what}: ${accuracy}`)),
      element("td", { class: "right" }, percent(run.last)),
      element("td", { class: `right ${top ? "good" : ""}` }, percent(run.best), top ? element("span", { class: "unseen" }, " (the best)") : ""),
      element("td", { class: `right extra ${run.failures || run.non_finite ? "bad" : ""}` }, failures(run)),
      element("td", { class: "right extra" }, run.left === null ? "–" : duration(run.left)),
      element("td", { class: "right extra" }, run.seconds ? duration(run.seconds) : "–"),
      element("td", { class: "right extra changed" }, ago(this.now, run.changed)));
    // A row that is made anew keeps the focus.
    const focused = before?.contains(document.activeElement) ? document.activeElement : null;
    if (focused) {
      const place = [...before.querySelectorAll("input, button")].indexOf(focused);
      before.replaceWith(row);
      row.querySelectorAll("input, button")[place]?.focus();
    }
    this.stale.delete(run.id);
    this.rows.set(run.id, row);
    return row;
  }
}

function failures(run) {
  const more = [run.skipped ? `${run.skipped} skipped` : "", run.non_finite ? `${run.non_finite} not finite` : "", run.damaged ? `${run.damaged} damaged` : ""].filter(Boolean);
  return [run.failures ? String(run.failures) : more.length ? "" : "0", ...more].filter(Boolean).join(", ");
}
