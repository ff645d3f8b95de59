"use strict";
// What the report and the live view share. Ranges and ticks follow the rules of axes.py.
const charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const RUINED = 5, MOST_KEPT = 0.6, FENCE = 3, FEWEST = 8, ORDERS = 30;

  // Light, dark, or as the system has it; remembered where the browser allows it.
  const theme = document.getElementById("theme");
  const recall = () => { try { return localStorage.getItem("fedloom-theme"); } catch { return null; } };
  const modes = { auto: "as the system", light: "light", dark: "dark" };
  const paint = (value) => {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
    theme.textContent = `Colours: ${value}`;
    theme.setAttribute("aria-label", `Colours: ${modes[value]}`);
    theme.value = value;
  };
  paint(modes[recall()] ? recall() : "auto");
  theme.addEventListener("click", () => {
    const order = Object.keys(modes), next = order[(order.indexOf(theme.value) + 1) % order.length];
    paint(next);
    try { localStorage.setItem("fedloom-theme", next); } catch { /* not allowed */ }
  });

  const make = (name, attributes = {}, text = null) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) if (value !== "") node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    return node;
  };

  const digits = (value, most = 6) => {
    const short = Number(value.toPrecision(most)), size = Math.abs(short);
    const text = size && (size < 1e-4 || size >= 1e6) ? short.toExponential().replace("e+", "e") : String(short);
    return text.replaceAll("-", "−");
  };
  const signed = (value) => (value > 0 ? "+" : "") + digits(value);
  const prefixed = (units) => (value) => {
    const place = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.abs(value) || 1) / 3 + 1e-9)));
    return (place ? digits(value / 1000 ** place, 3) : digits(Math.round(value))) + units[place];
  };
  const seconds = (value) => {
    if (value < 1) return value ? `${digits(value * 1000, 3)} ms` : "0 s";
    if (value < 120) return `${digits(value, 3)} s`;
    return value < 7200 ? `${digits(value / 60, 3)} min` : `${digits(value / 3600, 3)} h`;
  };
  const notations = {
    number: digits, percent: (v) => digits(100 * v), gap: signed, points: (v) => signed(100 * v),
    count: prefixed(["", " k", " M", " G", " T"]), size: prefixed([" B", " kB", " MB", " GB", " TB"]), seconds,
  };

  const ticks = (low, high, most = 6) => {
    const raw = (high - low) / (most + 0.5), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= raw), found = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= high / step + 1e-9; n++) found.push(n * step);
    return found.length < 2 && most < FEWEST ? ticks(low, high, most + 1) : found;
  };
  const logTicks = (low, high) => {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    let found = [];
    for (const factors of [[1], [1, 3], [1, 2, 5]]) {
      found = [];
      for (let p = first; p <= last; p++) for (const f of factors) found.push(f * 10 ** p);
      found = found.filter((t) => low * 0.999 <= t && t <= high * 1.001);
      if (found.length >= 3) break;
    }
    if (found.length < 2) return ticks(low, high);
    const stride = Math.ceil(found.length / 6);
    return found.filter((_, n) => n % stride === 0);
  };

  const widthOf = (spans) => Math.max(...spans.map((s) => s[1])) - Math.min(...spans.map((s) => s[0]));
  const usual = (values) => {
    const sorted = [...values].sort((a, b) => a - b), low = sorted[0], high = sorted.at(-1);
    if (sorted.length < FEWEST) return [low, high];
    const at = (share) => {
      const place = share * (sorted.length - 1), below = Math.floor(place);
      return sorted[below] + (place - below) * ((sorted[below + 1] ?? 0) - sorted[below]);
    };
    const reach = FENCE * (at(0.75) - at(0.25));
    const inside = sorted.filter((v) => v >= at(0.25) - reach && v <= at(0.75) + reach);
    const width = inside.at(-1) - inside[0];
    return width > 0 && RUINED * width < high - low ? [inside[0], inside.at(-1)] : [low, high];
  };
  const withoutFew = (spans, most) => {
    for (let count = 1; count <= most; count++) {
      const sides = [
        [...spans].sort((a, b) => a[0] - b[0]).slice(count),
        [...spans].sort((a, b) => a[1] - b[1]).slice(0, -count),
      ];
      const rest = widthOf(sides[1]) < widthOf(sides[0]) ? sides[1] : sides[0];
      if (widthOf(rest) > 0 && RUINED * widthOf(rest) < widthOf(spans)) return rest;
    }
    return null;
  };
  // From the least to the largest value, but for a few that would ruin a chart.
  const fairRange = (methods) => {
    let kept = methods.filter((values) => values.length).map(usual);
    if (!kept.length) return null;
    let spare = kept.length - Math.ceil(MOST_KEPT * kept.length - 1e-9);
    for (let rest; (rest = withoutFew(kept, spare)); kept = rest) spare -= kept.length - rest.length;
    return [Math.min(...kept.map((s) => s[0])), Math.max(...kept.map((s) => s[1]))];
  };
  const learnt = (places) => places > 2 ? Math.max(1, Math.floor(places / 4)) : 0;

  // Labels near their places, at least a gap apart, between two edges.
  const spread = (places, gap, low, high) => {
    gap = Math.min(gap, (high - low) / Math.max(places.length - 1, 1));
    const order = places.map((_, n) => n).sort((a, b) => places[a] - places[b]), heights = [];
    let below = low - gap, above = high + gap;
    for (const n of order) heights[n] = below = Math.max(places[n], below + gap);
    for (const n of order.reverse()) heights[n] = above = Math.min(heights[n], above - gap);
    return heights;
  };

  const save = (name, kind, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: `${kind};charset=utf-8` }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const STYLES = ["fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight"];
  // A copy of what is shown, with its colours in it, for other programs.
  const copyOf = (node) => {
    const style = getComputedStyle(node);
    if (style.display === "none" || node.matches(".cover, #spot")) return null;
    const copy = node.cloneNode(false);
    for (const { name } of [...copy.attributes]) if (/^(class|data-|aria-|role|id$)/.test(name)) copy.removeAttribute(name);
    if (node.matches("path, text, circle, rect")) {
      for (const name of STYLES) if (node.matches("text") || !name.startsWith("font")) copy.setAttribute(name, style.getPropertyValue(name));
    }
    for (const child of node.childNodes) {
      const own = child.nodeType === Node.ELEMENT_NODE ? copyOf(child) : child.cloneNode();
      if (own) copy.append(own);
    }
    return copy;
  };
  const svgOf = (drawings) => {
    const columns = drawings.length > 1 ? 3 : 1, gap = 24;
    const boxes = drawings.map((drawing) => drawing.viewBox.baseVal);
    const wide = boxes[0].width, tall = Math.max(...boxes.map((box) => box.height));
    const rows = Math.ceil(drawings.length / columns), pad = 12;
    const width = columns * (wide + gap) - gap + 2 * pad, height = rows * (tall + gap) - gap + 2 * pad;
    const whole = make("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    whole.append(make("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor }));
    drawings.forEach((drawing, n) => {
      const copy = copyOf(drawing);
      const place = { x: pad + n % columns * (wide + gap), y: pad + Math.floor(n / columns) * (tall + gap), width: boxes[n].width, height: boxes[n].height, overflow: "visible" };
      for (const [key, value] of Object.entries(place)) copy.setAttribute(key, value);
      whole.append(copy);
    });
    return new XMLSerializer().serializeToString(whole);
  };
  const nameOf = (drawing) => drawing.querySelector("title").textContent.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80);
  // Buttons of a figure save its charts as they are shown, and their numbers.
  for (const box of document.querySelectorAll(".exports")) {
    box.hidden = false;
    box.addEventListener("click", (event) => {
      const kind = event.target.dataset.export;
      if (!kind) return;
      const drawings = [...box.closest("figure").querySelectorAll("svg.chart")].filter((drawing) => !drawing.closest("[hidden]"));
      if (!drawings.length) return;
      const name = nameOf(drawings[0]);
      if (kind === "svg") save(`${name}.svg`, "image/svg+xml", svgOf(drawings));
      else save(`${name}.csv`, "text/csv", drawings.map((drawing, n) => n ? drawing.dataset.csv.replace(/^.*\n/, "") : drawing.dataset.csv).join(""));
    });
  }

  return { make, notations, ticks, logTicks, fairRange, learnt, spread, seconds, digits, ORDERS };
})();
