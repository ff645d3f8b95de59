"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];

  // When methods are hidden, the charts make room for those that are left.
  const ABSOLUTE = /([MLHV])([-+.\de]+)(?: ([-+.\de]+))?/g, FAR = 5000;
  const sources = new Map();
  const source = (path) => {
    if (!sources.has(path)) sources.set(path, path.dataset.d ?? path.getAttribute("d"));
    return sources.get(path);
  };
  const placesOf = (text) => [...text.matchAll(/[ML]([-+.\de]+) ([-+.\de]+)/g)].map((m) => [Number(m[1]), Number(m[2])]);
  const held = (value) => Number(Math.min(Math.max(value, -FAR), FAR).toFixed(2));
  const moved = (text, x, y) => text.replace(ABSOLUTE, (_, command, first, second) => {
    if (command === "V") return command + held(y(Number(first)));
    if (command === "H") return command + held(x(Number(first)));
    return `${command}${held(x(Number(first)))} ${held(y(Number(second)))}`;
  });
  const shownSeries = (drawings) => drawings.flatMap((drawing) => all("[data-method]", drawing)).filter((part) => !part.hasAttribute("hidden") && !part.closest("[hidden]"));
  const moving = (drawing) => all("path", drawing).filter((path) => !path.closest(".ticks") && !path.matches(".axis, .leader, .beyond, .zero"));

  // Places before the change, of what an axis has to make room for.
  const matter = (part, axis) => {
    const which = axis.along === "x" ? 0 : 1;
    return all(which ? "[data-tips], .whisker" : "[data-tips]:not(.flat), .whisker", part).flatMap((path) => {
      const places = placesOf(source(path)).map((place) => place[which]);
      return axis.hasStart ? places.slice(charts.learnt(places.length)) : places;
    });
  };
  const valueAt = (axis, place) => {
    const share = (place - axis.start) / (axis.end - axis.start);
    return axis.isLog ? axis.low * (axis.high / axis.low) ** share : axis.low + share * (axis.high - axis.low);
  };
  const placeAt = (axis, value) => {
    const share = axis.isLog ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : (value - axis.low) / (axis.high - axis.low);
    return axis.start + share * (axis.end - axis.start);
  };
  const rangeFor = (axis, parts) => {
    const methods = parts.map((part) => matter(part, axis));
    const every = methods.flat();
    if (!every.length) return axis;
    const ends = axis.isWhole ? [Math.min(...every), Math.max(...every)] : charts.fairRange(methods);
    if (axis.zero !== undefined && axis.zero !== null) {
      const zero = placeAt(axis, axis.zero);
      ends[0] = Math.min(ends[0], zero);
      ends[1] = Math.max(ends[1], zero);
    }
    if (axis.isWhole && !axis.isLog) ends[0] = Math.min(ends[0], axis.start);
    if (ends[0] === ends[1]) { ends[0] -= 20; ends[1] += 20; }
    const room = (ends[1] - ends[0]) * (axis.isWhole ? 0 : axis.pad ?? 0.04);
    // The upright axis runs upward: its first end is the larger place.
    const [from, to] = axis.start < axis.end ? [ends[0] - room, ends[1] + room] : [ends[1] + room, ends[0] - room];
    let [low, high] = [valueAt(axis, from), valueAt(axis, to)];
    if (!axis.isLog) {
      low = Math.max(low, axis.bounds[0] ?? -Infinity);
      high = Math.min(high, axis.bounds[1] ?? Infinity);
    }
    return low < high ? { ...axis, low, high } : axis;
  };
  const drawTicks = (drawing, axis) => {
    const group = drawing.querySelector(`.ticks[data-along="${axis.along}"]`), [from, to] = axis.across;
    const values = axis.isLog ? charts.logTicks(axis.low, axis.high) : charts.ticks(axis.low, axis.high, axis.most ?? 6);
    const along = values.map((value) => [value, Number(placeAt(axis, value).toFixed(2))]);
    const lines = along.map(([, p]) => axis.along === "x" ? `M${p} ${from}V${to}` : `M${from} ${p}H${to}`).join("");
    const edge = axis.hasBase ? from : to;
    group.replaceChildren(charts.make("path", { class: "grid", d: lines }), ...along.map(([value, p]) => {
      const at = axis.along === "x" ? { x: p, y: edge + 16, "text-anchor": "middle" } : { x: from - 6, y: p + 4, "text-anchor": "end" };
      return charts.make("text", at, charts.notations[axis.notation](value));
    }));
    const zero = drawing.querySelector(".zero");
    if (zero && axis.zero !== null) zero.setAttribute("d", `M${held(placeAt(axis, axis.zero))} ${from}V${to}`);
  };
  const WAYS = { x1: "l-5 -4.5v9z", "x-1": "l5 -4.5v9z", y1: "l-4.5 5h9z", "y-1": "l-4.5 -5h9z" };
  // A mark at the edge where something lies outside.
  const drawBeyond = (part, axis) => {
    all(".beyond", part).forEach((mark) => mark.remove());
    const which = axis.along === "x" ? 0 : 1, last = new Map();
    for (const path of all("[data-tips], .whisker", part)) {
      const places = placesOf(path.getAttribute("d"));
      places.slice(axis.hasStart ? charts.learnt(places.length) : 0).forEach((place) => {
        const share = (place[which] - axis.start) / (axis.end - axis.start);
        if (share < -0.001) last.set(-1, place[1 - which]);
        if (share > 1.001) last.set(1, place[1 - which]);
      });
    }
    for (const [side, across] of last) {
      const edge = side > 0 ? axis.end : axis.start;
      const middle = axis.along === "x" ? Number(part.querySelector(".who").getAttribute("y")) - 4 : across;
      part.append(charts.make("path", { class: "beyond", d: `M${axis.along === "x" ? `${edge} ${middle}` : `${middle} ${edge}`}${WAYS[axis.along + side]}` }));
    }
  };
  // Names at the ends of the curves that lead among those that are shown.
  const drawEnds = (drawing, axis) => {
    const parts = shownSeries([drawing]).filter((part) => part.querySelector(".end"));
    const leaders = parts.filter((part) => !part.classList.contains("base")).slice(0, axis.leaders);
    const named = parts.filter((part) => parts.length <= 5 || leaders.includes(part) || part.classList.contains("base"));
    const ends = named.map((part) => placesOf(part.querySelector(".line").getAttribute("d")).at(-1));
    const tops = ends.map((end) => Math.min(Math.max(end[1], axis.end), axis.start));
    const heights = charts.spread(tops, 14, axis.end + 4, axis.start);
    for (const part of parts) part.querySelector(".end").toggleAttribute("hidden", !named.includes(part));
    named.forEach((part, n) => {
      const name = part.querySelector(".end text"), right = Number(name.getAttribute("x")) - 3;
      name.setAttribute("y", held(heights[n] + 4));
      part.querySelector(".leader").setAttribute("d", `M${held(ends[n][0] + 5)} ${held(tops[n])}L${right} ${held(heights[n])}`);
    });
  };
  const same = (place) => place;
  const together = new Map();
  for (const drawing of all("svg.chart[data-axes]")) {
    const box = drawing.closest("[data-together]") ?? drawing;
    together.set(box, [...(together.get(box) ?? []), drawing]);
  }
  const rescale = (drawings) => {
    const parts = shownSeries(drawings);
    if (!parts.length) return;
    const axes = JSON.parse(drawings[0].dataset.axes);
    const isWhole = parts.length === drawings.flatMap((drawing) => all("[data-method]", drawing)).length;
    const changed = isWhole ? axes : axes.map((axis) => rangeFor(axis, parts));
    const ways = ["x", "y"].map((along) => {
      const n = axes.findIndex((axis) => axis.along === along);
      return n < 0 || isWhole ? same : (place) => placeAt(changed[n], valueAt(axes[n], place));
    });
    for (const drawing of drawings) {
      for (const path of moving(drawing)) path.setAttribute("d", moved(source(path), path.matches(".flat") ? same : ways[0], ways[1]));
      changed.forEach((axis) => drawTicks(drawing, axis));
      for (const axis of changed.filter((axis) => !axis.isWhole)) {
        shownSeries([drawing]).forEach((part) => drawBeyond(part, axis));
        if (axis.leaders) drawEnds(drawing, axis);
      }
    }
  };
  for (const button of all("[data-toggle]")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const part of all("[data-method], [data-panel]")) {
        if ((part.dataset.method ?? part.dataset.panel) === button.dataset.toggle) part.toggleAttribute("hidden", !shown);
      }
      for (const drawings of together.values()) rescale(drawings);
    });
  }

  // Tables sort by a column's numbers or words; a missing number stays last.
  const value = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    return cell.classList.contains("n") ? NaN : cell.textContent;
  };
  const compare = (a, b, sign) => {
    const missing = Number(Number.isNaN(a)) - Number(Number.isNaN(b));
    if (missing || Number.isNaN(a)) return missing;
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const falls = head.getAttribute("aria-sort") === "ascending" ||
        (head.getAttribute("aria-sort") === null && head.classList.contains("n"));
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compare(value(a, column), value(b, column), falls ? -1 : 1));
      table.tBodies[0].append(...rows);
    }));
  }

  // What is under the pointer, in words.
  const tip = document.getElementById("tip");
  const spot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  spot.id = "spot";
  // Where the places of a path are; what lies outside is at the edge of its window.
  const read = (path) => {
    const places = placesOf(path.getAttribute("d")), box = path.closest(".window")?.viewBox.baseVal;
    if (!box) return places;
    return places.map(([x, y]) => [Math.min(Math.max(x, box.x), box.x + box.width), Math.min(Math.max(y, box.y), box.y + box.height)]);
  };
  const hide = () => { tip.hidden = true; spot.remove(); };
  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const above = event.clientY - box.height - 12;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 8 ? above : event.clientY + 16}px`;
  };
  const cell = (cover, at, event) => {
    const box = cover.getBBox();
    const rows = cover.dataset.rows.split("|"), columns = cover.dataset.columns.split("|");
    const r = Math.floor((at.y - box.y) / box.height * rows.length);
    const c = Math.floor((at.x - box.x) / box.width * columns.length);
    const found = cover.dataset.cells.split("|")[r]?.split(",")[c];
    if (found === undefined || c < 0) return false;
    const [row, column] = cover.dataset.names.split("|");
    spot.remove();
    show(`${row} ${rows[r]}, ${column} ${columns[c]}: ${found || "not recorded"}`, event);
    return true;
  };
  for (const chart of all("svg.chart")) {
    chart.addEventListener("pointermove", (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      const cover = chart.querySelector("[data-cells]");
      if (cover) { if (!cell(cover, at, event)) hide(); return; }
      let best = null, least = 22 ** 2;
      for (const path of all("[data-tips]", chart)) {
        const series = path.closest("[data-method]");
        if (series?.hasAttribute("hidden")) continue;
        read(path).forEach(([x, y], n) => {
          const far = (x - at.x) ** 2 + (y - at.y) ** 2;
          if (far < least) { least = far; best = { x, y, text: path.dataset.tips.split("|")[n], who: series?.dataset.method }; }
        });
      }
      if (!best) { hide(); return; }
      spot.setAttribute("cx", best.x);
      spot.setAttribute("cy", best.y);
      spot.setAttribute("r", 6);
      chart.append(spot);
      show(best.who ? `${best.who}, ${best.text}` : best.text, event);
    });
    chart.addEventListener("pointerleave", hide);
  }
  addEventListener("scroll", hide, { passive: true });

  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = button.previousElementSibling.textContent;
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(button.previousElementSibling); button.textContent = "Selected"; }
    });
  }

  const links = new Map(all(".top nav a").map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "location");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("main section[id]").forEach((section) => seen.observe(section));
})();
