"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const EVERY_MS = 1500, MARGIN = { left: 56, right: 170, top: 14, bottom: 34 }, TALL = 400;
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2"];
  const by = (id) => document.getElementById(id);
  const hidden = new Set();
  let state = { runs: [] };

  const theme = by("theme");
  const modes = { auto: "as the system", light: "light", dark: "dark" };
  theme.addEventListener("click", () => {
    const order = Object.keys(modes);
    const mode = order[(order.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % 3];
    if (mode === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = mode;
    theme.textContent = `Colours: ${mode}`;
    theme.setAttribute("aria-label", `Colours: ${modes[mode]}`);
  });

  const make = (name, attributes = {}, text = null) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    return node;
  };
  const ticks = (low, high, most) => {
    const raw = (high - low) / (most + 0.5), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= raw);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= high / step + 1e-9; n++) found.push(n * step);
    return found;
  };
  const short = (value) => String(Number(value.toPrecision(4)));
  const duration = (s) => s < 90 ? `${Math.ceil(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
  const methods = () => [...new Set(state.runs.map((run) => run.method))];
  const colour = (method) => methods().indexOf(method) % 8;

  const draw = () => {
    const which = by("which").value, drawing = by("drawing");
    const WIDE = by("chart").clientWidth < 620 ? 520 : 960;
    by("chart").setAttribute("viewBox", `0 0 ${WIDE} ${TALL}`);
    drawing.replaceChildren();
    const shown = state.runs.filter((run) => !hidden.has(run.method) && run.curves[which]?.length);
    by("chart-title").textContent = which;
    by("chart-desc").textContent = shown.map((run) => `${run.method} seed ${run.seed}: ${short(run.curves[which].at(-1)[1])} at round ${run.curves[which].at(-1)[0]}`).join("; ");
    if (!shown.length) return;
    const values = shown.flatMap((run) => run.curves[which].map((p) => p[1]));
    let low = Math.min(...values), high = Math.max(...values);
    const room = (high - low) * 0.05 || Math.abs(low) * 0.1 || 0.5;
    low -= room; high += room;
    const reached = Math.max(1, ...shown.map((run) => run.curves[which].at(-1)[0]));
    const last = Math.min(Math.max(reached, ...shown.map((run) => run.planned)), Math.ceil(reached * 1.25));
    const x = (v) => MARGIN.left + v / last * (WIDE - MARGIN.left - MARGIN.right);
    const y = (v) => TALL - MARGIN.bottom - (v - low) / (high - low) * (TALL - MARGIN.top - MARGIN.bottom);
    for (const tick of ticks(low, high, 6)) {
      drawing.append(make("path", { class: "grid", d: `M${x(0)} ${y(tick)}H${x(last)}` }));
      drawing.append(make("text", { x: x(0) - 8, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
    }
    drawing.append(make("path", { class: "axis", d: `M${x(0)} ${TALL - MARGIN.bottom}H${x(last)}` }));
    for (const tick of ticks(0, last, 8).filter(Number.isInteger)) {
      drawing.append(make("text", { x: x(tick), y: TALL - MARGIN.bottom + 18, "text-anchor": "middle" }, short(tick)));
    }
    const ends = new Map();
    for (const run of shown) {
      const places = run.curves[which].map(([r, v]) => `${x(r).toFixed(1)} ${y(v).toFixed(1)}`);
      const group = make("g", { class: `series c${colour(run.method)}`, "data-path": run.path });
      group.append(make("path", { class: "line", d: "M" + places.join("L"), "stroke-dasharray": DASHES[methods().indexOf(run.method) % DASHES.length] }));
      const [r, v] = run.curves[which].at(-1);
      group.append(make("circle", { class: "mark", cx: x(r), cy: y(v), r: 4 }));
      drawing.append(group);
      const mine = ends.get(run.method) ?? [];
      ends.set(run.method, [...mine, y(v)]);
    }
    const labels = [...ends].map(([method, ys]) => ({ method, at: ys.reduce((a, b) => a + b) / ys.length })).sort((a, b) => a.at - b.at);
    let below = 0;
    for (const label of labels) {
      below = Math.max(label.at, below + 15);
      const group = make("g", { class: `series c${colour(label.method)}` });
      group.append(make("path", { class: "line", d: `M${x(last) + 8} ${below}h16`, "stroke-dasharray": DASHES[methods().indexOf(label.method) % DASHES.length] }));
      group.append(make("text", { class: "who", x: x(last) + 30, y: below + 4 }, label.method.slice(0, 22)));
      drawing.append(group);
    }
  };

  const legend = () => {
    const names = methods(), box = by("legend");
    if (names.join("|") === box.dataset.names) return;
    box.dataset.names = names.join("|");
    box.replaceChildren(...names.map((method) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(method)));
      const sign = make("svg", { class: "sign", viewBox: "0 0 32 14", "aria-hidden": "true" });
      const group = make("g", { class: `series c${colour(method)}` });
      group.append(make("path", { class: "line", d: "M1 7H31", "stroke-dasharray": DASHES[names.indexOf(method) % DASHES.length] }));
      sign.append(group);
      button.append(sign, method);
      button.addEventListener("click", () => {
        if (hidden.has(method)) hidden.delete(method); else hidden.add(method);
        button.setAttribute("aria-pressed", String(!hidden.has(method)));
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

  const table = () => {
    const rows = state.runs.map((run) => {
      const row = document.createElement("tr");
      const add = (text, kind = "") => {
        const cell = row.insertCell();
        cell.textContent = text;
        cell.className = kind;
        return cell;
      };
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = run.method;
      row.append(head);
      add(run.seed, "n");
      add(run.state, `state-${run.state.replace(" ", "-")}`);
      const bar = document.createElement("progress");
      bar.max = Math.max(run.planned, 1);
      bar.value = run.round;
      bar.setAttribute("aria-label", `${run.method}, seed ${run.seed}`);
      add("").append(bar);
      add(`${run.round} of ${run.planned}`, "n");
      const curve = Object.values(run.curves)[0];
      add(curve ? short(curve.at(-1)[1]) : "–", "n");
      add(run.train_loss === null ? "–" : short(run.train_loss), "n");
      add(run.state === "going on" ? duration(run.seconds_left) : "–", "n");
      add(run.path);
      return row;
    });
    by("runs").tBodies[0].replaceChildren(...rows);
  };

  const sum = () => {
    const counts = {};
    for (const run of state.runs) counts[run.state] = (counts[run.state] ?? 0) + 1;
    const told = ["going on", "finished", "stopped", "failed"].filter((s) => counts[s]).map((s) => `${counts[s]} ${s}`).join(", ");
    const text = state.runs.length ? `${state.runs.length} ${state.runs.length === 1 ? "run" : "runs"}: ${told}` : "No run yet; this page looks again every second or two";
    if (by("headline").textContent !== text) by("headline").textContent = text;
  };

  const look = async () => {
    let trouble = "";
    try {
      const answer = await fetch("/state", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const found = await answer.json();
      const isNew = JSON.stringify(found.runs) !== JSON.stringify(state.runs);
      state = found;
      if (isNew) { choices(); legend(); draw(); table(); }
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
