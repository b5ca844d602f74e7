"use strict";
// The flame graph: spans, task prefixes, then functions, the outermost ones on top. A canvas that draws only frames that are wide enough to be seen.

const LAYER = 19;

class Flame {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.canvas = root.querySelector("canvas");
    this.tip = root.querySelector(".tip");
    this.said = root.querySelector(".said");
    this.count = root.querySelector(".count");
    // Of each node: frame, depth, microseconds, its own, widest line of these, microseconds before.
    this.nodes = [{ depth: -1, whole: data.whole, before: data.before, own: 0, at: 0, children: [], name: "all", file: "" }];
    const above = [this.nodes[0]];
    for (const [frame, depth, whole, own, line, before] of data.nodes) {
      const [name, file, first] = data.frames[frame], parent = above[depth];
      const last = parent.children[parent.children.length - 1];
      const node = { depth, whole, own, before, parent, at: last ? last.at + last.whole : parent.at, children: [], name, file, line: line || first };
      parent.children.push(node);
      above[depth + 1] = node;
      this.nodes.push(node);
    }
    this.zoomed = this.selected = this.nodes[0];
    this.words = [];
    this.listen();
    this.layout();
    this.say();
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return this.find(event.clientX - box.left, event.clientY - box.top);
    };
    this.root.querySelector("[type=search]").addEventListener("input", (event) => {
      this.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      this.say();
    });
    this.root.querySelector(".all").addEventListener("click", () => this.zoom(this.nodes[0]));
    this.canvas.addEventListener("click", (event) => { const node = at(event); if (node) this.zoom(node); });
    this.canvas.addEventListener("mousemove", (event) => {
      const node = at(event);
      this.tip.hidden = !node;
      if (!node) return;
      this.tip.textContent = this.about(node);
      this.tip.style.left = Math.min(event.clientX + 14, innerWidth - this.tip.offsetWidth - 8) + "px";
      this.tip.style.top = Math.min(event.clientY + 14, innerHeight - this.tip.offsetHeight - 8) + "px";
    });
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    addEventListener("resize", () => this.layout());
    dark.addEventListener("change", () => this.draw());
  }

  key(event) {
    const { parent, children } = this.selected, beside = parent ? parent.children : [this.selected];
    const place = beside.indexOf(this.selected);
    const widest = children.reduce((best, one) => (best && best.whole >= one.whole ? best : one), null);
    const to = { ArrowUp: parent, ArrowDown: widest, ArrowLeft: beside[place - 1], ArrowRight: beside[place + 1] };
    if (event.key in to) { if (to[event.key]) this.select(to[event.key]); }
    else if (event.key === "Enter") this.zoom(this.selected);
    else if (event.key === "Escape") this.zoom(this.nodes[0]);
    else return;
    event.preventDefault();
  }

  zoom(node) {
    this.zoomed = node;
    this.select(node);
  }

  select(node) {
    this.selected = node;
    // The selected frame is in the picture.
    const outside = node.at < this.zoomed.at || node.at + node.whole > this.zoomed.at + this.zoomed.whole;
    if (outside) this.zoomed = node;
    this.say();
  }

  matches(node) {
    const text = (node.name + " " + node.file).toLowerCase();
    return this.words.length > 0 && node.depth >= 0 && this.words.every((word) => text.includes(word));
  }

  about(node) {
    const share = ((100 * node.whole) / (this.data.whole || 1)).toFixed(1) + " %";
    const place = node.file ? " (" + node.file + ":" + node.line + ")" : "";
    const own = node.own ? ", " + seconds(node.own / 1e6) + " of it its own" : "";
    const key = node.depth === 1 ? node.parent.name + "\n" + node.name : node.name;
    const known = this.data.cpu && node.depth >= 0 && node.depth < 2 ? this.data.cpu[key] : undefined;
    const cpu = known ? ". By Dask: " + seconds(known[0]) + " on the CPU, " + seconds(known[1]) + " off it" : "";
    const grown = this.data.compared ? (node.whole < node.before ? "; −" : "; +") + seconds(Math.abs(node.whole - node.before) / 1e6) + " since A, which had " + seconds(node.before / 1e6) : "";
    return node.name + place + ": " + seconds(node.whole / 1e6) + ", " + share + own + grown + cpu;
  }

  say() {
    this.said.textContent = this.about(this.selected);
    let found = 0, until = -1;
    // Nodes are in the order of the tree: one below a match is counted with it.
    for (const node of this.nodes) {
      if (this.matches(node) && node.at >= until) { found += node.whole; until = node.at + node.whole; }
    }
    this.count.textContent = this.words.length ? seconds(found / 1e6) + " match" : "";
    this.draw();
  }

  layout() {
    const ratio = window.devicePixelRatio || 1, depth = Math.max(...this.nodes.map((node) => node.depth));
    this.width = this.canvas.parentElement.clientWidth;
    this.height = (depth + 2) * LAYER;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = this.width + "px";
    this.canvas.style.height = this.height + "px";
    this.draw();
  }

  box(node) {
    const scale = this.width / (this.zoomed.whole || 1);
    const left = Math.max(0, (node.at - this.zoomed.at) * scale);
    return [left, Math.min(this.width, (node.at + node.whole - this.zoomed.at) * scale) - left];
  }

  find(x, y) {
    const depth = Math.floor(y / LAYER) - 1;
    return this.nodes.find((node) => {
      const [left, width] = this.box(node);
      return node.depth === depth && left <= x && x < left + width;
    });
  }

  colour(node) {
    // Red: more time than before; blue: less. The paler, the smaller is the part of it that changed.
    if (this.data.compared) {
      const part = Math.abs(node.whole - node.before) / Math.max(node.whole, node.before, 1), hue = node.whole < node.before ? 215 : 8;
      return dark.matches ? `hsl(${hue} ${80 * part}% ${22 + 14 * part}%)` : `hsl(${hue} ${90 * part}% ${92 - 22 * part}%)`;
    }
    if (node.depth < 2) return getComputedStyle(document.documentElement).getPropertyValue(["--line", "--group", "--task"][node.depth + 1]);
    const module = node.file.split("/")[0];
    let hue = 0;
    for (const letter of module) hue = (hue * 31 + letter.charCodeAt(0)) % 360;
    return dark.matches ? `hsl(${hue} 35% 30%)` : `hsl(${hue} 60% 80%)`;
  }

  draw() {
    const ctx = this.canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement), named = (name) => style.getPropertyValue(name).trim();
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, this.width, this.height);
    ctx.font = "12px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    for (const node of this.nodes) {
      const [left, width] = this.box(node);
      if (width < 0.5) continue;
      const top = (node.depth + 1) * LAYER;
      ctx.globalAlpha = this.words.length && !this.matches(node) ? 0.35 : 1;
      ctx.fillStyle = this.matches(node) ? named("--mark") : this.colour(node);
      ctx.fillRect(left, top, Math.max(0.5, width - 1), LAYER - 1);
      ctx.globalAlpha = 1;
      if (node === this.selected) {
        ctx.strokeStyle = named("--note");
        ctx.lineWidth = 2;
        ctx.strokeRect(left + 1, top + 1, Math.max(1, width - 3), LAYER - 3);
      }
      const letters = Math.floor((width - 8) / 6.5);
      if (letters < 2) continue;
      ctx.fillStyle = named("--text");
      ctx.fillText(node.name.length > letters ? node.name.slice(0, letters - 1) + "…" : node.name, left + 4, top + LAYER / 2);
    }
  }
}

async function openFlames(scope) {
  for (const root of scope.querySelectorAll("[data-flame]")) {
    if (root.flame) continue;
    root.flame = new Flame(root, await unpack(document.getElementById(root.dataset.flame).textContent));
  }
}
