// The 3-D viewer: point clouds, and scenes with boxes, turned by mouse, finger and arrow keys on plain canvases, without any
// 3-D hardware. Which scene, whose boxes and how sure they must be is chosen above a canvas.
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const TURN = 0.12, NEARER = 1.12;
  const KEYS = {
    ArrowLeft: [-TURN, 0], ArrowRight: [TURN, 0], ArrowUp: [0, TURN], ArrowDown: [0, -TURN],
    "+": [0, 0, NEARER], "=": [0, 0, NEARER], "-": [0, 0, 1 / NEARER],
  };

  const colour = (name) => {
    const found = name.match(/^var\((--[\w-]+)\)$/);
    return found ? getComputedStyle(document.documentElement).getPropertyValue(found[1]).trim() : name;
  };

  // Where points come to lie: [x to the right, y downwards, away from the eye].
  const projection = (view) => {
    const [sideways, tilt] = [view.turn, view.tilt].map((angle) => [Math.cos(angle), Math.sin(angle)]);
    return ([x, y, z]) => {
      const across = sideways[0] * x - sideways[1] * y;
      const away = sideways[1] * x + sideways[0] * y;
      return [across, tilt[1] * away - tilt[0] * z, tilt[0] * away + tilt[1] * z];
    };
  };

  // A brush that draws in the page's pixels, on a canvas that was wiped.
  const brush = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = height * ratio;
    const made = canvas.getContext("2d");
    made.scale(ratio, ratio);
    return made;
  };

  const save = (link, name) => Object.assign(document.createElement("a"), { href: link, download: name }).click();

  const EDGES = [[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4], [0, 4], [1, 5], [2, 6], [3, 7]];
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

  // Draws `picture()` whenever something changes: dots (farthest first), then boxes, then labels.
  const mount = (canvas, view, height, picture) => {
    const draw = () => {
      const made = brush(canvas, height);
      const { dots, lines, labels } = picture();
      for (const dot of dots) {
        made.globalAlpha = dot.shade;
        made.fillStyle = dot.fill;
        if (dot.square) {
          made.fillRect(dot.x - dot.radius, dot.y - dot.radius, 2 * dot.radius, 2 * dot.radius);
        } else {
          made.beginPath();
          made.arc(dot.x, dot.y, dot.radius, 0, 7);
          made.fill();
        }
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
      made.font = `600 ${TEXT}px ${getComputedStyle(document.body).fontFamily}`;
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
    const svg = () => {
      const { dots, lines, labels } = picture();
      const at = (value) => value.toFixed(1);
      const path = (line) => EDGES.map(([from, to]) => `M${line.ends[from].slice(0, 2).map(at)}L${line.ends[to].slice(0, 2).map(at)}`).join("");
      return [
        ...dots.map((dot) => `<circle cx="${at(dot.x)}" cy="${at(dot.y)}" r="${dot.radius.toFixed(2)}" fill="${dot.fill}" opacity="${dot.shade.toFixed(2)}"/>`),
        ...lines.map((line) => `<path d="${path(line)}" fill="none" stroke="${line.stroke}" stroke-width="${line.width}" stroke-dasharray="${line.dash}"/>`),
        ...labels.map((label) => `<text x="${at(label.x)}" y="${at(label.y)}" text-anchor="middle" font-family="sans-serif" font-size="${TEXT}" font-weight="600" fill="${label.fill}" stroke="${colour("var(--card)")}" stroke-width="3" paint-order="stroke">${escaped(label.text)}</text>`),
      ];
    };
    const show = () => {
      draw();
      canvas.dataset.view = `${view.turn.toFixed(2)} ${view.tilt.toFixed(2)} ${view.near.toFixed(2)}`;
    };
    const move = (turn, tilt, near = 1) => {
      view.turn += turn;
      view.tilt = Math.max(-1.5, Math.min(1.5, view.tilt + tilt));
      view.near = Math.max(0.4, Math.min(6, view.near * near));
      show();
    };
    canvas.addEventListener("keydown", (event) => {
      if (!KEYS[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      move(...KEYS[event.key]);
    });
    canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
    canvas.addEventListener("pointermove", (event) => {
      // A finger that moves up or down scrolls the page, so it turns sideways only.
      if (event.buttons) move(event.movementX * 0.01, event.pointerType === "mouse" ? event.movementY * -0.01 : 0);
    });
    document.querySelectorAll(`[data-format][data-figure="${canvas.dataset.figure}"]`).forEach((button) => {
      button.addEventListener("click", () => {
        const name = `${canvas.dataset.figure}.${button.dataset.format}`;
        if (button.dataset.format === "png") return save(canvas.toDataURL("image/png"), name);
        const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${canvas.clientWidth}" height="${height}">${svg().join("")}</svg>`;
        return save(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`, name);
      });
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    addEventListener("resize", show);
    show();
    return show;
  };

  // A cloud in the unit sphere. Points are the fainter the farther they are, unless their colours have light in them: then
  // they have a radius, in units of space, with which they close to a surface.
  const cloud = (canvas) => {
    const { data: [trace], layout: { height } } = specs[canvas.dataset.figure];
    const view = { turn: 0.6, tilt: 0.35, near: 1, ...trace.view };
    const picture = () => {
      const scale = view.near * 0.46 * Math.min(canvas.clientWidth, height);
      const size = Math.max(1.4, 52 / Math.sqrt(trace.points.length)) * Math.sqrt(view.near);
      const colours = trace.colours.map(colour);
      const place = projection(view);
      const dots = trace.points.map((point, number) => {
        const [x, y, away] = place(point);
        const depth = (1 + away) / 2;
        const look = trace.radius ? { radius: scale * trace.radius, shade: 1 } : { radius: size * (1.25 - 0.5 * depth), shade: 1 - 0.6 * depth };
        return {
          x: canvas.clientWidth / 2 + scale * x, y: height / 2 + scale * y, depth, fill: colours[trace.labels[number]], ...look,
        };
      }).sort((left, right) => right.depth - left.depth);
      return { dots, lines: [], labels: [] };
    };
    mount(canvas, view, height, picture);
  };

  const scene = (canvas) => {
    const usual = { turn: 0.6, tilt: -0.75, near: 1 };
    const id = canvas.dataset.figure;
    const { data: [trace], layout: { height } } = specs[id];
    const controls = document.getElementById(`controls-${id}`);
    const control = (name) => controls.querySelector(`[name="${name}"]`);
    const chosen = (name) => Number(control(name)?.value ?? 0);
    const layers = [...document.querySelectorAll(`.key button[data-figure="${id}"]`)];
    const hidden = (layer) => layers.some((button) =>
      button.getAttribute("aria-pressed") === "false" && button.dataset.traces.split(" ").includes(String(layer)));
    const view = { ...usual };
    const searched = trace.runs.length > 0;
    const sizes = trace.scenes.map((scene) => bounds(scene.points));

    // Boxes to draw: what a box is of, its look, and its label. What is right is not said again of the true box.
    const boxes = (scene, least) => {
      const found = (trace.runs[chosen("run")]?.found[chosen("scene")] ?? []).filter((one) => one.score >= least);
      const seen = new Set(found.map((one) => one.owner).filter((owner) => owner !== null));
      const name = (one) => trace.classes[one.class];
      return [
        ...scene.truth.map((one, number) => ({ ...one, label: seen.has(number) ? "" : searched ? `${name(one)}, missed` : name(one) })),
        ...found.map((one) => ({ ...one, label: `${name(one)} ${one.score.toFixed(2)}` })),
      ].filter((one) => !hidden(one.look));
    };

    const picture = () => {
      const scene = trace.scenes[chosen("scene")];
      const { middle, half } = sizes[chosen("scene")];
      const across = Math.hypot(half[0], half[1]);
      const up = across * Math.sin(-usual.tilt) + half[2] * Math.cos(usual.tilt);
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
      const judged = searched && scene.truth.length > 0;
      const things = scene.truth.length ? scene.truth : shown;
      const owner = holders(scene.points, things, middle[2] - half[2]);
      const inks = things.map((one) => colour(judged ? "var(--ink)" : trace.looks[one.look].colour));
      const room = colour(trace.ground);
      const dots = hidden(trace.dots) ? [] : scene.points.map((point, number) => {
        const [x, y, away] = place(point);
        const thing = owner[number] >= 0;
        return { x, y, away, radius: size, square: true, fill: thing ? inks[owner[number]] : room, shade: thing ? 0.85 : 0.4 };
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

    const show = mount(canvas, view, height, picture);
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
  document.querySelectorAll("canvas.cloud").forEach(cloud);
  document.querySelectorAll("canvas.scene").forEach(scene);
})();
