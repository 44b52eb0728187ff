"use strict";
// Draws times over two knobs as a surface that can be turned, with the path of a search on it.
(() => {
  const canvas = document.getElementById("surface");
  const output = document.getElementById("surface-point");
  const data = JSON.parse(document.getElementById("surface-data").textContent);
  const rows = data.ratios.length, columns = data.ratios[0].length;
  const known = data.ratios.flat().filter((ratio) => ratio !== null);
  const top = Math.log(Math.max(1.05, ...known));
  const scale = [[253, 231, 37], [94, 201, 98], [33, 145, 140], [59, 82, 139], [68, 1, 84]];
  let yaw = 0.7, pitch = 0.6, points = [];

  const height = (ratio) => Math.log(ratio) / top;
  const colour = (level) => {
    const place = Math.min(0.999, Math.max(0, level)) * (scale.length - 1), index = Math.floor(place);
    return `rgb(${scale[index].map((from, k) => Math.round(from + (place - index) * (scale[index + 1][k] - from)))})`;
  };

  function projected(x, y, z) {
    const a = columns > 1 ? x / (columns - 1) - 0.5 : 0, b = rows > 1 ? y / (rows - 1) - 0.5 : 0;
    const right = a * Math.cos(yaw) - b * Math.sin(yaw), depth = a * Math.sin(yaw) + b * Math.cos(yaw);
    const size = Math.min(canvas.clientWidth, 1.5 * canvas.clientHeight) * 0.62;
    return {
      x: canvas.clientWidth / 2 + size * right,
      y: canvas.clientHeight / 2 - size * (-depth * Math.sin(pitch) + (z - 0.5) * 0.6 * Math.cos(pitch)),
      depth,
    };
  }

  function at(x, y) {
    const ratio = data.ratios[y][x];
    return ratio === null ? null : projected(x, y, height(ratio));
  }

  function draw() {
    const density = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.width = canvas.clientWidth * density;
    canvas.height = canvas.clientHeight * density;
    pen.setTransform(density, 0, 0, density, 0, 0);
    const text = getComputedStyle(canvas).color;
    const faces = [];
    points = [];
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++) {
        const here = at(x, y);
        if (here) points.push({ ...here, column: x, row: y });
        if (x + 1 < columns && y + 1 < rows) {
          const around = [[x, y], [x + 1, y], [x + 1, y + 1], [x, y + 1]];
          const corners = around.map(([i, j]) => at(i, j));
          if (corners.every(Boolean)) {
            const level = around.reduce((sum, [i, j]) => sum + height(data.ratios[j][i]), 0) / 4;
            faces.push({ corners, level, depth: corners.reduce((sum, corner) => sum + corner.depth, 0) });
          }
        }
      }
    }
    faces.sort((one, other) => one.depth - other.depth);
    for (const face of faces) {
      pen.beginPath();
      face.corners.forEach((corner, k) => (k ? pen.lineTo(corner.x, corner.y) : pen.moveTo(corner.x, corner.y)));
      pen.closePath();
      pen.fillStyle = colour(face.level);
      pen.fill();
      pen.strokeStyle = "rgba(0, 0, 0, 0.25)";
      pen.lineWidth = 0.6;
      pen.stroke();
    }
    if (!faces.length) points.forEach((point) => dot(pen, point, 4, colour(0.5)));
    data.evaluated.map(([x, y]) => at(x, y)).filter(Boolean).forEach((point) => dot(pen, point, 2.2, "#ffffff"));
    const path = data.path.map(([x, y]) => at(x, y)).filter(Boolean);
    for (const [width, style] of [[5, "#000000"], [2.5, "#ffffff"]]) {
      pen.beginPath();
      path.forEach((point, k) => (k ? pen.lineTo(point.x, point.y) : pen.moveTo(point.x, point.y)));
      pen.strokeStyle = style;
      pen.lineWidth = width;
      pen.stroke();
    }
    const best = at(...data.best);
    if (best) dot(pen, best, 6, "#d55e00");
    pen.fillStyle = text;
    pen.font = "13px system-ui, sans-serif";
    pen.textAlign = "center";
    const first = projected((columns - 1) / 2, -0.12 * (rows - 1), 0), second = projected(-0.12 * (columns - 1), (rows - 1) / 2, 0);
    pen.fillText(`${data.knobs[0]} →`, first.x, first.y);
    pen.fillText(`${data.knobs[1]} →`, second.x, second.y);
  }

  function dot(pen, point, radius, style) {
    pen.beginPath();
    pen.arc(point.x, point.y, radius, 0, 2 * Math.PI);
    pen.fillStyle = style;
    pen.fill();
    pen.strokeStyle = "#000000";
    pen.lineWidth = 1;
    pen.stroke();
  }

  function turn(right, up) {
    yaw += right;
    pitch = Math.min(1.5, Math.max(0.05, pitch + up));
    draw();
  }

  function tell(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const near = points.reduce((best, point) => {
      const distance = Math.hypot(point.x - x, point.y - y);
      return distance < best.distance ? { distance, point } : best;
    }, { distance: 25, point: null }).point;
    output.textContent = near
      ? `${data.knobs[0]}=${data.values[0][near.column]}, ${data.knobs[1]}=${data.values[1][near.row]}: ` +
        `${data.ratios[near.row][near.column].toFixed(3)} times the best`
      : "";
  }

  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) turn(event.movementX / 150, event.movementY / 150);
    else tell(event);
  });
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
    if (step) {
      event.preventDefault();
      turn(...step);
    }
  });
  new ResizeObserver(draw).observe(canvas);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
