// Draws the figures in the page's own colours, again whenever those change (dark, light, paper).
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const root = document.documentElement;
  const PAPER = { width: 640, shrink: 0.75 }; // what fits a printed page, two figures to each

  const style = {
    height: 320,
    margin: { l: 62, r: 14, t: 12, b: 48 },
    font: { family: "var(--text)", size: 12.5, color: "var(--quiet)" },
    paper_bgcolor: "var(--card)",
    plot_bgcolor: "var(--card)",
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: "var(--card)", bordercolor: "var(--line)", font: { color: "var(--ink)" }, align: "left" },
  };
  const axis = {
    gridcolor: "var(--grid)", zerolinecolor: "var(--grid)", linecolor: "var(--line)", zeroline: false,
    ticks: "", automargin: true, title: { standoff: 10, font: { size: 12.5 } },
  };

  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  const merged = (base, over) => {
    const result = { ...base };
    for (const [key, value] of Object.entries(over)) {
      result[key] = isObject(value) && isObject(base[key]) ? merged(base[key], value) : value;
    }
    return result;
  };

  // The spec with every `var(--name)` replaced by what the style sheet says now.
  const painted = (value, colours) => {
    if (Array.isArray(value)) return value.map((each) => painted(each, colours));
    if (isObject(value)) {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, painted(each, colours)]));
    }
    const name = typeof value === "string" && value.match(/^var\((--[\w-]+)\)$/);
    return name ? colours.getPropertyValue(name[1]).trim() : value;
  };

  const hidden = new Set(); // "figure trace", by the keys' buttons

  const draw = (plot) => {
    const id = plot.dataset.figure;
    const axes = Object.keys(specs[id].layout).filter((name) => /^[xy]axis/.test(name));
    const layout = merged(merged(style, Object.fromEntries(axes.map((name) => [name, axis]))), specs[id].layout);
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
    if (root.dataset.paper) {
      layout.width = PAPER.width;
      layout.height *= PAPER.shrink;
    }
    const data = specs[id].data.map((trace, number) => ({ ...trace, visible: !hidden.has(`${id} ${number}`) }));
    const colours = getComputedStyle(root);
    return Plotly.react(plot, painted(data, colours), painted(layout, colours), {
      displayModeBar: false, responsive: true, displaylogo: false,
    });
  };
  const plots = [...document.querySelectorAll(".plot")];
  const drawAll = () => plots.forEach(draw);

  document.querySelectorAll(".key button").forEach((button) => {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const trace of button.dataset.traces.split(" ")) {
        const name = `${button.dataset.figure} ${trace}`;
        if (shown) hidden.delete(name); else hidden.add(name);
      }
      const plot = document.getElementById(`figure-${button.dataset.figure}`);
      if (plot.classList.contains("plot")) draw(plot); // a scene draws itself
    });
  });

  document.querySelectorAll("[data-format]").forEach((button) => {
    button.addEventListener("click", () => {
      const plot = document.getElementById(`figure-${button.dataset.figure}`);
      if (!plot.classList.contains("plot")) return; // a cloud saves itself
      const { width, height } = plot._fullLayout;
      const format = button.dataset.format;
      Plotly.downloadImage(plot, { format, width, height, scale: format === "png" ? 3 : 1, filename: button.dataset.figure });
    });
    button.closest(".tools").hidden = false;
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { root.dataset.paper = "yes"; drawAll(); });
  addEventListener("afterprint", () => { delete root.dataset.paper; drawAll(); });
  drawAll();
})();
