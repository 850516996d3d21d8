"use strict";
// Sorting, searching and paging of tables, tooltips, keys, dark and light, printing. Names are only ever text.
(() => {
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const source = document.getElementById("stepgrade-json");
  let parsed = null;
  const result = () => (parsed ??= JSON.parse(source.textContent));

  // The same text for the same number as stepgrade.units writes.
  const MISSING = "–";
  const unprintable = /[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\u{e0000}-\u{e0fff}]/gu;
  const TAIL = 40;
  const fixed = (value, digits, grouped = false) => {
    let text = value.toFixed(digits);
    const exact = value.toFixed(digits + TAIL);
    const kept = exact.slice(0, -TAIL).replace(/\.$/, "");
    // Python rounds what lies exactly between two to the even one, browsers away from zero.
    if (/^50*$/.test(exact.slice(-TAIL)) && /[02468]$/.test(kept)) text = kept;
    const [whole, part] = text.split(".");
    const spaced = grouped ? whole.replace(/\B(?=(\d{3})+$)/g, ",") : whole;
    return part === undefined ? spaced : `${spaced}.${part}`;
  };
  const digits = (value) => (Math.abs(value) >= 100 ? fixed(value, 0, true) : fixed(value, Math.abs(value) >= 10 ? 1 : 2));
  const si = (value, unit) => {
    if (Math.abs(value) < 1000 && Number.isInteger(value)) return `${fixed(value, 0)} ${unit}`;
    for (const [size, prefix] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size) return `${digits(value / size)} ${prefix}${unit}`;
    return `${digits(value)} ${unit}`;
  };
  const spelt = (text) => text.replace(/##(?=\w*\[)/g, "#\\x23").replace(unprintable, (c) => {
    const code = c.codePointAt(0);
    const [sign, width] = code > 0xffff ? ["U", 8] : code < 0x100 ? ["x", 2] : ["u", 4];
    return `\\${sign}${code.toString(16).padStart(width, "0")}`;
  });
  const shortened = (text, most = 200) => {
    const letters = [...spelt(text)];
    return letters.length <= most ? letters.join("") : `${letters.slice(0, most / 2).join("")}…${letters.slice(1 - most / 2).join("")}`;
  };
  const show = {
    ms(ms) {
      const size = Math.abs(ms);
      if (size >= 60000) return `${fixed(ms / 60000, 1, true)} min`;
      if (size >= 10000) return `${fixed(ms / 1000, 1, true)} s`;
      if (size >= 100) return `${fixed(ms, 0, true)} ms`;
      return size >= 1 || size === 0 ? `${fixed(ms, 1)} ms` : `${fixed(ms * 1000, 1)} µs`;
    },
    share: (share) => `${fixed(share * 100, 1)} %`,
    count: (count) => fixed(count, Number.isInteger(count) ? 0 : 1, true),
    flops: (flops) => si(flops, "FLOP"),
    bytes: (bytes) => si(bytes, "B"),
    ratio: (ratio) => `${fixed(ratio, 2)}x`,
    text: shortened,
    name: shortened,
  };

  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  class Table {
    constructor(element) {
      this.element = element;
      this.columns = all("th", element).map((head) => ({ head, ...head.dataset }));
      this.size = Number(element.dataset.size);
      this.page = 0;
      this.words = "";
      const sorted = this.columns.find((column) => column.head.hasAttribute("aria-sort"));
      this.order = { column: sorted, falling: true };
      for (const column of this.columns) column.head.querySelector("button")?.addEventListener("click", () => this.sort(column));
      const search = document.querySelector(`[data-search="${element.id}"]`);
      search?.addEventListener("input", () => { this.words = search.value.toLowerCase(); this.page = 0; this.draw(); });
      this.pagers = all(`[data-page="${element.id}"]`);
      for (const button of this.pagers)
        button.addEventListener("click", () => { this.page += Number(button.dataset.by); this.draw(); });
      this.status(this.rows().length);
    }
    value(row, column) {
      const value = row[column.key];
      return column.minus && value !== null ? value - row[column.minus] : value;
    }
    rows() {
      const rows = result()[this.element.dataset.rows];
      const found = this.words ? rows.filter((row) => `${row.name ?? row.op} ${row.class ?? ""}`.toLowerCase().includes(this.words)) : [...rows];
      const { column, falling } = this.order;
      const way = falling ? -1 : 1;
      return found.sort((a, b) => {
        const [x, y] = [this.value(a, column), this.value(b, column)];
        if (x === null || y === null) return (x === null) - (y === null);
        return (x < y ? -1 : x > y ? 1 : 0) * way;
      });
    }
    sort(column) {
      const again = this.order.column === column;
      this.order = { column, falling: again ? !this.order.falling : !["name", "text"].includes(column.as) };
      for (const other of this.columns) other.head.removeAttribute("aria-sort");
      column.head.setAttribute("aria-sort", this.order.falling ? "descending" : "ascending");
      this.page = 0;
      this.draw();
    }
    draw() {
      const rows = this.rows();
      this.page = Math.max(0, Math.min(this.page, Math.ceil(rows.length / this.size) - 1));
      const first = this.page * this.size;
      this.element.tBodies[0].replaceChildren(...rows.slice(first, first + this.size).map((row) => this.row(row)));
      this.status(rows.length);
    }
    status(count) {
      const first = this.page * this.size;
      const last = Math.min(first + this.size, count);
      const told = document.querySelector(`[data-status="${this.element.id}"]`);
      if (told) told.textContent = count ? `${first + 1} to ${last} of ${show.count(count)}` : "nothing found";
      for (const button of this.pagers) button.disabled = Number(button.dataset.by) < 0 ? this.page === 0 : last >= count;
    }
    row(row) {
      const made = document.createElement("tr");
      for (const column of this.columns) made.append(this.cell(row, column));
      return made;
    }
    cell(row, column) {
      const cell = document.createElement("td");
      if (column.as === "link") return this.link(cell, row);
      const value = this.value(row, column);
      const as = column.as === "bar" ? "ms" : column.as;
      const text = value === null || value === undefined ? MISSING : show[as](value);
      if (column.as === "name") {
        cell.className = "name";
        const isolated = document.createElement("bdi");
        isolated.textContent = text;
        cell.append(isolated);
        const place = [row.where, row.module].filter(Boolean).join(" · ");
        if (place) {
          const below = document.createElement("bdi");
          Object.assign(below, { className: "place", textContent: shortened(place, 120) });
          cell.append(below);
        }
        return cell;
      }
      cell.className = column.as === "text" ? "kind" : "number";
      if (column.as !== "bar") cell.append(text);
      else {
        const beside = document.createElement("span");
        Object.assign(beside, { className: "beside-bar", textContent: text });
        cell.append(this.bar(value ?? 0), beside);
      }
      return cell;
    }
    bar(value) {
      this.longest ??= result()[this.element.dataset.rows].reduce((most, row) => Math.max(most, row.ms ?? 0), 0);
      const bar = svg("svg", { class: "cellbar", "aria-hidden": "true" });
      bar.append(svg("rect", { width: `${((value / (this.longest || 1)) * 100).toFixed(2)}%`, height: "100%" }));
      return bar;
    }
    link(cell, row) {
      const span = row.longest;
      const file = span && result().source.files[span.file]?.replaceAll("\\", "/").split("/").pop();
      if (!file || file === "-" || file.length > 255) return cell;
      const margin = Math.floor(span.dur_ns * Number(this.element.dataset.margin));
      const [begin, end] = [Math.max(0, span.start_ns - margin), span.start_ns + span.dur_ns + margin];
      const link = document.createElement("a");
      const name = encodeURIComponent(encodeURIComponent(file.toWellFormed?.() ?? file));
      Object.assign(link, { className: "trace", target: "_blank", rel: "noopener noreferrer", textContent: "trace\u00a0↗" });
      link.href = `${this.element.dataset.address}${name}&visStart=${begin}&visEnd=${end}`;
      link.setAttribute("aria-label", `longest call of ${shortened(row.name)} in Perfetto`);
      cell.append(link);
      return cell;
    }
  }
  for (const table of all("table[data-rows]")) new Table(table);

  // Tables that are complete sort their rows by what these show: figures by their size, whatever the unit, or text.
  const SIZES = { µs: 1e-3, ms: 1, s: 1e3, min: 6e4, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
  const PREFIXES = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
  const size = (text) => {
    const found = /^[≥~]? ?([+\-−]?)([\d,]+(?:\.\d+)?)x?(?: (\S+))?/.exec(text);
    if (!found) return null;
    const unit = found[3] ?? "";
    const scale = SIZES[unit] ?? (/^[kMGTPE](B|FLOP)/.test(unit) ? PREFIXES[unit[0]] : 1);
    return Number(found[2].replaceAll(",", "")) * scale * (found[1] && found[1] !== "+" ? -1 : 1);
  };
  for (const table of all("table[data-sorts]")) {
    const rows = [...table.tBodies[0].rows];
    const heads = all("th", table);
    if (rows.length < 2 || rows.some((row) => row.cells.length !== heads.length)) continue;
    for (const [at, head] of heads.entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const texts = new Map(rows.map((row) => [row, row.cells[at].textContent.trim()]));
      const sizes = new Map(rows.map((row) => [row, size(texts.get(row))]));
      const byText = at === 0 || [...sizes.values()].every((one) => one === null);
      button.addEventListener("click", () => {
        const way = head.getAttribute("aria-sort") ?? (byText ? "descending" : "ascending");
        const sign = way === "descending" ? 1 : -1;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const order = (a, b) => {
          if (byText) return texts.get(a).localeCompare(texts.get(b), "en", { numeric: true }) * sign;
          const [x, y] = [sizes.get(a), sizes.get(b)];
          return x === null || y === null ? (x === null) - (y === null) : (x - y) * sign;
        };
        table.tBodies[0].append(...[...rows].sort(order));
      });
    }
  }

  // Tooltips, for the pointer and for the keyboard; arrow keys walk along the marks of a chart.
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const tell = (mark, x, y) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 16}px`;
  };
  const markOf = (event) => event.target instanceof Element && event.target.closest("[data-tip]");
  document.addEventListener("pointermove", (event) => {
    const mark = markOf(event);
    if (mark) tell(mark, event.clientX, event.clientY); else hide();
  });
  document.addEventListener("focusin", (event) => {
    const mark = markOf(event);
    if (!mark) return hide();
    const box = mark.getBoundingClientRect();
    return tell(mark, box.left + box.width / 2, box.bottom - 8);
  });
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const mark = markOf(event);
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!mark || !by) return;
    const marks = all("[data-tip]", mark.closest("svg[role=group]"));
    const next = marks[marks.indexOf(mark) + by];
    if (!next) return;
    event.preventDefault();
    mark.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  // The step over time, wider than the screen: the stretch in the middle stays in the middle, a phase fills the screen.
  const widen = (lanes, times) => { lanes.firstElementChild.style.width = `${times * 100}%`; };
  for (const radio of all("input[name=zoom]"))
    radio.addEventListener("change", () => {
      for (const lanes of all(".lanes")) {
        const middle = (lanes.scrollLeft + lanes.clientWidth / 2) / lanes.scrollWidth;
        widen(lanes, Number(radio.value));
        lanes.scrollLeft = middle * lanes.scrollWidth - lanes.clientWidth / 2;
      }
    });
  for (const link of all("a[data-times]"))
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const lanes = link.closest(".drawn-step").querySelector(".lanes");
      widen(lanes, Number(link.dataset.times));
      for (const radio of all("input[name=zoom]")) radio.checked = false;
      const mark = document.getElementById(link.hash.slice(1));
      const names = lanes.querySelector(".lane-name").getBoundingClientRect().width;
      lanes.scrollLeft += mark.getBoundingClientRect().left - lanes.getBoundingClientRect().left - names - 12;
      mark.focus({ preventScroll: true });
    });

  const theme = document.getElementById("theme");
  const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const press = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.hidden = false;
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; press(); });
  press();

  const save = document.getElementById("save-json");
  save.hidden = false;
  save.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([source.textContent], { type: "application/json" }));
    link.download = "stepgrade.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  // Paper cannot be clicked: numbers are printed unfolded.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details.numbers:not([open])");
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
})();
