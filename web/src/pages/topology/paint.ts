// Draws the network on a canvas: the base when the view changes, the lit way on a second canvas above it. No DOM but the contexts.
import type { Level } from "../../api/ready";
import { bits, count } from "../../ui/format";
import { worst, type Box, type Graph, type Item } from "./graph";
import { cell, type Layout, type Rect } from "./layout";
import type { Leg } from "./way";

/** World coordinate at the canvas's upper left corner, and pixels for each of the world's units. */
export interface View {
  x: number;
  y: number;
  k: number;
}

export interface Size {
  w: number;
  h: number;
  dpr: number;
}

export interface Colors {
  bg: string;
  panel: string;
  raised: string;
  line: string;
  strong: string;
  text: string;
  dim: string;
  accent: string;
  accentSoft: string;
  level: Record<Level, string>;
  soft: Record<Level, string>;
}

/** The colours of the page's present scheme. */
export function readColors(of: Element): Colors {
  const s = getComputedStyle(of);
  const v = (name: string) => s.getPropertyValue(name).trim();
  const levels: Level[] = ["ok", "busy", "warn", "bad", "idle"];
  const each = (suffix: string) => Object.fromEntries(levels.map((l) => [l, v(`--${l}${suffix}`)])) as Record<Level, string>;
  return { bg: v("--bg"), panel: v("--panel"), raised: v("--raised"), line: v("--line"), strong: v("--line-strong"), text: v("--text"), dim: v("--dim"), accent: v("--accent"), accentSoft: v("--accent-soft"), level: each(""), soft: each("-soft") };
}

/** The chosen policy's way. */
export interface Lit {
  policy: string;
  forward: Leg[];
  reverse: Leg[];
  nodes: ReadonlySet<string>;
  /** Packets a second that nodes keep back. */
  losses: ReadonlyMap<string, number>;
  /** Not in force: the way is what the policy asks for. */
  wanted: boolean;
}

export interface Scene {
  graph: Graph;
  layout: Layout;
  items: ReadonlyMap<string, Item>;
  colors: Colors;
  lit?: Lit;
  selected?: string;
  hovered?: string;
  /** What a search found; undefined: nothing is searched. */
  found?: ReadonlySet<string>;
  tunnels: boolean;
}

const sans = "'Inter Variable', system-ui, sans-serif";
const mono = "'JetBrains Mono Variable', ui-monospace, monospace";
const far = 0.42; // below this nothing inside a chip can be read

export function paintBase(c: CanvasRenderingContext2D, size: Size, view: View, s: Scene) {
  begin(c, size, view);
  const seen = visible(size, view);
  links(c, view, s, seen);
  for (const b of s.graph.boxes) {
    const r = s.layout.boxes.get(b.id)!;
    if (meets(r, seen)) box(c, view, s, b, r);
  }
  ways(c, view, s, seen);
  const tiny = view.k < far;
  for (const b of s.graph.boxes) {
    const r = s.layout.boxes.get(b.id)!;
    if (!meets(r, seen)) continue;
    for (const i of b.items) {
      const at = s.layout.items.get(i.id);
      if (at && meets(at, seen)) chip(c, view, s, i, at, tiny);
    }
  }
  c.globalAlpha = 1;
}

/** The way that is lit; t in seconds moves its dashes. */
export function paintTop(c: CanvasRenderingContext2D, size: Size, view: View, s: Scene, t: number) {
  begin(c, size, view);
  const { lit } = s;
  if (!lit) return;
  const both = lit.reverse.length > 0;
  const all = [...lit.reverse.map((l) => ({ l, back: true })), ...lit.forward.map((l) => ({ l, back: false }))];
  for (const { l, back } of all) leg(c, view, s, l, back, both, t);
  if (view.k >= far) for (const { l, back } of all) figures(c, view, s, l, back, both);
  for (const [id, n] of lit.losses) {
    const at = rectOf(s.layout, id);
    if (at && n >= 0.5) tag(c, view, `✕ ${count(Math.round(n))}/s lost`, at.x + at.w / 2, at.y + at.h + 9, s.colors.level.bad, s.colors.soft.bad);
  }
}

function begin(c: CanvasRenderingContext2D, size: Size, view: View) {
  c.setTransform(1, 0, 0, 1, 0, 0);
  c.clearRect(0, 0, size.w * size.dpr, size.h * size.dpr);
  const k = view.k * size.dpr;
  c.setTransform(k, 0, 0, k, -view.x * k, -view.y * k);
  c.globalAlpha = 1;
  c.setLineDash([]);
  c.textBaseline = "middle";
  c.textAlign = "left";
}

const visible = (size: Size, v: View): Rect => ({ x: v.x, y: v.y, w: size.w / v.k, h: size.h / v.k });
const meets = (a: Rect, b: Rect) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

/** Where a node is drawn: itself, or the box that hides it. */
export const rectOf = (l: Layout, id: string): Rect | undefined => l.items.get(id) ?? l.boxes.get(id) ?? l.boxes.get(l.inside.get(id) ?? "");

function faded(s: Scene, id: string): boolean {
  if (s.found) return !s.found.has(id);
  return !!s.lit && !s.lit.nodes.has(id);
}

function box(c: CanvasRenderingContext2D, v: View, s: Scene, b: Box, r: Rect) {
  const { colors: q, layout } = s;
  const closed = b.items.length > 0 && layout.inside.get(b.items[0]!.id) === b.id;
  const level = closed ? worst(b) : b.r.level;
  c.globalAlpha = s.found && !s.found.has(b.id) && !b.items.some((i) => s.found!.has(i.id)) ? 0.45 : 1;
  c.beginPath();
  c.roundRect(r.x, r.y, r.w, r.h, b.kind === "switch" ? [18, 18, 6, 6] : 8);
  c.fillStyle = q.panel;
  c.fill();
  const chosen = s.selected === b.id || s.found?.has(b.id);
  c.strokeStyle = chosen ? q.accent : level === "bad" ? q.level.bad : level === "warn" ? q.level.warn : s.hovered === b.id ? q.dim : q.strong;
  c.lineWidth = (chosen ? 2 : level === "bad" ? 1.75 : 1) / v.k;
  if (b.kind === "nowhere") c.setLineDash([6 / v.k, 4 / v.k]);
  c.stroke();
  c.setLineDash([]);

  // The head: shape and name, larger where the whole is large, never larger than text of the page.
  const px = Math.min(14, Math.max(8, layout.head * 0.42 * v.k));
  const font = px / v.k;
  const y = r.y + layout.head / 2 + 2;
  const dot = Math.min(layout.head * 0.28, Math.max(4.5, 4.2 / v.k));
  shape(c, level, r.x + 12 + dot, y, dot, q);
  const x = r.x + 20 + 2 * dot;
  c.font = `600 ${font}px ${sans}`;
  c.fillStyle = q.text;
  const room = r.x + r.w - x - 34;
  if (font < layout.head * 0.95) {
    const name = fit(c, b.name, room);
    c.fillText(name, x, y);
    if (v.k >= far && b.detail) {
      const w = c.measureText(name).width;
      c.font = `${font * 0.82}px ${mono}`;
      c.fillStyle = q.dim;
      const rest = room - w - 12;
      if (rest > 60) c.fillText(fit(c, b.detail, rest), x + w + 10, y + 0.5);
    }
  }
  if (v.k >= far && b.items.length) chevron(c, r.x + r.w - 18, y, closed, q.dim);
  if (closed) {
    const f = b.items.filter((i) => i.kind === "function").length;
    const e = b.items.length - f;
    c.font = `${Math.min(12 / v.k, 22)}px ${sans}`;
    c.fillStyle = q.dim;
    c.fillText(fit(c, [f && `${f} function${f > 1 ? "s" : ""}`, e && `${e} endpoint${e > 1 ? "s" : ""}`].filter(Boolean).join(", "), r.w - 24), r.x + 12, r.y + layout.head + 11);
  } else if (b.items.length === 0 && v.k >= far) {
    c.font = `12px ${sans}`;
    c.fillStyle = q.dim;
    c.fillText(b.kind === "switch" ? "" : "nothing here yet", r.x + 12, r.y + layout.head + 10);
  }
  c.globalAlpha = 1;
}

function chevron(c: CanvasRenderingContext2D, x: number, y: number, closed: boolean, colour: string) {
  c.beginPath();
  if (closed) c.moveTo(x - 2, y - 4), c.lineTo(x + 2.5, y), c.lineTo(x - 2, y + 4);
  else c.moveTo(x - 4, y - 2), c.lineTo(x, y + 2.5), c.lineTo(x + 4, y - 2);
  c.strokeStyle = colour;
  c.lineWidth = 1.6;
  c.stroke();
}

function chip(c: CanvasRenderingContext2D, v: View, s: Scene, i: Item, r: Rect, tiny: boolean) {
  const { colors: q } = s;
  const level = i.r.level;
  const dull = faded(s, i.id);
  c.globalAlpha = dull ? 0.35 : 1;
  const lit = s.lit?.nodes.has(i.id) || s.found?.has(i.id);
  const odd = level === "bad" || level === "warn";
  const end = i.kind === "endpoint";
  c.beginPath();
  if (tiny && !end) c.rect(r.x, r.y, r.w, r.h);
  else c.roundRect(r.x, r.y, r.w, r.h, end ? r.h / 2 : 5);
  c.fillStyle = odd ? q.soft[level] : lit ? q.accentSoft : end ? q.bg : tiny ? q.line : q.raised;
  c.fill();
  const strong = s.selected === i.id || s.hovered === i.id;
  c.strokeStyle = strong || lit ? q.accent : odd ? q.level[level] : tiny ? q.strong : q.line;
  c.lineWidth = (s.selected === i.id ? 2 : 1) / v.k;
  if (!tiny || odd || lit || strong || end) c.stroke();
  if (tiny) {
    // From afar a state is a shape of at least a few pixels; well ones need none.
    if (level !== "ok") shape(c, level, r.x + r.w / 2, r.y + r.h / 2, Math.max(r.h / 4, 3.6 / v.k), q);
    return;
  }
  shape(c, level, r.x + (end ? 17 : 14), r.y + r.h / 2, 4.5, q);
  const x = r.x + (end ? 29 : 26);
  const room = r.x + r.w - x - (end ? 12 : 7);
  c.fillStyle = q.text;
  c.font = `500 12px ${mono}`;
  c.fillText(cut(i.name, room, 7.2), x, r.y + (i.detail ? 13 : 18));
  if (!i.detail) return;
  c.fillStyle = q.dim;
  c.font = `10.500px ${mono}`;
  c.fillText(cut((i.tap ? "tap, " : "") + i.detail, room, 6.3), x, r.y + 26);
}

/** The same shapes as the page's State: circle, triangle, square, open arc, ring. */
function shape(c: CanvasRenderingContext2D, level: Level, x: number, y: number, r: number, q: Colors) {
  c.beginPath();
  c.fillStyle = c.strokeStyle = q.level[level];
  switch (level) {
    case "ok":
      c.arc(x, y, r * 0.9, 0, 7);
      return c.fill();
    case "warn":
      c.moveTo(x, y - r * 1.1);
      c.lineTo(x + r * 1.15, y + r * 0.9);
      c.lineTo(x - r * 1.15, y + r * 0.9);
      return c.fill();
    case "bad":
      c.rect(x - r, y - r, 2 * r, 2 * r);
      return c.fill();
    case "busy":
      c.lineWidth = r * 0.45;
      c.arc(x, y, r * 0.85, -Math.PI / 2, Math.PI);
      return c.stroke();
    default:
      c.lineWidth = r * 0.36;
      c.arc(x, y, r * 0.75, 0, 7);
      c.stroke();
  }
}

function links(c: CanvasRenderingContext2D, v: View, s: Scene, seen: Rect) {
  for (const e of s.graph.edges) {
    if (e.kind !== "link" && (e.kind !== "tunnel" || !s.tunnels)) continue;
    const a = s.layout.boxes.get(e.from);
    const b = s.layout.boxes.get(e.to);
    if (!a || !b || !meets(hull(a, b), seen)) continue;
    const near = s.selected === e.from || s.selected === e.to || s.hovered === e.from || s.hovered === e.to;
    const lit = s.lit?.nodes.has(e.from) && s.lit.nodes.has(e.to);
    c.beginPath();
    const [p, t] = [middle(a), middle(b)];
    c.moveTo(p.x, p.y);
    if (e.kind === "tunnel") {
      const bow = Math.min(60, Math.hypot(t.x - p.x, t.y - p.y) / 6);
      c.quadraticCurveTo((p.x + t.x) / 2, (p.y + t.y) / 2 + bow, t.x, t.y);
    } else c.bezierCurveTo(p.x, (p.y + t.y) / 2, t.x, (p.y + t.y) / 2, t.x, t.y);
    c.setLineDash(e.kind === "tunnel" ? [7 / v.k, 5 / v.k] : []);
    c.strokeStyle = near || lit ? s.colors.accent : e.kind === "link" ? s.colors.dim : s.colors.strong;
    c.lineWidth = (near ? 1.75 : 1.25) / v.k;
    c.stroke();
  }
  c.setLineDash([]);
}

/** What policies steer, quietly; what belongs to the selected node, clearly. */
function ways(c: CanvasRenderingContext2D, v: View, s: Scene, seen: Rect) {
  const crowded = s.graph.edges.length > 150;
  for (const e of s.graph.edges) {
    if (e.kind !== "steers" && e.kind !== "copies") continue;
    const a = rectOf(s.layout, e.from);
    const b = rectOf(s.layout, e.to);
    if (!a || !b || a === b || !meets(hull(a, b), seen) || (s.lit && e.policies.includes(s.lit.policy))) continue;
    const near = s.selected === e.from || s.selected === e.to || s.hovered === e.from || s.hovered === e.to;
    // From afar, ways between many hosts are a web: only a trace of it is left.
    const across = crowded && !near && s.layout.boxes.size > 1 && Math.abs(a.x - b.x) + Math.abs(a.y - b.y) > 3 * cell.w;
    c.globalAlpha = (near ? 1 : across ? (v.k < far ? 0.13 : 0.4) : 1) * ((s.lit || s.found) && !near ? 0.35 : 1);
    const w = wire(a, b, 0);
    c.beginPath();
    trace(c, w);
    c.setLineDash(e.kind === "copies" ? [3 / v.k, 3 / v.k] : []);
    c.strokeStyle = near ? s.colors.accent : s.colors.dim;
    c.lineWidth = (near ? 1.75 : 1.1) / v.k;
    c.stroke();
    c.setLineDash([]);
    if (v.k >= far) arrow(c, w, 4.5 / Math.max(v.k, 0.7), c.strokeStyle);
  }
  c.globalAlpha = 1;
}

function leg(c: CanvasRenderingContext2D, v: View, s: Scene, l: Leg, back: boolean, both: boolean, t: number) {
  const a = rectOf(s.layout, l.from);
  const b = rectOf(s.layout, l.to);
  if (!a || !b || within(a, b) || within(b, a)) return; // a station at its own switch
  const colour = back ? s.colors.level.busy : s.colors.accent;
  // The reply's copies go the same short way as the request's: beside it.
  const w = wire(a, b, both ? (back ? 6 : -6) : 0);
  const moving = (l.rate?.pps ?? 0) > 0;
  c.beginPath();
  trace(c, w);
  c.strokeStyle = colour;
  c.lineWidth = (l.copy ? 1.5 : 2.25) / v.k;
  c.globalAlpha = moving && !l.copy ? 0.45 : 1;
  c.setLineDash(l.copy || s.lit!.wanted ? [4 / v.k, 4 / v.k] : []);
  c.stroke();
  c.globalAlpha = 1;
  if (moving) {
    c.setLineDash([8 / v.k, 10 / v.k]);
    c.lineDashOffset = (-t * 40) / v.k;
    c.stroke();
    c.lineDashOffset = 0;
  }
  c.setLineDash([]);
  arrow(c, w, 6 / Math.max(v.k, 0.6), colour);
}

/** What passes a leg: above the line for packets, below it for replies. */
function figures(c: CanvasRenderingContext2D, v: View, s: Scene, l: Leg, back: boolean, both: boolean) {
  const a = rectOf(s.layout, l.from);
  const b = rectOf(s.layout, l.to);
  if (!a || !b || within(a, b) || within(b, a) || !l.rate) return;
  const colour = back ? s.colors.level.busy : s.colors.accent;
  const w = wire(a, b, both ? (back ? 6 : -6) : 0);
  const pps = `${count(Math.round(l.rate.pps))}/s`;
  const full = `${pps} · ${bits(l.rate.bps / 8).replace("bit/s", "b/s")}`;
  if (l.copy) {
    if (!back && (w.upright || Math.abs(w.x1 - w.x0) > 60)) tag(c, v, `copy ${pps}`, mid(w).x, mid(w).y, colour, s.colors.panel); // the port counts both directions: once is enough
    return;
  }
  const { x, y } = mid(w);
  if (w.upright) {
    if (Math.abs(w.y1 - w.y0) > 26) tag(c, v, full, x + (back ? 4 : -4), y, colour, s.colors.panel, back ? "left" : "right");
    return;
  }
  const room = Math.abs(w.x1 - w.x0);
  const text = room >= full.length * 6.1 + 4 ? full : room >= pps.length * 6.1 ? pps : "";
  if (text) tag(c, v, text, x, y + (back ? 9 : -9), colour, s.colors.panel);
}

const mid = (w: Wire) => point(w, 0.5);

function tag(c: CanvasRenderingContext2D, v: View, text: string, x: number, y: number, colour: string, back?: string, align: "left" | "right" | "center" = "center") {
  if (v.k < far) return;
  c.font = `10px ${mono}`;
  const w = c.measureText(text).width + 6;
  const left = align === "center" ? x - w / 2 : align === "left" ? x : x - w;
  if (back) {
    c.beginPath();
    c.roundRect(left, y - 6.5, w, 13, 3);
    c.fillStyle = back;
    c.fill();
  }
  c.fillStyle = colour;
  c.fillText(text, left + 3, y + 0.5);
}

interface Wire {
  x0: number;
  y0: number;
  cx0: number;
  cy0: number;
  cx1: number;
  cy1: number;
  x1: number;
  y1: number;
  upright: boolean;
}

/** A curve from one node to another, moved aside by off. */
function wire(a: Rect, b: Rect, off: number): Wire {
  const ma = middle(a);
  const mb = middle(b);
  const overlap = a.x < b.x + b.w && b.x < a.x + a.w;
  if (overlap) {
    const down = mb.y > ma.y;
    const [y0, y1] = down ? [a.y + a.h, b.y] : [a.y, b.y + b.h];
    const [x0, x1] = [ma.x + off, mb.x + off];
    const bend = (y1 - y0) / 2;
    return { x0, y0, cx0: x0, cy0: y0 + bend, cx1: x1, cy1: y1 - bend, x1, y1, upright: true };
  }
  const right = mb.x > ma.x;
  const [x0, x1] = right ? [a.x + a.w, b.x] : [a.x, b.x + b.w];
  const [y0, y1] = [ma.y + off, mb.y + off];
  const bend = (x1 - x0) / 2;
  return { x0, y0, cx0: x0 + bend, cy0: y0, cx1: x1 - bend, cy1: y1, x1, y1, upright: false };
}

function trace(c: CanvasRenderingContext2D, w: Wire) {
  c.moveTo(w.x0, w.y0);
  c.bezierCurveTo(w.cx0, w.cy0, w.cx1, w.cy1, w.x1, w.y1);
}

function point(w: Wire, t: number): { x: number; y: number } {
  const u = 1 - t;
  const at = (a: number, b: number, d: number, e: number) => u * u * u * a + 3 * u * u * t * b + 3 * u * t * t * d + t * t * t * e;
  return { x: at(w.x0, w.cx0, w.cx1, w.x1), y: at(w.y0, w.cy0, w.cy1, w.y1) };
}

function arrow(c: CanvasRenderingContext2D, w: Wire, r: number, colour: string | CanvasGradient | CanvasPattern) {
  const angle = w.upright ? Math.sign(w.y1 - w.y0) * (Math.PI / 2) : w.x1 > w.x0 ? 0 : Math.PI;
  c.save();
  c.translate(w.x1, w.y1);
  c.rotate(angle);
  c.beginPath();
  c.moveTo(0, 0);
  c.lineTo(-r * 1.5, -r * 0.8);
  c.lineTo(-r * 1.5, r * 0.8);
  c.closePath();
  c.fillStyle = colour;
  c.fill();
  c.restore();
}

const within = (a: Rect, b: Rect) => a.x >= b.x && a.y >= b.y && a.x + a.w <= b.x + b.w && a.y + a.h <= b.y + b.h;
const middle = (r: Rect) => ({ x: r.x + r.w / 2, y: r.y + r.h / 2 });

function hull(a: Rect, b: Rect): Rect {
  const [x, y] = [Math.min(a.x, b.x), Math.min(a.y, b.y)];
  return { x, y, w: Math.max(a.x + a.w, b.x + b.w) - x + 1, h: Math.max(a.y + a.h, b.y + b.h) - y + 1 };
}

/** Text of a font with one width, cut to a room. */
const cut = (text: string, room: number, each: number) => (text.length * each <= room ? text : text.slice(0, Math.max(1, Math.floor(room / each) - 1)) + "…");

function fit(c: CanvasRenderingContext2D, text: string, room: number): string {
  if (room <= 0) return "";
  const w = c.measureText(text).width;
  if (w <= room) return text;
  const n = Math.floor((text.length * room) / w) - 1;
  return n > 0 ? text.slice(0, n) + "…" : "";
}

/** What is at a point of the world; head: in the corner of a box that folds it. */
export function hit(s: Pick<Scene, "graph" | "layout">, x: number, y: number): { id: string; fold?: boolean } | undefined {
  const at = (r: Rect) => x >= r.x && x <= r.x + r.w && y >= r.y && y <= r.y + r.h;
  for (const b of s.graph.boxes) {
    const r = s.layout.boxes.get(b.id)!;
    if (!at(r)) continue;
    for (const i of b.items) {
      const chip = s.layout.items.get(i.id);
      if (chip && at(chip)) return { id: i.id };
    }
    return { id: b.id, fold: b.items.length > 0 && y < r.y + s.layout.head && x > r.x + r.w - Math.max(36, s.layout.head) };
  }
  return undefined;
}
