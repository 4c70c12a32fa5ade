// Where everything stands. Computed from the graph alone, so the same network always gives the same picture. Pure.
//
// Switches stand in rows at the top, those with cables to hosts lowest. Below are the hosts, as boxes in rows whose shape is nearest to the wanted
// one. In a box: endpoints where traffic begins at the left, those where it only ends at the right, between them a line for each chain.
import { byName, type Box, type Graph, type Item } from "./graph";

export interface Rect {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Layout extends Rect {
  boxes: Map<string, Rect>;
  /** What is not hidden by a collapsed box. */
  items: Map<string, Rect>;
  /** Items of collapsed boxes -> the box. */
  inside: Map<string, string>;
  /** Height of a box's head: more where there are many, so that names can be read from afar. */
  head: number;
}

export const cell = { w: 136, h: 36 };
const headOf = (boxes: number) => (boxes <= 12 ? 32 : 60);
const pad = 14;
const gapY = 14;
const gapBox = 28;
const collapsedSize = { w: 184, h: 30 };
const roomyUpTo = 40; // functions: then there is room between them for figures
const maxColumns = 8;

interface Options {
  collapsed?: ReadonlySet<string>;
  /** Width by height of the whole. */
  aspect?: number;
}

export function layoutOf(g: Graph, o: Options = {}): Layout {
  const out: Layout = { x: 0, y: 0, w: 0, h: 0, boxes: new Map(), items: new Map(), inside: new Map(), head: headOf(g.boxes.length) };
  const functions = g.boxes.reduce((n, b) => n + b.items.filter((i) => i.kind === "function").length, 0);
  const down = (o.aspect ?? 1.6) < 0.9;
  const gap = functions <= roomyUpTo ? (down ? 52 : 104) : 36;
  const ends = endsOf(g);
  const inner = new Map<string, { size: { w: number; h: number }; items: Map<string, Rect> }>();
  for (const b of g.boxes) {
    const closed = o.collapsed?.has(b.id);
    inner.set(b.id, closed ? { size: { w: collapsedSize.w, h: out.head + collapsedSize.h }, items: new Map() } : inside(b, gap, ends, out.head, down));
    if (closed) for (const i of b.items) out.inside.set(i.id, b.id);
  }
  const place = (b: Box, x: number, y: number) => {
    const { size, items } = inner.get(b.id)!;
    out.boxes.set(b.id, { x, y, ...size });
    for (const [id, r] of items) out.items.set(id, { ...r, x: x + r.x, y: y + r.y });
    out.w = Math.max(out.w, x + size.w);
    out.h = Math.max(out.h, y + size.h);
  };

  const switches = g.boxes.filter((b) => b.kind === "switch");
  const rows = switchRows(switches, g);
  const others = g.boxes.filter((b) => b.kind !== "switch");
  const shelves = bestShelves(others, (b) => inner.get(b.id)!.size, o.aspect ?? 1.6);
  const widthOf = (row: Box[]) => row.reduce((w, b) => w + inner.get(b.id)!.size.w + 2 * gapBox, -2 * gapBox);
  const width = Math.max(shelves.width, ...rows.map(widthOf), 0);
  let y = 0;
  for (const row of rows) {
    let x = (width - widthOf(row)) / 2;
    for (const b of row) {
      place(b, x, y);
      x += inner.get(b.id)!.size.w + 2 * gapBox;
    }
    y += Math.max(...row.map((b) => inner.get(b.id)!.size.h)) + 2.5 * gapBox;
  }
  const left = (width - shelves.width) / 2;
  for (const shelf of shelves.rows) {
    let x = left;
    for (const b of shelf) {
      place(b, x, y);
      x += inner.get(b.id)!.size.w + gapBox;
    }
    y += Math.max(...shelf.map((b) => inner.get(b.id)!.size.h)) + gapBox;
  }
  return out;
}

/** For each endpoint the chains of policies that begin or end there. */
function endsOf(g: Graph): Map<string, Set<string>> {
  const of = new Map<string, Set<string>>();
  const add = (end: string, other: string) => {
    if (!end.startsWith("endpoint/")) return;
    let s = of.get(end);
    if (!s) of.set(end, (s = new Set()));
    s.add(other);
  };
  for (const e of g.edges) {
    if (e.kind !== "steers" && e.kind !== "copies") continue;
    add(e.from, e.to);
    add(e.to, e.from);
  }
  return of;
}

/** Functions of one chain in order, with the taps below what they listen behind. */
interface Piece {
  cols: Item[][]; // of each column what stands under each other
}

function pieces(b: Box): Piece[] {
  const chains = new Map<string, Item[]>();
  const alone: Piece[] = [];
  for (const i of b.items) {
    if (i.kind !== "function") continue;
    if (!i.chain) alone.push({ cols: [[i]] });
    else if (chains.has(i.chain)) chains.get(i.chain)!.push(i);
    else chains.set(i.chain, [i]);
  }
  const out: Piece[] = [];
  for (const [, items] of [...chains].sort(([a], [c]) => byName({ name: a }, { name: c }))) {
    items.sort((a, c) => a.place! - c.place! || Number(!!a.tap) - Number(!!c.tap) || byName(a, c));
    const cols = new Map<number, Item[]>();
    for (const i of items) cols.set(i.place!, [...(cols.get(i.place!) ?? []), i]);
    const all = [...cols.values()];
    for (let n = 0; n < all.length; n += maxColumns) out.push({ cols: all.slice(n, n + maxColumns) });
  }
  return [...out, ...alone];
}

/** Everything inside a box, from its upper left corner. Along is the direction of chains: to the right, or down where the whole is narrow. */
function inside(b: Box, gapAlong: number, ends: Map<string, Set<string>>, head: number, down: boolean): { size: { w: number; h: number }; items: Map<string, Rect> } {
  const at = new Map<string, { along: number; across: number }>();
  const all = pieces(b);
  const endpoints = b.items.filter((i) => i.kind === "endpoint");
  // Pieces beside each other only where there are many: a line for each reads better.
  const total = all.reduce((n, p) => n + p.cols.length, 0);
  const longest = Math.max(1, ...all.map((p) => p.cols.length));
  const columns = all.length <= 4 ? longest : Math.max(Math.min(maxColumns, Math.ceil(Math.sqrt(total * (down ? 2 : 0.6)))), longest);
  const lines: { pieces: Piece[]; used: number; rows: number }[] = [];
  for (const p of all) {
    const rows = Math.max(...p.cols.map((c) => c.length));
    const last = lines.at(-1);
    if (all.length > 4 && last && last.used + p.cols.length <= columns) {
      last.pieces.push(p);
      last.used += p.cols.length;
      last.rows = Math.max(last.rows, rows);
    } else lines.push({ pieces: [p], used: p.cols.length, rows });
  }
  const lineRows = lines.reduce((n, l) => n + l.rows, 0);
  const starts = endpoints.filter((e) => !e.end);
  const finals = endpoints.filter((e) => e.end);
  const most = Math.max(lineRows, 4);
  const colsOf = (n: number) => Math.ceil(n / most);
  const first = colsOf(starts.length);
  const last = first + (lines.length ? columns : 0);
  const middle = Math.max(lineRows, Math.min(most, Math.max(starts.length, finals.length)), 1);
  let row = (middle - lineRows) / 2;
  for (const l of lines) {
    let col = 0;
    for (const p of l.pieces)
      for (const stack of p.cols) {
        stack.forEach((i, n) => at.set(i.id, { along: first + col, across: row + n }));
        col++;
      }
    row += l.rows;
  }
  // Endpoints stand beside what they are joined with.
  const column = (list: Item[], along: number) => {
    const want = (i: Item) => {
      const rows = [...(ends.get(i.id) ?? [])].map((id) => at.get(id)?.across).filter((r) => r !== undefined);
      return rows.length ? rows.reduce((a, c) => a + c, 0) / rows.length : (middle - 1) / 2;
    };
    const sorted = list.map((i) => ({ i, row: want(i) })).sort((a, c) => a.row - c.row || byName(a.i, c.i));
    let least = 0;
    sorted.forEach((s, n) => {
      const across = colsOf(list.length) > 1 ? n % most : Math.max(least, Math.min(s.row, middle - (list.length - n)));
      at.set(s.i.id, { along: along + Math.floor(n / most), across });
      least = across + 1;
    });
  };
  column(starts, 0);
  column(finals, last);
  const count = Math.max(1, last + colsOf(finals.length));
  const top = head + pad - 4;
  const stepAlong = (down ? cell.h : cell.w) + gapAlong;
  const stepAcross = down ? cell.w + gapY : cell.h + gapY;
  const items = new Map<string, Rect>();
  for (const [id, { along, across }] of at)
    items.set(id, down ? { x: pad + across * stepAcross, y: top + along * stepAlong, ...cell } : { x: pad + along * stepAlong, y: top + across * stepAcross, ...cell });
  const [w, h] = down ? [middle * stepAcross - gapY, count * stepAlong - gapAlong] : [count * stepAlong - gapAlong, middle * stepAcross - gapY];
  return { size: { w: Math.max(2 * pad + w, 180), h: b.items.length ? top + h + pad : head + 30 }, items };
}

/** Switches in rows: far from hosts and stations at the top. In a row by name. */
function switchRows(switches: Box[], g: Graph): Box[][] {
  const near = new Map<string, string[]>();
  for (const e of g.edges)
    if (e.kind === "link") {
      near.set(e.from, [...(near.get(e.from) ?? []), e.to]);
      near.set(e.to, [...(near.get(e.to) ?? []), e.from]);
    }
  const rank = new Map<string, number>();
  let now = switches.filter((s) => s.items.length > 0 || near.get(s.id)?.some((n) => n.startsWith("host/"))).map((s) => s.id);
  if (!now.length) now = switches.map((s) => s.id);
  for (let r = 0; now.length; r++) {
    for (const id of now) rank.set(id, r);
    now = [...new Set(now.flatMap((id) => near.get(id) ?? []))].filter((id) => id.startsWith("switch/") && !rank.has(id));
  }
  const rows: Box[][] = [];
  for (const s of switches) (rows[rank.get(s.id) ?? 0] ??= []).push(s);
  return rows.filter(Boolean).reverse();
}

/** Boxes in rows, in their order, such that the whole is nearest to the wanted shape. */
function bestShelves(boxes: Box[], size: (b: Box) => { w: number; h: number }, aspect: number): { rows: Box[][]; width: number } {
  let best: { rows: Box[][]; width: number } = { rows: [], width: 0 };
  let least = Infinity;
  const area = boxes.reduce((n, b) => n + (size(b).w + gapBox) * (size(b).h + gapBox), 0);
  const widest = Math.max(0, ...boxes.map((b) => size(b).w));
  for (let f = 0.6; f <= 2.4; f += 0.1) {
    const most = Math.max(widest, Math.sqrt(area * aspect) * f);
    const rows: Box[][] = [];
    let x = Infinity;
    let width = 0;
    let height = 0;
    let tallest = 0;
    for (const b of boxes) {
      const { w, h } = size(b);
      if (x + w > most) {
        rows.push([]);
        height += tallest + gapBox;
        tallest = 0;
        x = 0;
      }
      rows.at(-1)!.push(b);
      x += w + gapBox;
      width = Math.max(width, x - gapBox);
      tallest = Math.max(tallest, h);
    }
    height += tallest;
    const off = Math.abs(Math.log(width / Math.max(1, height) / aspect));
    if (off < least - 1e-9) [best, least] = [{ rows, width }, off];
  }
  return best;
}
