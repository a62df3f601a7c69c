// Scenes with boxes on plain canvases: which scene, whose boxes and how sure they must be is chosen above each.
(() => {
  "use strict";
  const { colour, projection, brush, set } = window.fedstillTurning;
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const EDGES = [[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4], [0, 4], [1, 5], [2, 6], [3, 7]];
  const USUAL = { turn: 0.6, tilt: -0.75, near: 1 };
  const TEXT = 11.5; // pixels
  const MARGIN = 0.03; // metres around a box: noise carries points of its surface out
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  // The corners of a box, at the bottom and then above: centre, full sizes, heading.
  const corners = ([x, y, z, dx, dy, dz, heading]) => {
    const [cosine, sine] = [Math.cos(heading), Math.sin(heading)];
    return [-1, 1].flatMap((level) => [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([u, v]) => [
      x + (cosine * u * dx - sine * v * dy) / 2, y + (sine * u * dx + cosine * v * dy) / 2, z + level * dz / 2,
    ]));
  };

  // Of each point the smallest of these boxes that it lies in, by number, or -1; what lies on the floor is floor.
  const holders = (points, boxes, floor) => {
    const order = boxes.map(({ box }, number) => ({ box, number, volume: box[3] * box[4] * box[5] }))
      .sort((left, right) => left.volume - right.volume);
    const within = ([x, y, z], [cx, cy, cz, dx, dy, dz, heading]) => {
      const [cosine, sine] = [Math.cos(heading), Math.sin(heading)];
      const [u, v] = [cosine * (x - cx) + sine * (y - cy), cosine * (y - cy) - sine * (x - cx)];
      return Math.abs(u) <= dx / 2 + MARGIN && Math.abs(v) <= dy / 2 + MARGIN && Math.abs(z - cz) <= dz / 2 + MARGIN;
    };
    return points.map((point) => (point[2] < floor + 0.04 ? -1 : order.find(({ box }) => within(point, box))?.number ?? -1));
  };

  // The middle of a scene and its half sizes; few points that stray count for nothing.
  const bounds = (points) => {
    const ends = [0, 1, 2].map((way) => {
      const sorted = points.map((point) => point[way]).sort((left, right) => left - right);
      const stray = Math.floor(sorted.length / 200);
      return [sorted[stray], sorted[sorted.length - 1 - stray]];
    });
    return { middle: ends.map(([low, high]) => (low + high) / 2), half: ends.map(([low, high]) => (high - low) / 2 || 0.5) };
  };

  const start = (canvas) => {
    const id = canvas.dataset.figure;
    const { data: [trace], layout: { height } } = specs[id];
    const controls = document.getElementById(`controls-${id}`);
    const control = (name) => controls.querySelector(`[name="${name}"]`);
    const chosen = (name) => Number(control(name)?.value ?? 0);
    const layers = [...document.querySelectorAll(`.key button[data-figure="${id}"]`)];
    const hidden = (layer) => layers.some((button) =>
      button.getAttribute("aria-pressed") === "false" && button.dataset.traces.split(" ").includes(String(layer)));
    const view = { ...USUAL };
    const sizes = trace.scenes.map((scene) => bounds(scene.points));

    // Boxes to draw: what a box is of, its look, and its label. What is right is not said again of the true box.
    const boxes = (scene, least) => {
      const found = trace.runs[chosen("run")].found[chosen("scene")].filter((one) => one.score >= least);
      const seen = new Set(found.map((one) => one.owner).filter((owner) => owner !== null));
      const name = (one) => trace.classes[one.class];
      return [
        ...scene.truth.map((one, number) => ({ ...one, label: seen.has(number) ? "" : `${name(one)}, missed` })),
        ...found.map((one) => ({ ...one, label: `${name(one)} ${one.score.toFixed(2)}` })),
      ].filter((one) => !hidden(one.look));
    };

    const picture = () => {
      const scene = trace.scenes[chosen("scene")];
      const { middle, half } = sizes[chosen("scene")];
      const across = Math.hypot(half[0], half[1]);
      const up = across * Math.sin(-USUAL.tilt) + half[2] * Math.cos(USUAL.tilt);
      const width = canvas.clientWidth;
      const scale = view.near * Math.min(0.48 * width / across, 0.47 * height / up);
      const turned = projection(view);
      const place = (point) => {
        const [x, y, away] = turned(point.map((value, way) => value - middle[way]));
        return [width / 2 + scale * x, height / 2 + scale * y, away / across];
      };
      const size = Math.max(1, Math.min(2.2, 70 / Math.sqrt(scene.points.length))) * Math.sqrt(view.near);
      const shown = boxes(scene, chosen("least") / 100);
      // Points of things stand out from those of the room: where the truth is known, of the things that there are.
      const things = scene.truth.length ? scene.truth : shown;
      const owner = holders(scene.points, things, middle[2] - half[2]);
      const inks = things.map((one) => colour(scene.truth.length ? "var(--ink)" : trace.looks[one.look].colour));
      const room = colour(trace.ground);
      const dots = hidden(trace.dots) ? [] : scene.points.map((point, number) => {
        const [x, y, away] = place(point);
        const thing = owner[number] >= 0;
        return { x, y, away, radius: size, fill: thing ? inks[owner[number]] : room, shade: thing ? 0.85 : 0.4 };
      }).sort((left, right) => right.away - left.away);
      const lines = [], labels = [];
      for (const box of shown) {
        const ends = corners(box.box).map(place);
        const look = trace.looks[box.look];
        lines.push({ ends, stroke: colour(look.colour), dash: look.dash, width: look.width });
        if (box.label) {
          const top = ends.slice(4);
          labels.push({
            text: box.label, fill: colour(look.colour),
            x: top.reduce((sum, end) => sum + end[0], 0) / 4, y: Math.min(...top.map((end) => end[1])) - 4,
          });
        }
      }
      return { dots, lines, labels: apart(labels) };
    };

    // Labels one below the other where they would cover each other.
    const apart = (labels) => {
      const put = [];
      for (const label of labels.sort((left, right) => left.y - right.y)) {
        const wide = label.text.length * TEXT * 0.28;
        label.x = Math.max(wide + 2, Math.min(canvas.clientWidth - wide - 2, label.x));
        label.y = Math.max(TEXT + 1, label.y);
        const near = (other) => Math.abs(other.x - label.x) < other.wide + wide && Math.abs(other.y - label.y) < TEXT + 1;
        while (put.some(near)) label.y += 2;
        put.push({ ...label, wide });
      }
      return put.filter((label) => label.y < height - 2);
    };

    const font = () => `600 ${TEXT}px ${getComputedStyle(document.body).fontFamily}`;
    const draw = () => {
      const made = brush(canvas, height);
      const { dots, lines, labels } = picture();
      for (const dot of dots) {
        made.globalAlpha = dot.shade;
        made.fillStyle = dot.fill;
        made.fillRect(dot.x - dot.radius, dot.y - dot.radius, 2 * dot.radius, 2 * dot.radius);
      }
      made.globalAlpha = 1;
      for (const line of lines) {
        made.strokeStyle = line.stroke;
        made.lineWidth = line.width;
        made.setLineDash(line.dash ? line.dash.split(" ").map(Number) : []);
        made.beginPath();
        for (const [from, to] of EDGES) {
          made.moveTo(line.ends[from][0], line.ends[from][1]);
          made.lineTo(line.ends[to][0], line.ends[to][1]);
        }
        made.stroke();
      }
      made.setLineDash([]);
      made.font = font();
      made.textAlign = "center";
      made.lineJoin = "round";
      for (const label of labels) {
        made.strokeStyle = colour("var(--card)");
        made.lineWidth = 3.5;
        made.strokeText(label.text, label.x, label.y);
        made.fillStyle = label.fill;
        made.fillText(label.text, label.x, label.y);
      }
      canvas.dataset.boxes = String(lines.length);
    };
    const elements = () => {
      const { dots, lines, labels } = picture();
      const at = (value) => value.toFixed(1);
      const path = (line) => EDGES.map(([from, to]) => `M${line.ends[from].slice(0, 2).map(at)}L${line.ends[to].slice(0, 2).map(at)}`).join("");
      return [
        ...dots.map((dot) => `<circle cx="${at(dot.x)}" cy="${at(dot.y)}" r="${dot.radius.toFixed(2)}" fill="${dot.fill}" opacity="${dot.shade.toFixed(2)}"/>`),
        ...lines.map((line) => `<path d="${path(line)}" fill="none" stroke="${line.stroke}" stroke-width="${line.width}" stroke-dasharray="${line.dash}"/>`),
        ...labels.map((label) => `<text x="${at(label.x)}" y="${at(label.y)}" text-anchor="middle" font-family="sans-serif" font-size="${TEXT}" font-weight="600" fill="${label.fill}" stroke="${colour("var(--card)")}" stroke-width="3" paint-order="stroke">${escaped(label.text)}</text>`),
      ];
    };
    const show = set(canvas, view, draw, elements);
    const tell = () => {
      const output = controls.querySelector("output");
      if (output) output.value = (chosen("least") / 100).toFixed(2);
      show();
    };
    controls.addEventListener("input", tell);
    layers.forEach((button) => button.addEventListener("click", show));
    controls.hidden = false;
    tell();
  };
  document.querySelectorAll("canvas.scene").forEach(start);
})();
