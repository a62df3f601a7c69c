// Numbers and elements as readers expect them. All text goes in as text, never as markup.

const DASH = "–";
const SVG = "http://www.w3.org/2000/svg";

export function element(name, given = {}, ...inside) {
  const made = document.createElement(name);
  return filled(made, given, inside);
}

export function shape(name, given = {}, ...inside) {
  return filled(document.createElementNS(SVG, name), given, inside);
}

function filled(made, given, inside) {
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...inside.filter((one) => one !== null && one !== undefined && one !== ""));
  return made;
}

export const percent = (value, digits = 2) =>
  typeof value === "number" ? `${(100 * value).toFixed(digits)}\u00a0%` : DASH;

export function duration(seconds) {
  if (typeof seconds !== "number") return DASH;
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))}\u00a0s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes}\u00a0min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}\u00a0h ${minutes % 60}\u00a0min`;
  return `${Math.floor(hours / 24)}\u00a0days ${hours % 24}\u00a0h`;
}

export const ago = (now, then) => (now - then < 5 ? "just now" : `${duration(now - then)} ago`);

export const counted = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let place = 0;
  while (place < 3 && count >= 1024) { count /= 1024; place += 1; }
  return `${count.toFixed(place ? 1 : 0)}\u00a0${units[place]}`;
}

// Which metrics are shares, to be shown in per cent.
const OTHERS = /loss|mse|non_finite|non finite/;
export const isShare = (name, values) => !OTHERS.test(name) && values.every((one) => one === null || (one >= 0 && one <= 1));

const NAMES = { auc: "AUC", f1: "F1" };
export const spoken = (name) => NAMES[name] ?? name.replaceAll("_", " ");

export function shown(value) {
  if (value === null || value === undefined || value === "" || value === "[]") return DASH;
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(4)));
  return String(value);
}
