// The form is a command line: its fields are the flags, the address holds them, and Python answers in a worker.
(() => {
  const here = document.currentScript.src;
  const form = document.querySelector("form.calculator");
  const command = document.querySelector(".calculator-command");
  const pictures = document.querySelector(".calculator-pictures");
  const report = document.querySelector(".calculator-report");
  const name = form.dataset.command;
  const flags = [...form.querySelectorAll("[name^='--']")];
  const sliders = [...form.querySelectorAll("[data-flag]")];
  const slider = (flag) => sliders.find((slider) => slider.dataset.flag === flag);
  let worker, next, busy = false;

  function say(answer) {
    report.textContent = answer.text;
    pictures.replaceChildren(...answer.pictures.map(draw));
  }

  function ask(request) {
    next = request;
    if (busy) return;
    busy = true;
    report.ariaBusy = "true";
    report.textContent ||= "Loading Python (13 MB, the first time) ...";
    worker.postMessage(next);
    next = null;
  }

  function answered({ data }) {
    busy = false;
    if (next) return ask(next); // what was asked meanwhile; older answers are not shown
    for (const [flag, last] of Object.entries(data.last ?? {})) shorten(slider(flag), last);
    say(data);
    report.ariaBusy = "false";
  }

  function start() {
    const failed = () => say({ text: "Python could not be loaded. From a disk it has to be served:\n  python -m http.server -d build/site", pictures: [] });
    try {
      worker = new Worker(new URL("python.js", here), { type: "module" });
      worker.onmessage = answered;
      worker.onerror = failed;
    } catch {
      failed();
    }
  }

  // plan and predict
  const quoted = (word) => (/^[\w.,:%+=@/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  const value = (field) => (field.type === "checkbox" ? (field.checked ? "on" : "") : field.value.trim());

  // "--params -3B" would be two flags to the command.
  function given() {
    const words = (name, text) => (text.startsWith("-") ? [`${name}=${text}`] : [name, text]);
    return flags.flatMap((field) => (!value(field) ? [] : field.type === "checkbox" ? [field.name] : words(field.name, value(field))));
  }

  function readAddress() {
    const address = new URLSearchParams(location.hash.slice(1));
    if (!address.size) return;
    for (const field of flags) {
      const text = address.get(field.name.slice(2)) ?? "";
      if (field.type === "checkbox") field.checked = text !== "";
      else field.value = text;
    }
    const details = form.querySelector("details");
    if (details) details.open = flags.some((field) => field.closest("details") && value(field));
  }

  function writeAddress() {
    const set = flags.filter(value).map((field) => [field.name.slice(2), value(field)]);
    history.replaceState(null, "", `#${new URLSearchParams(set)}`);
  }

  function compute() {
    for (const slider of sliders) {
      const place = slider.dataset.values.split(" ").indexOf(form.elements[slider.dataset.flag].value);
      if (place >= 0) slider.value = place;
    }
    const words = given();
    if (command) command.textContent = ["python -m ddp_course." + name, ...words.map(quoted)].join(" ");
    ask([name, words]);
  }

  // How far a slider reaches can depend on another one: a ring of fewer ranks has fewer steps.
  function shorten(slider, last) {
    slider.max = last;
    const field = form.elements[slider.dataset.flag];
    if (Number(field.value) <= last) return;
    field.value = last;
    writeAddress();
  }

  let playing;
  function play(button) {
    const slid = slider(button.dataset.play);
    const move = (place) => {
      slid.value = place;
      slid.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const stop = () => {
      playing = clearInterval(playing);
      button.textContent = "Play";
    };
    if (playing) return stop();
    if (slid.value === slid.max) move(0);
    button.textContent = "Pause";
    playing = setInterval(() => {
      if (slid.value === slid.max) stop();
      else if (!busy) move(Number(slid.value) + 1);
    }, 1000);
  }

  // explain
  async function explain(file) {
    const log = file ? new Uint8Array(await file.arrayBuffer()) : new TextEncoder().encode(form.elements.log.value);
    const path = file ? file.name : "";
    command.textContent = "python -m ddp_doctor explain " + quoted(path || "train.log");
    if (log.length) ask([name, log, path]);
  }

  // pictures: rows of stacked bars, lanes of events, or a grid of cells; each with a legend of its parts
  const COLOURS = ["#0072B2", "#56B4E9", "#E69F00", "#CC79A7", "#009E73"];
  const RANK_COLOURS = form.dataset.colours.split(" ");
  const SVG = new Set(["svg", "rect", "text", "line", "title"]);

  function element(tag, attributes, ...children) {
    const made = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, text] of Object.entries(attributes)) made.setAttribute(key, text);
    made.append(...children);
    return made;
  }
  function draw({ title, rows, parts, lanes, grid, limit, end, label }) {
    parts ??= rows[0].parts.map((part) => part.name);
    const names = parts.filter((name) => !rows || rows.some((row) => row.parts.some((part) => part.name === name && part.value)));
    const colour = (part) => (grid ? RANK_COLOURS : COLOURS)[parts.indexOf(part)];
    const drawn = [];
    let height = 0;
    const bar = (text, start, size, y, part) =>
      drawn.push(element("rect", { x: `${start}%`, y, width: `${size}%`, height: 18, fill: colour(part), stroke: "#fff", "stroke-width": lanes && size > 1 ? 1 : 0 }, element("title", {}, text)));
    const words = (text, x, y, anchor, style = "") => drawn.push(element("text", { x, y, "text-anchor": anchor, class: style }, text));
    const rect = (x, width, y, attributes) => drawn.push(element("rect", { x: `${x}%`, y, width: `${width}%`, height: 18, ...attributes }));
    function cells(row, y) {
      const width = 98.5 / Math.max(...grid.map((row) => row.cells.length));
      row.forEach((cell, number) => {
        const start = 0.5 + number * width, size = (0.92 * width) / cell.parts.length;
        cell.parts.forEach((part, place) => rect(start + place * size, size, y, part ? { fill: colour(part) } : { class: "empty" }));
        if (cell.framed) rect(start, 0.92 * width, y, { class: "frame" });
        if (cell.text) words(cell.text, `${start + 0.46 * width}%`, y + 13, "middle", cell.parts[0] && (cell.parts.join() === parts[0] ? "on-dark" : "on-light"));
      });
    }
    if (rows) {
      const widest = 1.01 * Math.max(limit?.value ?? 0, ...rows.map((row) => row.parts.reduce((sum, part) => sum + part.value, 0)));
      for (const row of rows) {
        words(row.name, 0, height + 14, "start");
        words(row.label, "100%", height + 14, "end");
        let start = 0;
        for (const part of row.parts) {
          const size = (100 * part.value) / widest;
          bar(`${part.name}: ${part.label}`, start, size, height + 20, part.name);
          start += size;
        }
        const x = `${(100 * limit?.value) / widest}%`;
        if (limit) drawn.push(element("line", { x1: x, x2: x, y1: height + 17, y2: height + 41, "stroke-width": 3 }));
        height += 46;
      }
    } else if (grid) {
      for (const row of grid) {
        words(row.name, 0, height + 14, "start");
        words(row.label, "100%", height + 14, "end");
        cells(row.cells, height + 20);
        height += 46;
      }
    } else {
      for (const lane of lanes) {
        words(lane.name, 0, height + 14, "start");
        for (const event of lane.events) {
          const start = (100 * event.start) / end, size = (100 * (event.end - event.start)) / end;
          bar(`${event.part} ${event.text ?? ""}`, start, size, height + 20, event.part);
          if (event.text && size > 2.5) words(event.text, `${start + size / 2}%`, height + 33, "middle", parts.indexOf(event.part) ? "on-light" : "on-dark");
        }
        height += 46;
      }
      words(label, "100%", 14, "end");
    }
    const legend = names.map((part) => element("span", {}, element("i", { style: `background:${colour(part)}` }), part));
    if (limit) legend.push(element("span", {}, `| ${limit.label}`));
    const picture = element("svg", { role: "img", "aria-label": title, width: "100%", height }, ...drawn);
    return element("figure", {}, element("figcaption", {}, title), element("p", { class: "legend" }, ...legend), picture);
  }

  start();
  if (name === "explain") {
    form.elements.log.addEventListener("input", () => explain());
    form.elements.file.addEventListener("change", (event) => event.target.files[0] && explain(event.target.files[0]));
  } else {
    form.addEventListener("input", ({ target }) => {
      if (target.dataset.flag) form.elements[target.dataset.flag].value = target.dataset.values.split(" ")[target.value];
      writeAddress();
      compute();
    });
    form.querySelector("[data-play]")?.addEventListener("click", ({ target }) => play(target));
    addEventListener("hashchange", () => (readAddress(), compute()));
    readAddress();
    compute();
  }
  form.addEventListener("submit", (event) => event.preventDefault());
})();
