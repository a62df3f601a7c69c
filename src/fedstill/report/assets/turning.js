// What everything that turns on a plain canvas shares: by mouse, finger and arrow keys, without any 3D hardware.
window.fedstillTurning = (() => {
  "use strict";
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

  // Draws whenever something changes; `svg` gives the same picture's elements.
  const set = (canvas, view, draw, svg) => {
    const height = Number(canvas.dataset.height);
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
  return { colour, projection, brush, set };
})();
