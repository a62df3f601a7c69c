// Point clouds on plain canvases.
(() => {
  "use strict";
  const { colour, projection, brush, set } = window.fedstillTurning;
  const specs = JSON.parse(document.getElementById("specs").textContent);

  const start = (canvas) => {
    const { data: [trace], layout: { height } } = specs[canvas.dataset.figure];
    const view = { turn: 0.6, tilt: 0.35, near: 1 };
    // Where each point comes to lie, farthest first.
    const dots = () => {
      const scale = view.near * 0.46 * Math.min(canvas.clientWidth, height);
      const size = Math.max(1.4, 52 / Math.sqrt(trace.points.length)) * Math.sqrt(view.near);
      const colours = trace.colours.map(colour);
      const place = projection(view);
      return trace.points.map((point, number) => {
        const [x, y, away] = place(point);
        const depth = (1 + away) / 2;
        return {
          x: canvas.clientWidth / 2 + scale * x, y: height / 2 + scale * y, depth,
          radius: size * (1.25 - 0.5 * depth), shade: 1 - 0.6 * depth, fill: colours[trace.labels[number]],
        };
      }).sort((left, right) => right.depth - left.depth);
    };
    const draw = () => {
      const made = brush(canvas, height);
      for (const dot of dots()) {
        made.globalAlpha = dot.shade;
        made.fillStyle = dot.fill;
        made.beginPath();
        made.arc(dot.x, dot.y, dot.radius, 0, 7);
        made.fill();
      }
    };
    const circles = () => dots().map((dot) =>
      `<circle cx="${dot.x.toFixed(1)}" cy="${dot.y.toFixed(1)}" r="${dot.radius.toFixed(2)}" fill="${dot.fill}" opacity="${dot.shade.toFixed(2)}"/>`);
    set(canvas, view, draw, circles);
  };
  document.querySelectorAll("canvas.cloud").forEach(start);
})();
