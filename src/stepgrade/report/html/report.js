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

  // The step over time, wider than the screen. What is stretched is drawn anew in detail: slices that a whole
  // step has no room for come apart, and carry their names where these fit.
  const MOST_TIMES = 256;
  const LETTER = 7;
  const details = document.getElementById("stepgrade-lanes");
  const detailed = all("svg[data-span]");
  const legend = (look) => document.querySelector(`.legend .${look}`)?.nextSibling.textContent.trim() ?? look;
  let known = null;
  // The slices of a lane: [start, length, label, look, events], in nanoseconds.
  const slicesOf = (strip) => {
    known ??= JSON.parse(details.textContent);
    const numbers = known.lanes[detailed.indexOf(strip)] ?? [];
    const slices = [];
    for (let at = 0, end = 0; at < numbers.length; at += 5) {
      const start = end + numbers[at];
      end = start + numbers[at + 1];
      slices.push([start * 100, numbers[at + 1] * 100, known.names[numbers[at + 2]], known.names[numbers[at + 3]], numbers[at + 4]]);
    }
    return slices;
  };
  class Lanes {
    constructor(element) {
      this.element = element;
      this.inner = element.firstElementChild;
      this.times = 1;
      this.words = "";
      this.strips = all("svg[data-span]", element).map((strip) => ({ strip, drawn: [...strip.childNodes], lane: undefined }));
      this.axis = element.querySelector(".axis");
      this.ticks = [...(this.axis?.childNodes ?? [])];
      element.addEventListener("scroll", () => this.later());
      element.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(this.times * 1.3 ** -Math.sign(event.deltaY), event.clientX);
      }, { passive: false });
      element.addEventListener("keydown", (event) => {
        const by = { "+": 2, "=": 2, w: 2, "-": 0.5, s: 0.5, 0: 0 }[event.key];
        const move = { a: -0.2, d: 0.2, ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
        if (event.ctrlKey || event.metaKey || event.altKey || (event.target !== element && event.key.startsWith("Arrow"))) return;
        if (by !== undefined) this.zoom(by ? this.times * by : 1);
        else if (move) element.scrollLeft += move * element.clientWidth;
        else return;
        event.preventDefault();
      });
      element.addEventListener("pointerdown", (event) => {
        if (event.pointerType !== "mouse" || event.button !== 0) return;
        const [x, left] = [event.clientX, element.scrollLeft];
        const drag = (moved) => {
          element.classList.add("drags");
          element.scrollLeft = left - (moved.clientX - x);
        };
        const drop = () => { element.classList.remove("drags"); removeEventListener("pointermove", drag); };
        addEventListener("pointermove", drag);
        addEventListener("pointerup", drop, { once: true });
      });
    }
    get names() { return this.element.querySelector(".lane-name").getBoundingClientRect().width + 8; }
    zoom(times, at) {
      const box = this.element.getBoundingClientRect();
      const offset = at === undefined ? box.width / 2 : at - box.left;
      const share = (this.element.scrollLeft + offset - this.names) / (this.element.scrollWidth - this.names);
      this.times = Math.max(1, Math.min(MOST_TIMES, times));
      this.inner.style.width = `${this.times * 100}%`;
      this.element.scrollLeft = share * (this.element.scrollWidth - this.names) - offset + this.names;
      for (const radio of all("input[name=zoom]")) radio.checked = Number(radio.value) === this.times;
      this.later();
    }
    later() {
      this.waiting ??= requestAnimationFrame(() => { this.waiting = undefined; this.draw(); });
    }
    draw() {
      const is_whole = this.times === 1 && !this.words;
      const width = this.inner.clientWidth - this.names;
      const [first, last] = [(this.element.scrollLeft - 200) / width, (this.element.scrollLeft + this.element.clientWidth + 200) / width];
      for (const one of this.strips) {
        if (is_whole) { one.strip.replaceChildren(...one.drawn); continue; }
        one.slices ??= slicesOf(one.strip);
        this.strip(one, width, first, last);
      }
      this.clock(width, first, last, is_whole);
      this.inner.classList.toggle("finding-words", Boolean(this.words));
    }
    strip({ strip, drawn, slices }, width, first, last) {
      const [shift, span] = [Number(strip.dataset.shift), Number(strip.dataset.span)];
      const made = [];
      let end = -1;
      for (const [start, length, label, look, events] of slices) {
        const x = (shift + start) / span;
        const wide = length / span;
        if (x + wide < first || x > last) continue;
        const found = this.words && label.toLowerCase().includes(this.words);
        if (!found && (x + wide) * width < end + 0.5) continue;
        end = (x + wide) * width;
        const name = look.startsWith("account-") ? legend(look) : label;
        const tip = `${name}: ${show.ms(length / 1e6)}${events > 1 ? ` · ${show.count(events)} events` : ""}`;
        const mark = svg("g", { class: `mark ${look}${found ? " found" : ""}`, "data-tip": tip, role: "img", "aria-label": tip, tabindex: made.length ? -1 : 0 });
        mark.append(svg("rect", { x: `${x * 100}%`, width: `${Math.max(wide * 100, 0.002)}%`, height: "100%" }));
        if (wide * width > LETTER * Math.min(name.length, 8) + 6) {
          const letters = Math.floor((wide * width - 6) / LETTER);
          const text = svg("text", { class: "label", x: `${x * 100}%`, dx: 3, y: "50%", dy: "0.35em" });
          text.textContent = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
          mark.append(text);
        }
        made.push(mark);
      }
      const pins = drawn.filter((node) => node.textContent.trim() === "▼").map((node) => node.querySelector("text").cloneNode(true));
      strip.replaceChildren(...made, ...pins);
    }
    clock(width, first, last, is_whole) {
      if (!this.axis) return;
      if (is_whole) { this.axis.replaceChildren(...this.ticks); return; }
      const span = Number(this.strips[0].strip.dataset.span) / 1e6;
      const rough = (span * this.element.clientWidth) / width / 5;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((nice) => nice * power).find((nice) => nice >= rough);
      const made = [];
      for (let ms = Math.max(0, Math.ceil((first * span) / step) * step); ms <= Math.min(span, last * span); ms += step) {
        const text = svg("text", { class: "tick", x: `${(ms / span) * 100}%`, y: "1em" });
        text.textContent = show.ms(Math.round(ms * 1e6) / 1e6);
        made.push(text);
      }
      this.axis.replaceChildren(...made);
    }
    // Show the next slice whose name has the words, wide enough to be read; the number of slices that have them.
    find(words, next) {
      this.words = words.toLowerCase();
      const hits = [];
      for (const one of this.words ? this.strips : []) {
        one.slices ??= slicesOf(one.strip);
        const [shift, span] = [Number(one.strip.dataset.shift), Number(one.strip.dataset.span)];
        for (const [start, length, label] of one.slices)
          if (label.toLowerCase().includes(this.words)) hits.push([(shift + start) / span, length / span, one.strip]);
      }
      hits.sort((a, b) => a[0] - b[0]);
      this.hit = next ? ((this.hit ?? -1) + 1) % (hits.length || 1) : undefined;
      if (next && hits.length) {
        const [x, wide, strip] = hits[this.hit];
        this.zoom(Math.max(this.times, Math.min(64, 80 / (wide * (this.element.clientWidth - this.names) || 1))));
        this.element.scrollLeft = x * (this.inner.clientWidth - this.names) - this.element.clientWidth / 3;
        strip.scrollIntoView({ block: "nearest", inline: "nearest" });
      }
      this.later();
      return hits.length;
    }
  }
  const timelines = new Map(all(".lanes").map((element) => [element, new Lanes(element)]));
  for (const radio of all("input[name=zoom]"))
    radio.addEventListener("change", () => { for (const lanes of timelines.values()) lanes.zoom(Number(radio.value)); });
  for (const link of all("a[data-times]"))
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const element = link.closest(".drawn-step").querySelector(".lanes");
      const lanes = timelines.get(element);
      const mark = document.getElementById(link.hash.slice(1)) ?? lanes.strips.flatMap((one) => one.drawn).find((node) => node.id === link.hash.slice(1));
      const x = parseFloat(mark.querySelector("rect").getAttribute("x")) / 100;
      lanes.zoom(Number(link.dataset.times));
      element.scrollLeft = x * (lanes.inner.clientWidth - lanes.names) - 12;
      element.focus({ preventScroll: true });
    });
  const finder = document.querySelector(".finder");
  if (finder) {
    finder.hidden = false;
    const input = finder.querySelector("input");
    const told = finder.querySelector("[role=status]");
    const search = (next) => {
      const counts = [...timelines.values()].filter((lanes) => lanes.element.offsetParent).map((lanes) => lanes.find(input.value, next));
      told.textContent = input.value ? `${show.count(counts.reduce((sum, one) => sum + one, 0))} found` : "";
    };
    input.addEventListener("input", () => search(false));
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); search(true); } });
  }

  // The icicle: a click or Enter makes a part as wide as the page, the path above it leads back.
  for (const icicle of all(".icicles")) {
    const marks = all(".mark", icicle).map((mark) => {
      const rect = mark.firstElementChild;
      return { mark, rect, level: mark.parentElement, x: parseFloat(rect.getAttribute("x")), wide: parseFloat(rect.getAttribute("width")), look: mark.getAttribute("class") };
    });
    const levels = [...icicle.children];
    const crumbs = document.createElement("p");
    crumbs.className = "crumbs";
    icicle.before(crumbs);
    const show_part = (part) => {
      const [from, wide] = part ? [part.x, part.wide] : [0, 100];
      for (const one of marks) {
        const [begin, end] = [Math.max(one.x, from), Math.min(one.x + one.wide, from + wide)];
        const inside = end - begin > 1e-6;
        one.mark.style.display = inside ? "" : "none";
        if (!inside) continue;
        const [x, width] = [((begin - from) / wide) * 100, ((end - begin) / wide) * 100];
        one.rect.setAttribute("x", `${x}%`);
        one.rect.setAttribute("width", `${width}%`);
        let text = one.mark.querySelector("text");
        const fits = (width / 100) * icicle.clientWidth > one.mark.dataset.name.length * LETTER;
        if (fits && !text) {
          text = svg("text", { y: "50%", dy: "0.35em", "text-anchor": "middle" });
          text.textContent = one.mark.dataset.name;
          one.mark.append(text);
        }
        if (!text) continue;
        text.setAttribute("x", `${x + width / 2}%`);
        text.style.display = fits ? "" : "none";
      }
      const path = part ? marks.filter((one) => levels.indexOf(one.level) <= levels.indexOf(part.level) && one.x <= part.x + 1e-3 && one.x + one.wide >= part.x + part.wide - 1e-3) : [];
      crumbs.replaceChildren();
      for (const [name, target] of part ? [["all", null], ...path.map((one) => [one.mark.dataset.name, one])] : []) {
        const button = document.createElement("button");
        Object.assign(button, { type: "button", textContent: shortened(name, 40) });
        button.addEventListener("click", () => show_part(target));
        crumbs.append(button);
      }
    };
    for (const one of marks) {
      one.mark.addEventListener("click", () => show_part(one));
      one.mark.addEventListener("keydown", (event) => { if (event.key === "Enter") show_part(one); });
    }
    icicle.addEventListener("keydown", (event) => { if (event.key === "Escape") show_part(null); });
  }

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
