"use strict";
// The timeline: a canvas that draws only the visible rows, so that 10,000 are as fast as ten.
// All text is set by textContent or drawn on the canvas: data never becomes markup.

const ROW = 20, AXIS = 24, LANE = 16, LANES = 3, KINDS = ["span", "group", "task", "foreign"];

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function seconds(value) {
  if (value >= 3599.5) {
    const whole = Math.round(value / 60);
    return Math.floor(whole / 60).toLocaleString("en") + " h " + String(whole % 60).padStart(2, "0") + " m";
  }
  if (value >= 119.95) {
    const whole = Math.round(value);
    return Math.floor(whole / 60) + " m " + String(whole % 60).padStart(2, "0") + " s";
  }
  if (value >= 9.995) return value.toFixed(1) + " s";
  if (value >= 0.9995) return value.toFixed(2) + " s";
  if (value >= 0.0005) return (value * 1000).toFixed(0) + " ms";
  return value === 0 ? "0 s" : "<1 ms";
}

// Of a span that has its start alone (flag 2), nothing is known.
function lasted(start, end, flags) {
  return flags & 2 && end - start < 5e-4 ? "" : seconds(end - start);
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

class Timeline {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.box = root.querySelector(".timeline");
    this.canvas = root.querySelector("canvas");
    this.picked = root.querySelector(".picked");
    this.tip = root.querySelector(".tip");
    this.more = root.querySelector(".more");
    this.count = root.querySelector(".count");
    this.spacer = element("div");
    this.box.append(this.spacer);
    this.children = data.rows.map(() => 0);
    for (const row of data.rows) if (row[0] >= 0) this.children[row[0]] += 1;
    this.closed = new Set();
    this.begin = 0;
    this.end = Math.max(data.length, 1e-6);
    this.selected = -1;
    this.lanes();
    this.closeSmall();
    this.filter();
    this.listen();
  }

  // The paths of spans at the same time get a line each; those without room are not drawn.
  lanes() {
    const owners = new Map();
    for (const [row, owner, end, parts] of this.data.path) {
      const link = { row, end, parts, start: end - parts.reduce((sum, part) => sum + part, 0) };
      if (!owners.has(owner)) owners.set(owner, []);
      owners.get(owner).push(link);
    }
    const paths = [...owners.values()].map((links) => ({
      links,
      start: Math.min(...links.map((link) => link.start)),
      end: Math.max(...links.map((link) => link.end)),
    }));
    paths.sort((a, b) => (b.end - b.start) - (a.end - a.start));
    const lanes = [];
    this.links = [];
    for (const path of paths) {
      const free = (lane) => lane.every((other) => other.end <= path.start + 1e-3 || path.end <= other.start + 1e-3);
      let lane = lanes.findIndex(free);
      if (lane < 0) {
        if (lanes.length === LANES) continue;
        lane = lanes.push([]) - 1;
      }
      lanes[lane].push(path);
      for (const link of path.links) this.links.push({ ...link, lane });
    }
    this.top = AXIS + lanes.length * LANE;
  }

  // With many rows, only those near the roots are open at first.
  closeSmall() {
    const rows = this.data.rows;
    if (rows.length <= 150) return;
    for (let depth = 8; depth >= 1; depth -= 1) {
      const shown = rows.filter((row) => row[1] <= depth).length;
      if (shown <= 150 || depth === 1) {
        rows.forEach((row, index) => { if (row[1] === depth && this.children[index]) this.closed.add(index); });
        return;
      }
    }
  }

  filter() {
    const rows = this.data.rows;
    const words = this.root.querySelector("[type=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const failed = this.root.querySelector(".failed").checked;
    const kinds = KINDS.map((kind) => {
      const box = this.root.querySelector("." + kind + "s");
      return !box || box.checked;
    });
    const searching = words.length > 0 || failed;
    const keep = new Uint8Array(rows.length);
    let found = 0;
    for (let index = 0; index < rows.length; index += 1) {
      const row = rows[index];
      if (!kinds[row[2]]) continue;
      if (failed && !(row[6] & 1)) continue;
      if (words.length) {
        const text = this.textOf(index);
        if (!words.every((word) => text.includes(word))) continue;
      }
      found += 1;
      keep[index] = 2;
      // Keep its ancestors too, for context.
      if (searching) for (let up = row[0]; up >= 0 && !keep[up]; up = rows[up][0]) keep[up] = 1;
    }
    this.shown = [];
    let closedDepth = Infinity;
    for (let index = 0; index < rows.length; index += 1) {
      const depth = rows[index][1];
      if (depth <= closedDepth) closedDepth = Infinity;
      if (!keep[index] || closedDepth < depth) continue;
      this.shown.push(index);
      if (!searching && this.closed.has(index)) closedDepth = depth;
    }
    this.keep = keep;
    this.count.textContent = searching ? found.toLocaleString() + " found" : this.shown.length.toLocaleString() + " of " + rows.length.toLocaleString() + " rows";
    this.layout();
  }

  textOf(index) {
    this.texts = this.texts || [];
    if (this.texts[index] === undefined) {
      const row = this.data.rows[index];
      const values = row[8].filter((_, place) => place % 2).map((value) => this.value(value)).join(" ");
      this.texts[index] = (row[3] + " " + values).toLowerCase();
    }
    return this.texts[index];
  }

  // Long texts are stored once; a list with one number refers to them.
  value(stored) {
    return Array.isArray(stored) ? this.data.long[stored[0]] : String(stored);
  }

  layout() {
    // As high as its rows, up to the maximum of the style; beyond it, it scrolls and says so.
    this.box.style.height = Math.max(3, this.shown.length) * ROW + this.top + 2 + "px";
    const width = this.box.clientWidth, height = this.box.clientHeight;
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.labels = Math.min(Math.max(130, width * 0.34), 420);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    this.spacer.style.height = Math.max(0, this.shown.length * ROW + this.top - height) + "px";
    this.ask();
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  x(value) {
    return this.labels + ((value - this.begin) / (this.end - this.begin)) * (this.width - this.labels - 8);
  }

  draw() {
    const ctx = this.canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    const c = Object.fromEntries(["bg", "panel", "line", "text", "dim", "bad", "row", "mark", ...KINDS].map((n) => [n, colour(n)]));
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = c.bg;
    ctx.fillRect(0, 0, this.width, this.height);
    ctx.font = "12px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    const top = this.box.scrollTop, first = Math.floor(top / ROW);
    const last = Math.min(this.shown.length, Math.ceil((top + this.height) / ROW));
    const below = this.shown.length - Math.floor((top + this.height - this.top) / ROW);
    this.more.textContent = first > 0 || below > 0
      ? "The box scrolls: " + first.toLocaleString() + " rows above, " + Math.max(0, below).toLocaleString() + " below."
      : "";
    this.grid(ctx, c);
    this.path(ctx, c);
    this.events(ctx, c);
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, this.top, this.width, this.height - this.top);
    ctx.clip();
    for (let place = first; place < last; place += 1) {
      this.row(ctx, c, this.shown[place], this.top + place * ROW - top);
    }
    ctx.restore();
    ctx.strokeStyle = c.line;
    ctx.beginPath();
    ctx.moveTo(this.labels - 0.5, 0);
    ctx.lineTo(this.labels - 0.5, this.height);
    ctx.moveTo(0, AXIS - 0.5);
    ctx.lineTo(this.width, AXIS - 0.5);
    ctx.moveTo(0, this.top - 0.5);
    ctx.lineTo(this.width, this.top - 0.5);
    ctx.stroke();
    if (!this.shown.length) {
      ctx.fillStyle = c.dim;
      ctx.fillText("Nothing fits the search.", 10, this.top + 16);
    }
  }

  grid(ctx, c) {
    const span = this.end - this.begin, room = Math.max(1, (this.width - this.labels) / 90);
    let step = Math.pow(10, Math.floor(Math.log10(span / room)));
    for (const factor of [1, 2, 5, 10]) if (span / (step * factor) <= room) { step *= factor; break; }
    ctx.fillStyle = c.dim;
    ctx.strokeStyle = c.line;
    ctx.lineWidth = 1;
    for (let at = Math.ceil(this.begin / step) * step; at <= this.end; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      ctx.globalAlpha = 0.5;
      ctx.beginPath();
      ctx.moveTo(x, AXIS);
      ctx.lineTo(x, this.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      const label = seconds(Math.abs(at) < step / 1e3 ? 0 : at);
      if (x + ctx.measureText(label).width + 4 < this.width) ctx.fillText(label, x + 3, AXIS / 2);
    }
  }

  path(ctx, c) {
    if (!this.links.length) return;
    ctx.fillStyle = c.dim;
    ctx.fillText("path", 18, AXIS + LANE / 2);
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.labels, AXIS, this.width - this.labels, this.top - AXIS);
    ctx.clip();
    for (const { row, lane, start, end, parts } of this.links) {
      const y = AXIS + lane * LANE + 2;
      let at = start;
      parts.forEach((part, number) => {
        const x = this.x(at);
        at += part;
        ctx.fillStyle = this.data.pathParts[number][1];
        if (part > 0) ctx.fillRect(x, y, this.x(at) - x, LANE - 4);
      });
      ctx.fillStyle = c.bg;
      ctx.fillRect(this.x(end) - 1, y, 1, LANE - 4);
      if (row === this.selected) {
        ctx.strokeStyle = c.text;
        ctx.strokeRect(this.x(start) + 0.5, y + 0.5, Math.max(2, this.x(end) - this.x(start) - 2), LANE - 5);
      }
    }
    ctx.restore();
  }

  // Events of the cluster, as triangles on the axis.
  events(ctx, c) {
    ctx.fillStyle = c.bad;
    for (const [at] of this.data.events) {
      const x = this.x(at);
      if (x < this.labels || x > this.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, AXIS - 1);
      ctx.lineTo(x - 5, AXIS - 10);
      ctx.lineTo(x + 5, AXIS - 10);
      ctx.fill();
    }
  }

  row(ctx, c, index, y) {
    const [, depth, kind, name, start, end, flags, queue, , parts] = this.data.rows[index];
    if (index === this.selected) {
      ctx.fillStyle = c.mark;
      ctx.fillRect(0, y, this.width, ROW);
    } else if (depth === 0) {
      ctx.fillStyle = c.row;
      ctx.fillRect(0, y, this.width, ROW);
    }
    const failed = flags & 1, middle = y + ROW / 2;
    const indent = 6 + Math.min(depth, 12) * 12;
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, y, this.labels - 4, ROW);
    ctx.clip();
    ctx.fillStyle = c.dim;
    if (this.children[index]) ctx.fillText(this.closed.has(index) ? "▸" : "▾", indent, middle);
    ctx.fillStyle = failed ? c.bad : this.keep[index] === 1 || kind > 0 ? c.dim : c.text;
    ctx.fillText((failed ? "✗ " : "") + name, indent + 12, middle);
    ctx.restore();
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.labels, y, this.width - this.labels, ROW);
    ctx.clip();
    const x = this.x(start), width = Math.max(2, this.x(end) - x);
    const tall = kind === 0 && parts ? 9 : 12;
    ctx.fillStyle = failed ? c.bad : c[KINDS[kind]];
    if (queue > 0) {
      const waited = Math.min(width, this.x(start + queue) - x);
      ctx.globalAlpha = 0.35;
      ctx.fillRect(x, y + 3, waited, tall);
      ctx.globalAlpha = 1;
      ctx.fillRect(x + waited, y + 3, Math.max(1, width - waited), tall);
    } else {
      ctx.fillRect(x, y + 3, width, tall);
    }
    if (flags & 2) {
      ctx.fillStyle = c.bg;
      for (let place = x + width - 3; place > x + width - 20 && place > x; place -= 5) ctx.fillRect(place, y + 3, 2, tall);
    }
    if (kind === 0 && parts) {
      const whole = parts.reduce((sum, part) => sum + part, 0);
      let at = x;
      parts.forEach((part, number) => {
        const wide = (part / whole) * width;
        ctx.fillStyle = this.data.colours[number];
        ctx.fillRect(at, y + 13, wide, 4);
        at += wide;
      });
    }
    ctx.restore();
    const label = lasted(start, end, flags), room = ctx.measureText(label).width + 8;
    ctx.fillStyle = c.dim;
    if (x + width + room < this.width && x + width > this.labels) ctx.fillText(label, x + width + 5, middle);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (y < AXIS) {
      const events = this.data.events.filter(([at]) => x >= this.labels && Math.abs(this.x(at) - x) <= 6);
      return { x, index: -1, description: events.map(([, level, text]) => level + ": " + text).join("\n") };
    }
    if (y < this.top) {
      const lane = Math.floor((y - AXIS) / LANE);
      const link = x < this.labels ? undefined : this.links.find((one) =>
        one.lane === lane && this.x(one.start) <= x && x <= Math.max(this.x(one.end), this.x(one.start) + 3));
      return { x, link, index: link ? link.row : -1 };
    }
    const place = Math.floor((y - this.top + this.box.scrollTop) / ROW);
    return { x, index: this.shown[place] ?? -1 };
  }

  zoom(factor, around) {
    const length = Math.min(this.data.length, Math.max(1e-6, (this.end - this.begin) * factor));
    const middle = around ?? (this.begin + this.end) / 2;
    const share = (middle - this.begin) / (this.end - this.begin);
    this.move(middle - share * length, length);
  }

  move(begin, length) {
    this.begin = Math.min(Math.max(0, begin), Math.max(0, this.data.length - length));
    this.end = this.begin + length;
    this.ask();
  }

  listen() {
    const on = (name, run) => this.root.querySelector(name).addEventListener("click", run);
    on(".in", () => this.zoom(0.5));
    on(".out", () => this.zoom(2));
    on(".all", () => this.move(0, this.data.length));
    on(".open", () => { this.closed.clear(); this.filter(); });
    on(".close", () => { this.children.forEach((n, i) => { if (n) this.closed.add(i); }); this.filter(); });
    for (const input of this.root.querySelectorAll("input")) input.addEventListener("input", () => this.filter());
    this.box.addEventListener("scroll", () => { this.tip.hidden = true; this.ask(); });
    new ResizeObserver(() => this.layout()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.ask());
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        const share = (this.at(event).x - this.labels) / (this.width - this.labels - 8);
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.begin + Math.max(0, share) * (this.end - this.begin));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        const by = ((event.deltaX || event.deltaY) / (this.width - this.labels)) * (this.end - this.begin);
        this.move(this.begin + by, this.end - this.begin);
      }
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const from = this.at(event);
      this.drag = { x: from.x, begin: this.begin, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const to = this.at(event);
      if (this.drag) {
        const by = this.drag.x - to.x;
        if (Math.abs(by) > 3) this.drag.moved = true;
        const length = this.end - this.begin;
        if (this.drag.moved) this.move(this.drag.begin + (by / (this.width - this.labels)) * length, length);
      }
      this.point(event, to);
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("pointerup", (event) => {
      const to = this.at(event), moved = this.drag && this.drag.moved;
      this.drag = undefined;
      if (moved || to.index < 0) return;
      const arrow = 6 + Math.min(this.data.rows[to.index][1], 12) * 12;
      if (!to.link && this.children[to.index] && to.x >= arrow - 4 && to.x < arrow + 11) this.fold(to.index);
      else this.pick(to.index);
    });
    canvas.addEventListener("dblclick", (event) => {
      const { index } = this.at(event);
      if (index >= 0) this.focusOn(index);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  focusOn(index) {
    const [, , , , start, end] = this.data.rows[index];
    const length = Math.min(this.data.length, Math.max((end - start) * 1.1, 1e-6));
    this.move(start - (length - (end - start)) / 2, length);
  }

  fold(index) {
    if (!this.closed.delete(index)) this.closed.add(index);
    this.filter();
  }

  key(event) {
    const place = this.shown.indexOf(this.selected), length = this.end - this.begin;
    const go = (to) => {
      const index = this.shown[Math.max(0, Math.min(this.shown.length - 1, to))];
      if (index === undefined) return;
      this.pick(index);
      const y = this.shown.indexOf(index) * ROW;
      if (y < this.box.scrollTop) this.box.scrollTop = y;
      if (y + ROW + this.top > this.box.scrollTop + this.height) this.box.scrollTop = y + ROW + this.top - this.height;
    };
    const keys = {
      ArrowDown: () => go(place + 1), ArrowUp: () => go(place - 1),
      PageDown: () => go(place + 15), PageUp: () => go(place - 15),
      ArrowLeft: () => this.move(this.begin - length / 8, length),
      ArrowRight: () => this.move(this.begin + length / 8, length),
      "+": () => this.zoom(0.5), "-": () => this.zoom(2), Escape: () => this.move(0, this.data.length),
      Enter: () => { if (this.selected >= 0) this.fold(this.selected); },
      f: () => { if (this.selected >= 0) this.focusOn(this.selected); },
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
  }

  point(event, { index, link, description }) {
    if (description) { this.say(event, description); return; }
    if (index < 0) { this.tip.hidden = true; return; }
    const [, , kind, name, start, end, flags, queue] = this.data.rows[index];
    const known = [lasted(start, end, flags), "from " + seconds(start)];
    let text = name + "\n" + known.filter(Boolean).join(", ");
    if (link) {
      text = name;
      link.parts.forEach((part, number) => { if (part >= 5e-4) text += "\n" + this.data.pathParts[number][0] + " " + seconds(part); });
    }
    if (queue > 0) text += "\nwaited " + seconds(queue);
    if (flags & 2) text += "\nstill open at the end of the telemetry";
    if (kind === 3) text += "\nof another service";
    this.say(event, text);
  }

  say(event, text) {
    this.tip.textContent = text;
    this.tip.style.whiteSpace = "pre-line";
    this.tip.hidden = false;
    this.tip.style.left = Math.min(event.clientX + 14, innerWidth - this.tip.offsetWidth - 8) + "px";
    this.tip.style.top = Math.min(event.clientY + 14, innerHeight - this.tip.offsetHeight - 8) + "px";
  }

  pick(index) {
    this.selected = index;
    this.ask();
    const row = this.data.rows[index], table = element("table"), body = element("tbody");
    const add = (key, value) => {
      const line = element("tr");
      line.append(element("td", key, "dim"));
      const cell = element("td");
      // Only a complete web address becomes a link.
      if (/^https?:\/\/[^\s]+$/i.test(value)) {
        const link = element("a", value);
        link.href = value;
        link.rel = "noopener noreferrer";
        link.target = "_blank";
        cell.append(link);
      } else cell.textContent = value;
      line.append(cell);
      body.append(line);
    };
    add("start", new Date(this.data.start + row[4] * 1000).toISOString() + "  (" + seconds(row[4]) + ")");
    add("duration", lasted(row[4], row[5], row[6]));
    const attributes = row[8];
    for (let place = 0; place < attributes.length; place += 2) {
      add(this.data.keys[attributes[place]], this.value(attributes[place + 1]));
    }
    table.append(body);
    this.picked.replaceChildren(element("b", row[3]), table);
    this.picked.hidden = false;
  }
}

async function openTimelines(scope) {
  for (const root of scope.querySelectorAll("[data-timeline]")) {
    if (root.dataset.done) continue;
    root.dataset.done = "1";
    const text = document.getElementById(root.dataset.timeline).textContent;
    root.timeline = new Timeline(root, await unpack(text));
    root.dataset.ready = "1";
  }
}
