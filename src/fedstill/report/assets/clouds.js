// Point clouds on plain canvases: they turn by mouse, finger and arrow keys, and need no 3D hardware.
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const TURN = 0.12, NEARER = 1.12;
  const colour = (name) => {
    const found = name.match(/^var\((--[\w-]+)\)$/);
    return found ? getComputedStyle(document.documentElement).getPropertyValue(found[1]).trim() : name;
  };

  // Where each point comes to lie, farthest first: [x, y, depth from 0 to 1, label].
  const projected = (trace, view) => {
    const [sideways, tilt] = [view.turn, view.tilt].map((angle) => [Math.cos(angle), Math.sin(angle)]);
    return trace.points.map(([x, y, z], number) => {
      const across = sideways[0] * x - sideways[1] * y;
      const away = sideways[1] * x + sideways[0] * y;
      return [across, tilt[1] * away - tilt[0] * z, (1 + tilt[0] * away + tilt[1] * z) / 2, trace.labels[number]];
    }).sort((left, right) => right[2] - left[2]);
  };

  const save = (link, name) => Object.assign(document.createElement("a"), { href: link, download: name }).click();

  const set = (canvas) => {
    const { data: [trace], layout } = specs[canvas.dataset.figure];
    const view = { turn: 0.6, tilt: 0.35, near: 1 };
    const dots = () => {
      const scale = view.near * 0.46 * Math.min(canvas.clientWidth, layout.height);
      const size = Math.max(1.4, 52 / Math.sqrt(trace.points.length)) * Math.sqrt(view.near);
      const colours = trace.colours.map(colour);
      return projected(trace, view).map(([x, y, depth, label]) => ({
        x: canvas.clientWidth / 2 + scale * x, y: layout.height / 2 + scale * y,
        radius: size * (1.25 - 0.5 * depth), shade: 1 - 0.6 * depth, fill: colours[label],
      }));
    };
    const draw = () => {
      const ratio = window.devicePixelRatio || 1;
      canvas.style.height = `${layout.height}px`;
      canvas.width = canvas.clientWidth * ratio;
      canvas.height = layout.height * ratio;
      const brush = canvas.getContext("2d");
      brush.scale(ratio, ratio);
      for (const dot of dots()) {
        brush.globalAlpha = dot.shade;
        brush.fillStyle = dot.fill;
        brush.beginPath();
        brush.arc(dot.x, dot.y, dot.radius, 0, 7);
        brush.fill();
      }
      canvas.dataset.view = `${view.turn.toFixed(2)} ${view.tilt.toFixed(2)} ${view.near.toFixed(2)}`;
    };
    const move = (turn, tilt, near = 1) => {
      view.turn += turn;
      view.tilt = Math.max(-1.5, Math.min(1.5, view.tilt + tilt));
      view.near = Math.max(0.4, Math.min(6, view.near * near));
      draw();
    };
    const keys = {
      ArrowLeft: [-TURN, 0], ArrowRight: [TURN, 0], ArrowUp: [0, TURN], ArrowDown: [0, -TURN],
      "+": [0, 0, NEARER], "=": [0, 0, NEARER], "-": [0, 0, 1 / NEARER],
    };
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      move(...keys[event.key]);
    });
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("pointermove", (event) => {
      // A finger that moves up or down scrolls the page, so it turns the cloud sideways only.
      if (event.buttons) move(event.movementX * 0.01, event.pointerType === "mouse" ? event.movementY * 0.01 : 0);
    });
    document.querySelectorAll(`[data-format][data-figure="${canvas.dataset.figure}"]`).forEach((button) => {
      button.addEventListener("click", () => {
        const name = `${canvas.dataset.figure}.${button.dataset.format}`;
        if (button.dataset.format === "png") return save(canvas.toDataURL("image/png"), name);
        const circles = dots().map((dot) =>
          `<circle cx="${dot.x.toFixed(1)}" cy="${dot.y.toFixed(1)}" r="${dot.radius.toFixed(2)}" fill="${dot.fill}" opacity="${dot.shade.toFixed(2)}"/>`);
        const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${canvas.clientWidth}" height="${layout.height}">${circles.join("")}</svg>`;
        return save(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`, name);
      });
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    addEventListener("resize", draw);
    draw();
  };
  document.querySelectorAll("canvas.cloud").forEach(set);
})();
