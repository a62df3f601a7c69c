// Tables that sort by a click on a column's name, show the lines with certain words, and save themselves as CSV or LaTeX.
(() => {
  "use strict";
  const cells = (row) => [...row.cells];
  const rows = (table) => [...table.tBodies[0].rows];
  const heads = (table) => [...table.tHead.rows[0].cells];

  // Numbers by size, text by the alphabet; what is missing goes last, whichever way.
  const compare = (left, right, down) => {
    if (left === right) return 0;
    if (left === "") return 1;
    if (right === "") return -1;
    const numbers = [Number(left), Number(right)];
    const order = numbers.some(Number.isNaN) ? left.localeCompare(right, "en", { numeric: true }) : numbers[0] - numbers[1];
    return down ? -order : order;
  };

  const sort = (table, column) => {
    const head = heads(table)[column];
    const before = head.getAttribute("aria-sort");
    // The first click on numbers shows the largest first, which is what one looks for.
    const down = before ? before === "ascending" : head.classList.contains("right");
    heads(table).forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value;
    table.tBodies[0].append(...rows(table).sort((left, right) => compare(value(left), value(right), down)));
  };

  const csv = (table) => {
    // A spreadsheet takes text that begins like this for a formula, which may do something; a number is none.
    const harmless = (text) => (/^\s*[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text);
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = [heads(table).map((head) => head.dataset.key), ...rows(table).map((row) => cells(row).map((cell) => cell.dataset.value))];
    return lines.map((line) => line.map(harmless).map(quoted).join(",")).join("\r\n") + "\r\n";
  };

  const LATEX = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "%": "\\%", "&": "\\&", "$": "\\$", "#": "\\#", "_": "\\_",
    "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "\u00a0": "~", "±": "$\\pm$", "–": "--", "−": "$-$",
    "▲": "$\\blacktriangle$", "▼": "$\\blacktriangledown$", "■": "$\\blacksquare$", "◆": "$\\blacklozenge$",
    "●": "$\\bullet$", "○": "$\\circ$", "×": "$\\times$",
  };
  const SPECIAL = new RegExp(`[${Object.keys(LATEX).map((letter) => `\\u{${letter.codePointAt(0).toString(16)}}`).join("")}]`, "gu");
  const latex = (table) => {
    const escaped = (cell) => cell.textContent.trim().replace(SPECIAL, (letter) => LATEX[letter]);
    const line = (row) => `  ${cells(row).map(escaped).join(" & ")} \\\\`;
    const columns = heads(table).map((head) => (head.classList.contains("right") ? "r" : "l")).join("");
    return [
      "% needs \\usepackage{booktabs,amssymb}", `\\begin{tabular}{${columns}}`, "  \\toprule", line(table.tHead.rows[0]), "  \\midrule",
      ...rows(table).map(line), "  \\bottomrule", "\\end{tabular}", "",
    ].join("\n");
  };

  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  document.querySelectorAll("table").forEach((table) => {
    heads(table).forEach((head, column) => head.firstElementChild.addEventListener("click", () => sort(table, column)));
  });
  document.querySelectorAll(".tools[data-for]").forEach((tools) => {
    const table = document.getElementById(tools.dataset.for);
    const name = table.dataset.name;
    tools.querySelector("[data-save=csv]").addEventListener("click", () => save(`${name}.csv`, "text/csv", csv(table)));
    tools.querySelector("[data-save=tex]").addEventListener("click", () => save(`${name}.tex`, "text/x-tex", latex(table)));
    tools.hidden = false;
  });
  // Every word must occur somewhere in a line; a word with a minus before it must not.
  const search = (table, text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = (line, word) => (word.length > 1 && word.startsWith("-") ? !line.includes(word.slice(1)) : line.includes(word));
    rows(table).forEach((row) => {
      const line = cells(row).map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => found(line, word));
    });
    return rows(table).filter((row) => !row.hidden).length;
  };
  document.querySelectorAll(".search[data-for]").forEach((box) => {
    const table = document.getElementById(box.dataset.for);
    const [field, said] = [box.querySelector("input"), box.querySelector("output")];
    field.addEventListener("input", () => {
      const [shown, all] = [search(table, field.value), rows(table).length];
      said.textContent = shown === all ? `${all} lines` : `${shown} of ${all} lines`;
    });
    box.hidden = false;
  });
  // A shade at the edge says that there is more to the right.
  document.querySelectorAll(".scroll.wide, .frame").forEach((box) => {
    // Of a figure, what counts is the width that it asked for: while it is being drawn it may be wider than that.
    const width = () => Number.parseFloat(box.firstElementChild.style.minWidth) || box.scrollWidth;
    const hint = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < width() - 1);
    box.addEventListener("scroll", hint, { passive: true });
    addEventListener("resize", hint);
    hint();
  });
  window.fedstillTables = { csv, latex, search };
})();
