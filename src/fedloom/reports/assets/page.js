"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];

  // Light, dark, or as the system has it; remembered where the browser allows it.
  const theme = document.getElementById("theme");
  const remember = (value) => { try { localStorage.setItem("fedloom-theme", value); } catch { /* not allowed */ } };
  const recall = () => { try { return localStorage.getItem("fedloom-theme"); } catch { return null; } };
  const names = { auto: "as the system", light: "light", dark: "dark" };
  const paint = (value) => {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
    theme.textContent = `Colours: ${value}`;
    theme.setAttribute("aria-label", `Colours: ${names[value]}`);
    theme.value = value;
  };
  paint(names[recall()] ? recall() : "auto");
  theme.addEventListener("click", () => {
    const order = Object.keys(names);
    const next = order[(order.indexOf(theme.value) + 1) % order.length];
    paint(next);
    remember(next);
  });

  // Methods are hidden and shown in all charts at once.
  for (const button of all("[data-toggle]")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const part of all("[data-method], [data-panel]")) {
        if ((part.dataset.method ?? part.dataset.panel) === button.dataset.toggle) part.toggleAttribute("hidden", !shown);
      }
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
  const places = new WeakMap();
  const read = (path) => {
    if (!places.has(path)) {
      const source = path.dataset.at ? `M${path.dataset.at}` : path.getAttribute("d");
      places.set(path, [...source.matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)].map((m) => [Number(m[1]), Number(m[2])]));
    }
    return places.get(path);
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
