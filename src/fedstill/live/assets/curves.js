// Curves as SVG: the small ones of the list, and the large one with axes that fit the data.

import { element, isShare, percent, shape, shown, spoken } from "./numbers.js";

export const COLOURS = 7;
const DASHES = ["none", "6 3", "2 3", "8 3 2 3", "1 4"];
const known = (points) => points.filter(([, value]) => typeof value === "number");

export const colour = (place) => `var(--series-${(place % COLOURS) + 1})`;
export const dash = (place) => DASHES[Math.floor(place / COLOURS) % DASHES.length];

export function spark(values, label) {
  const points = known(values.map((value, place) => [place, value]));
  const drawing = shape("svg", { viewBox: "0 0 100 28", class: "spark", role: "img", "aria-label": label, preserveAspectRatio: "none" });
  if (!points.length) return drawing;
  const [low, high] = extent(points.map(([, value]) => value));
  const across = Math.max(1, values.length - 1);
  const place = ([x, y]) => [2 + (96 * x) / across, high > low ? 25 - (22 * (y - low)) / (high - low) : 14];
  drawing.append(...lines(points.map((one) => [...place(one), one[0]])).map((d) => shape("path", { d, fill: "none", stroke: "var(--accent)", "stroke-width": 1.6, "vector-effect": "non-scaling-stroke" })));
  const [x, y] = place(points.at(-1));
  // A dot that stays round however wide the curve is drawn.
  drawing.append(shape("path", { d: `M${x} ${y}h0`, stroke: "var(--accent)", "stroke-width": 5, "stroke-linecap": "round", "vector-effect": "non-scaling-stroke" }));
  return drawing;
}

// A point after one that is missing begins a line of its own.
function lines(points) {
  const found = [];
  let before = null;
  for (const [x, y, place] of points) {
    if (before !== null && place === before + 1) found[found.length - 1] += `L${x.toFixed(1)} ${y.toFixed(1)}`;
    else found.push(`M${x.toFixed(1)} ${y.toFixed(1)}h0.01`);
    before = place;
  }
  return found;
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const one of values) { if (one < low) low = one; if (one > high) high = one; }
  return [low, high];
}

export function ticks(low, high, most) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let one = Math.ceil(low / step - 1e-9) * step; one <= high + step * 1e-9; one += step) found.push(Number(one.toPrecision(12)));
  return found;
}

export function chart(name, curves, width) {
  const all = curves.map((one) => known(one.points));
  const values = all.flat().map(([, value]) => value);
  if (!values.length) return element("p", { class: "quiet" }, `No round has ${spoken(name)} yet.`);
  const shares = isShare(name, values);
  const height = width < 480 ? 240 : 320;
  const [left, right, top, bottom] = [52, 14, 12, 40];
  const [first, last] = extent(all.flat().map(([round]) => round));
  let [low, high] = extent(values);
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 0.5;
  low = shares ? Math.max(0, low - room) : low - room;
  high = shares ? Math.min(1, high + room) : high + room;
  const x = (round) => left + ((width - left - right) * (round - first)) / Math.max(1, last - first);
  const y = (value) => height - bottom - ((height - top - bottom) * (value - low)) / (high - low);
  const steps = ticks(low, high, 5);
  const digits = shares && steps.length > 1 ? Math.max(0, Math.min(3, Math.ceil(-Math.log10((steps[1] - steps[0]) * 100)))) : 0;
  const text = (value) => (shares ? percent(value, digits) : shown(value));
  const told = curves.map((one, place) => `${one.title}: ${all[place].length ? (shares ? percent(all[place].at(-1)[1]) : shown(all[place].at(-1)[1])) : "nothing yet"}`);
  const drawing = shape("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": `${spoken(name)} by round; last values: ${told.join("; ")}`, class: "chart" });
  for (const one of steps) {
    drawing.append(shape("line", { x1: left, x2: width - right, y1: y(one), y2: y(one), stroke: "var(--grid)" }));
    drawing.append(shape("text", { x: left - 6, y: y(one) + 4, "text-anchor": "end" }, text(one)));
  }
  for (const one of ticks(first, last, width < 480 ? 5 : 10).filter(Number.isInteger)) {
    drawing.append(shape("line", { x1: x(one), x2: x(one), y1: height - bottom, y2: height - bottom + 4, stroke: "var(--quiet)" }));
    drawing.append(shape("text", { x: x(one), y: height - bottom + 17, "text-anchor": "middle" }, String(one)));
  }
  drawing.append(shape("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, stroke: "var(--quiet)" }));
  drawing.append(shape("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, "round"));
  curves.forEach((one, place) => drawing.append(line(one, place, x, y, (value) => (shares ? percent(value) : shown(value)))));
  return drawing;
}

function line(curve, place, x, y, text) {
  const group = shape("g", { stroke: colour(place), fill: "none", "stroke-width": 2, "stroke-dasharray": dash(place) });
  let numbered = -1, before = true;  // rounds that were not evaluated are bridged; what is not finite is a gap
  const points = [];
  for (const [round, value] of curve.points) {
    if (typeof value !== "number") { before = false; continue; }
    numbered += before ? 1 : 2;
    before = true;
    points.push([x(round), y(value), numbered]);
  }
  group.append(...lines(points).map((d) => shape("path", { d, "stroke-linejoin": "round", "stroke-linecap": "round" })));
  if (points.length <= 40) {
    known(curve.points).forEach(([round, value]) => group.append(shape("circle", { cx: x(round), cy: y(value), r: 3, fill: colour(place), stroke: "none" }, shape("title", {}, `${curve.title}, round ${round}: ${text(value)}`))));
  }
  return group;
}

export const swatch = (place) =>
  shape("svg", { viewBox: "0 0 24 8", width: 24, height: 8, class: "swatch", "aria-hidden": "true" }, shape("line", { x1: 0, x2: 24, y1: 4, y2: 4, stroke: colour(place), "stroke-width": 3, "stroke-dasharray": dash(place) }));
