"use strict";
(() => {
  const EVERY_MS = 1500, TALL = 400, LEADERS = 3, ROOM = 6;
  const MARGIN = { left: 56, right: 170, top: 34, bottom: 46 };
  const { make, notations, digits } = charts;
  const by = (id) => document.getElementById(id);
  const hidden = new Set();
  let state = { runs: [], methods: [] };

  const node = (name, text = "", kind = "") => {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const duration = (s) => s < 90 ? `${Math.ceil(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
  const lookOf = (method) => state.methods.find((look) => look.name === method);
  const middle = (values) => values.reduce((a, b) => a + b, 0) / values.length;

  // An axis of values: fair to most methods, logarithmic for errors of very different size.
  const axisOf = (about, methods, start, end) => {
    const every = methods.flat();
    const isLog = about.bounds[0] === 0 && about.bounds[1] === null && Math.min(...every) > 0 && Math.max(...every) / Math.min(...every) > charts.ORDERS;
    const inward = isLog ? Math.log : (v) => v, outward = isLog ? Math.exp : (v) => v;
    let [low, high] = charts.fairRange(methods.map((values) => values.map(inward)));
    const room = (high - low) * 0.04 || Math.abs(low) * 0.1 || 0.5;
    low -= room; high += room;
    if (!isLog) { low = Math.max(low, about.bounds[0] ?? -Infinity); high = Math.min(high, about.bounds[1] ?? Infinity); }
    if (low >= high) { low -= 0.5; high += 0.5; }
    const at = (value) => start + ((value > 0 || !isLog ? inward(value) : low - 1) - low) / (high - low) * (end - start);
    return { at, isLog, side: (value) => (at(value) > start + 0.01) ? -1 : (at(value) < end - 0.01) ? 1 : 0, ticks: isLog ? charts.logTicks(outward(low), outward(high)) : charts.ticks(low, high) };
  };
  const curvesOf = (which) => state.runs.filter((run) => !hidden.has(run.method) && run.curves[which]?.length);
  const late = (curve) => curve.slice(charts.learnt(curve.length)).map((p) => p[1]);

  const draw = () => {
    const which = by("which").value, drawing = by("drawing"), chart = by("chart");
    const wide = chart.clientWidth < 620 ? 520 : 960;
    chart.setAttribute("viewBox", `0 0 ${wide} ${TALL}`);
    drawing.replaceChildren();
    const shown = curvesOf(which), about = state.curves?.[which];
    const show = notations[about?.notation ?? "number"];
    by("chart-title").textContent = which;
    by("chart-desc").textContent = shown.map((run) => `${run.method} seed ${run.seed}: ${show(Number(run.curves[which].at(-1)[1].toPrecision(4)))} at round ${run.curves[which].at(-1)[0]}`).join("; ");
    chart.dataset.csv = `method,seed,round,${which}\n` + shown.flatMap((run) => run.curves[which].map(([r, v]) => `${cell(run.method)},${run.seed},${r},${v}\n`)).join("");
    if (!shown.length) return;
    const left = MARGIN.left, right = wide - MARGIN.right, bottom = TALL - MARGIN.bottom, top = MARGIN.top;
    const names = state.methods.map((look) => look.name).filter((name) => shown.some((run) => run.method === name));
    const ofMethod = (name) => shown.filter((run) => run.method === name);
    const y = axisOf(about, names.map((name) => ofMethod(name).flatMap((run) => late(run.curves[which]))), bottom, top);
    const reached = Math.max(1, ...shown.map((run) => run.curves[which].at(-1)[0]));
    const last = Math.min(Math.max(reached, ...shown.map((run) => run.planned)), Math.ceil(reached * 1.25));
    const x = (v) => left + v / last * (right - left);
    for (const tick of y.ticks) {
      drawing.append(make("path", { class: "grid", d: `M${left} ${y.at(tick)}H${right}` }));
      drawing.append(make("text", { x: left - 8, y: y.at(tick) + 4, "text-anchor": "end" }, show(tick)));
    }
    drawing.append(make("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
    for (const tick of charts.ticks(0, last, 8).filter(Number.isInteger)) {
      drawing.append(make("path", { class: "axis", d: `M${x(tick)} ${bottom}v4` }));
      drawing.append(make("text", { x: x(tick), y: bottom + 18, "text-anchor": "middle" }, String(tick)));
    }
    drawing.append(make("text", { class: "name", x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, "round"));
    drawing.append(make("text", { class: "name", x: 0, y: top - 16 }, about.title + (y.isLog ? " (logarithmic)" : "")));
    const inside = make("svg", { class: "window", x: left - 1, y: top - ROOM, width: right - left + ROOM, height: bottom - top + ROOM, viewBox: `${left - 1} ${top - ROOM} ${right - left + ROOM} ${bottom - top + ROOM}` });
    drawing.append(inside);
    const held = (v) => Math.min(Math.max(v, -5000), 5000).toFixed(1);
    for (const run of shown) {
      const look = lookOf(run.method), curve = run.curves[which];
      const group = make("g", { class: `series ${look.css}`, "data-path": run.path, "data-method": run.method });
      group.append(make("path", { class: "line", d: "M" + curve.map(([r, v]) => `${x(r).toFixed(1)} ${held(y.at(v))}`).join("L"), "stroke-dasharray": look.dash }));
      const [r, v] = curve.at(-1);
      group.append(make("path", { class: look.sign_css, d: `M${x(r).toFixed(1)} ${held(y.at(v))}${look.sign}` }));
      inside.append(group);
      const outside = curve.slice(charts.learnt(curve.length)).findLast(([, value]) => y.side(value));
      if (outside) {
        const isAbove = y.side(outside[1]) > 0;
        const mark = make("g", { class: `series ${look.css}` });
        mark.append(make("path", { class: "beyond", d: `M${x(outside[0]).toFixed(1)} ${isAbove ? top : bottom}${isAbove ? "l-4.5 5h9z" : "l-4.5 -5h9z"}` }));
        drawing.append(mark);
      }
    }
    // Names of the leaders and of training alone; the legend has the others.
    const ends = names.map((name) => ({ name, value: middle(ofMethod(name).map((run) => run.curves[which].at(-1)[1])) }));
    ends.sort((a, b) => about.is_error ? a.value - b.value : b.value - a.value);
    const leaders = ends.filter((end) => lookOf(end.name).css !== "base").slice(0, LEADERS);
    const labels = ends.filter((end) => ends.length <= 5 || leaders.includes(end) || lookOf(end.name).css === "base");
    const heights = charts.spread(labels.map((end) => Math.min(Math.max(y.at(end.value), top), bottom)), 16, top + 4, bottom);
    labels.forEach((end, n) => {
      const look = lookOf(end.name), group = make("g", { class: `series ${look.css}` });
      group.append(make("path", { class: "line", d: `M${right + 10} ${heights[n]}h18`, "stroke-dasharray": look.dash }));
      group.append(make("text", { class: "who", x: right + 34, y: heights[n] + 4 }, end.name.length > 18 ? `${end.name.slice(0, 10)}…${end.name.slice(-7)}` : end.name));
      drawing.append(group);
    });
  };
  // Text of a spreadsheet's cell, which is never a formula.
  const cell = (text) => `"${(/^[=+\-@\t\r]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;

  const signOf = (look) => {
    const sign = make("svg", { class: "sign", viewBox: "0 0 32 14", "aria-hidden": "true" });
    const group = make("g", { class: `series ${look.css}` });
    group.append(make("path", { class: "line", d: "M1 7H31", "stroke-dasharray": look.dash }), make("path", { class: look.sign_css, d: `M16 7${look.sign}` }));
    sign.append(group);
    return sign;
  };
  const legend = () => {
    const looks = state.methods.filter((look) => state.runs.some((run) => run.method === look.name)), box = by("legend");
    const key = JSON.stringify(looks);
    if (key === box.dataset.key) return;
    box.dataset.key = key;
    box.replaceChildren(...looks.map((look) => {
      const button = node("button");
      button.type = "button";
      button.dataset.toggle = look.name;
      button.setAttribute("aria-pressed", String(!hidden.has(look.name)));
      button.append(signOf(look), look.name);
      button.addEventListener("click", () => {
        if (hidden.has(look.name)) hidden.delete(look.name); else hidden.add(look.name);
        button.setAttribute("aria-pressed", String(!hidden.has(look.name)));
        draw();
      });
      return button;
    }));
  };

  const choices = () => {
    const names = [...new Set(state.runs.flatMap((run) => Object.keys(run.curves)))], select = by("which");
    if (names.join("|") === select.dataset.names) return;
    select.dataset.names = names.join("|");
    const before = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(before)) select.value = before;
  };

  const bar = (value, max, label) => {
    const made = node("progress");
    made.max = Math.max(max, 1);
    made.value = value;
    made.setAttribute("aria-label", label);
    return made;
  };
  const table = () => {
    const rows = state.runs.map((run) => {
      const row = node("tr"), head = node("th", run.method);
      head.scope = "row";
      head.prepend(signOf(lookOf(run.method)));
      const progress = node("td"), condition = node("td", run.state, `state-${run.state.replace(" ", "-")}`);
      progress.append(bar(run.round, run.planned, `${run.method}, seed ${run.seed}`));
      if (run.why) condition.title = run.why;
      row.append(
        head, node("td", run.seed, "n"), condition, progress, node("td", `${run.round} of ${run.planned}`, "n"),
        node("td", run.score, "n"), node("td", run.train_loss, "n"),
        node("td", run.state === "going on" ? duration(run.seconds_left) : "–", "n"), node("td", run.path, "path"),
      );
      return row;
    });
    by("runs").tBodies[0].replaceChildren(...rows);
  };
  const settings = () => {
    const { methods, rows, own } = state.settings, differing = by("differing"), alone = by("own");
    const fill = (table, lines, kind) => {
      table.parentElement.hidden = !lines.length;
      table.tBodies[0].replaceChildren(...lines.map(([name, ...values]) => {
        const row = node("tr"), head = Object.assign(node("th", name), { scope: "row" });
        row.append(head, ...values.map((value) => node("td", value || "–", kind)));
        return row;
      }));
    };
    by("settings").hidden = !rows.length && !own.length;
    const heads = ["setting", ...methods].map((title) => Object.assign(node("th", title), { scope: "col" }));
    differing.tHead.rows[0].replaceChildren(...heads);
    fill(differing, rows, "");
    fill(alone, own, "long");
  };

  const sum = () => {
    const { states = {}, runs = 0, rounds = 0, planned = 0, seconds_left: left = null } = state.totals ?? {};
    const told = ["going on", "finished", "stopped", "failed", "not begun"].filter((s) => states[s]).map((s) => `${states[s]} ${s}`).join(", ");
    const text = state.runs.length ? `${runs} ${runs === 1 ? "run" : "runs"}: ${told}` : "No run yet; this page looks again every second or two";
    if (by("headline").textContent !== text) by("headline").textContent = text;
    const done = (states.finished ?? 0) + (states.failed ?? 0);
    const remaining = left !== null ? `about ${duration(left)}` : states["going on"] ? "being measured" : "–";
    const tiles = state.runs.length ? { "runs are over": `${done} of ${runs}`, rounds: `${rounds} of ${planned}`, "time left": remaining } : {};
    if (states.failed) tiles["runs failed"] = String(states.failed);
    by("totals").replaceChildren(...Object.entries(tiles).map(([title, value]) => {
      const tile = node("div");
      tile.append(node("dt", title), node("dd", value));
      if (title === "rounds") tile.append(bar(rounds, planned, "all rounds"));
      return tile;
    }));
  };

  const look = async () => {
    let trouble = "";
    try {
      const answer = await fetch("/state", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const found = await answer.json();
      const isNew = JSON.stringify(found.runs) !== JSON.stringify(state.runs);
      state = found;
      if (isNew) { choices(); legend(); draw(); table(); settings(); }
      sum();
      trouble = found.problems.map((problem) => `Left out: ${problem}`).join(" ");
    } catch {
      trouble = "fedloom view does not answer; it was stopped, or is busy. Trying again.";
    }
    if (by("status").textContent !== trouble) by("status").textContent = trouble;
    setTimeout(look, EVERY_MS);
  };
  by("which").addEventListener("change", draw);
  addEventListener("resize", draw);
  look();
})();
