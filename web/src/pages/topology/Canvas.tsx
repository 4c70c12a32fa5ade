// The picture and what the pointer and keys do with it. It draws only when something changed; a lit way moves on a canvas of its own.
import { ActionIcon, Tooltip, useComputedColorScheme } from "@mantine/core";
import { IconFocusCentered, IconMinus, IconPlus } from "@tabler/icons-react";
import { useEffect, useImperativeHandle, useMemo, useRef, useState, type PointerEvent, type Ref } from "react";
import type { Graph, Item } from "./graph";
import type { Layout, Rect } from "./layout";
import { hit, paintBase, paintTop, readColors, rectOf, type Lit, type Scene, type Size, type View } from "./paint";

export interface CanvasHandle {
  /** Brings nodes into view; false while there is no view yet. */
  show: (ids: string[]) => boolean;
  fit: () => void;
}

interface Props {
  graph: Graph;
  layout: Layout;
  items: ReadonlyMap<string, Item>;
  lit?: Lit;
  selected?: string;
  found?: ReadonlySet<string>;
  tunnels: boolean;
  onSelect: (id: string | undefined) => void;
  onOpen: (id: string) => void;
  onFold: (id: string) => void;
  /** Width by height, when it changes. */
  onShape: (aspect: number) => void;
  label: string;
  tip: (id: string) => string | undefined;
  handle: Ref<CanvasHandle>;
}

const minK = 0.04;
const maxK = 3;
const movesAfter = 4; // px: then a press is a drag
const stepsPerS = 24; // of the lit way's dashes

export function Canvas({ graph, layout, items, lit, selected, found, tunnels, onSelect, onOpen, onFold, onShape, label, tip, handle }: Props) {
  const scheme = useComputedColorScheme();
  const frame = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const top = useRef<HTMLCanvasElement>(null);
  const size = useRef<Size>({ w: 0, h: 0, dpr: 1 });
  const view = useRef<View>({ x: 0, y: 0, k: 1 });
  const moved = useRef(false); // by hand: then a new layout does not move it
  const asked = useRef(0);
  const drawn = useRef(false);
  const [hovered, setHovered] = useState<{ id: string; x: number; y: number }>();
  const colors = useMemo(() => readColors(document.documentElement), [scheme]); // eslint-disable-line
  const hoveredID = hovered?.id;
  const scene: Scene = { graph, layout, items, colors, lit, selected, hovered: hoveredID, found, tunnels };
  const latest = useRef(scene);
  latest.current = scene;

  const draw = () => {
    asked.current ||= requestAnimationFrame(() => {
      asked.current = 0;
      const [b, t] = [base.current?.getContext("2d"), top.current?.getContext("2d")];
      if (!b || !t || !size.current.w) return;
      paintBase(b, size.current, view.current, latest.current);
      paintTop(t, size.current, view.current, latest.current, still() ? 0 : performance.now() / 1000);
      if (!drawn.current && latest.current.graph.boxes.length) {
        drawn.current = true;
        performance.mark("topology-drawn");
      }
    });
  };
  const fit = () => {
    const { w, h } = size.current;
    const l = latest.current.layout;
    if (!w || !l.w) return;
    const margin = w < 500 ? 12 : 24;
    const k = Math.min(1.25, (w - 2 * margin) / l.w, (h - 2 * margin) / l.h);
    view.current = { k, x: -(w / k - l.w) / 2, y: l.h * k < h * 0.6 ? -margin / k - (h / k - l.h) / 5 : -(h / k - l.h) / 2 };
    moved.current = false;
    draw();
  };
  const clamp = () => {
    const { w, h } = size.current;
    const l = latest.current.layout;
    const v = view.current;
    v.x = Math.min(Math.max(v.x, -w / v.k + 40), l.w - 40);
    v.y = Math.min(Math.max(v.y, -h / v.k + 40), l.h - 40);
  };
  const zoom = (by: number, px = size.current.w / 2, py = size.current.h / 2) => {
    const v = view.current;
    const k = Math.min(maxK, Math.max(minK, v.k * by));
    v.x += px / v.k - px / k;
    v.y += py / v.k - py / k;
    v.k = k;
    moved.current = true;
    clamp();
    draw();
  };
  const pan = (dx: number, dy: number) => {
    view.current.x -= dx / view.current.k;
    view.current.y -= dy / view.current.k;
    moved.current = true;
    clamp();
    draw();
  };
  const show = (ids: string[]) => {
    const rects = ids.map((id) => rectOf(latest.current.layout, id)).filter((r): r is Rect => !!r);
    const { w, h } = size.current;
    if (!rects.length || !w) return false;
    const x0 = Math.min(...rects.map((r) => r.x));
    const y0 = Math.min(...rects.map((r) => r.y));
    const x1 = Math.max(...rects.map((r) => r.x + r.w));
    const y1 = Math.max(...rects.map((r) => r.y + r.h));
    const k = Math.min(1.25, Math.max(minK, Math.min((w * 0.8) / (x1 - x0), (h * 0.7) / (y1 - y0))));
    view.current = { k, x: (x0 + x1) / 2 - w / k / 2, y: (y0 + y1) / 2 - h / k / 2 };
    moved.current = true;
    draw();
    return true;
  };
  useImperativeHandle(handle, () => ({ show, fit }));

  useEffect(draw);
  useEffect(() => {
    if (!moved.current) fit();
  }, [layout]); // eslint-disable-line
  useEffect(() => {
    const el = frame.current!;
    const resize = new ResizeObserver(() => {
      const { clientWidth: w, clientHeight: h } = el;
      const dpr = Math.min(2, window.devicePixelRatio || 1);
      if (!w || !h || (size.current.w === w && size.current.h === h && size.current.dpr === dpr)) return;
      size.current = { w, h, dpr };
      for (const c of [base.current!, top.current!]) [c.width, c.height] = [Math.round(w * dpr), Math.round(h * dpr)];
      onShape(w / h);
      if (moved.current) draw();
      else fit();
    });
    resize.observe(el);
    const wheel = (e: WheelEvent) => {
      e.preventDefault();
      const r = el.getBoundingClientRect();
      if (e.shiftKey && !e.ctrlKey) pan(-e.deltaY - e.deltaX, 0);
      else zoom(Math.exp(-Math.max(-120, Math.min(120, e.deltaY * (e.deltaMode ? 30 : 1))) * (e.ctrlKey ? 0.01 : 0.0018)), e.clientX - r.left, e.clientY - r.top);
    };
    el.addEventListener("wheel", wheel, { passive: false });
    void document.fonts.ready.then(draw);
    return () => {
      resize.disconnect();
      el.removeEventListener("wheel", wheel);
      cancelAnimationFrame(asked.current);
      asked.current = 0;
    };
  }, []); // eslint-disable-line
  // The lit way's dashes.
  const moving = !!lit && [...lit.forward, ...lit.reverse].some((l) => (l.rate?.pps ?? 0) > 0);
  useEffect(() => {
    if (!moving || still()) return;
    const t = setInterval(() => {
      const c = top.current?.getContext("2d");
      if (c && !document.hidden) paintTop(c, size.current, view.current, latest.current, performance.now() / 1000);
    }, 1000 / stepsPerS);
    return () => clearInterval(t);
  }, [moving]);

  const pointers = useRef(new Map<number, { x: number; y: number; x0: number; y0: number; dragged: boolean }>());
  const at = (e: { clientX: number; clientY: number }) => {
    const r = frame.current!.getBoundingClientRect();
    const [px, py] = [e.clientX - r.left, e.clientY - r.top];
    return { px, py, x: view.current.x + px / view.current.k, y: view.current.y + py / view.current.k };
  };
  const down = (e: PointerEvent) => {
    if (e.button !== 0) return;
    top.current!.setPointerCapture(e.pointerId);
    pointers.current.set(e.pointerId, { x: e.clientX, y: e.clientY, x0: e.clientX, y0: e.clientY, dragged: false });
    setHovered(undefined);
  };
  const move = (e: PointerEvent) => {
    const p = pointers.current.get(e.pointerId);
    if (!p) {
      if (e.pointerType !== "mouse") return;
      const { px, py, x, y } = at(e);
      const h = hit(latest.current, x, y);
      if (h?.id !== hoveredID) setHovered(h && { id: h.id, x: px, y: py });
      return;
    }
    const others = [...pointers.current].filter(([id]) => id !== e.pointerId).map(([, q]) => q);
    if (others[0]) {
      const o = others[0];
      const was = Math.hypot(p.x - o.x, p.y - o.y);
      const now = Math.hypot(e.clientX - o.x, e.clientY - o.y);
      const { px, py } = at({ clientX: (e.clientX + o.x) / 2, clientY: (e.clientY + o.y) / 2 });
      if (was > 0) zoom(now / was, px, py);
      p.dragged = o.dragged = true;
    } else if (p.dragged || Math.hypot(e.clientX - p.x0, e.clientY - p.y0) > movesAfter) {
      p.dragged = true;
      pan(e.clientX - p.x, e.clientY - p.y);
    }
    [p.x, p.y] = [e.clientX, e.clientY];
  };
  const up = (e: PointerEvent) => {
    const p = pointers.current.get(e.pointerId);
    pointers.current.delete(e.pointerId);
    if (!p || p.dragged || e.type === "pointercancel") return;
    const { x, y } = at(e);
    const h = hit(latest.current, x, y);
    if (h?.fold) onFold(h.id);
    else onSelect(h?.id);
  };
  const step = (dx: number, dy: number) => {
    const next = neighbour(layout, selected, dx, dy);
    if (!next) return;
    onSelect(next);
    const r = rectOf(layout, next)!;
    const v = view.current;
    const { w, h } = size.current;
    if (r.x < v.x || r.y < v.y || r.x + r.w > v.x + w / v.k || r.y + r.h > v.y + h / v.k) {
      view.current = { ...v, x: r.x + r.w / 2 - w / v.k / 2, y: r.y + r.h / 2 - h / v.k / 2 };
      moved.current = true;
      draw();
    }
  };
  const arrows: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  return (
    <div className="topology-canvas" ref={frame}>
      <canvas ref={base} aria-hidden />
      <canvas
        ref={top}
        tabIndex={0}
        role="application"
        aria-label={label}
        aria-describedby="topology-keys"
        onPointerDown={down}
        onPointerMove={move}
        onPointerUp={up}
        onPointerCancel={up}
        onPointerLeave={() => setHovered(undefined)}
        onDoubleClick={(e) => {
          const { x, y } = at(e);
          const h = hit(latest.current, x, y);
          if (h && !h.fold) onOpen(h.id);
        }}
        onKeyDown={(e) => {
          if (e.ctrlKey || e.metaKey || e.altKey) return;
          const a = arrows[e.key];
          if (a && e.shiftKey) pan(-a[0] * 60, -a[1] * 60);
          else if (a) step(...a);
          else if (e.key === "+" || e.key === "=") zoom(1.25);
          else if (e.key === "-") zoom(0.8);
          else if (e.key === "0") fit();
          else if (e.key === "Enter" && selected) onOpen(selected);
          else if (e.key === " " && selected && layout.boxes.has(selected)) onFold(selected);
          else if (e.key === "Escape") onSelect(undefined);
          else return;
          e.preventDefault();
          e.stopPropagation();
        }}
      />
      <span id="topology-keys" className="sr">
        Arrows go from node to node, with shift they move the picture. Plus, minus and 0 zoom. Enter opens the node, space folds a host.
      </span>
      {hovered && tip(hovered.id) && (
        <div className="topology-tip" style={{ left: Math.min(hovered.x + 14, Math.max(0, size.current.w - 250)), top: Math.min(hovered.y + 14, size.current.h - 60) }} aria-hidden>
          {tip(hovered.id)}
        </div>
      )}
      <div className="topology-zoom">
        <Tooltip label="Larger (+)">
          <ActionIcon variant="default" aria-label="Larger" onClick={() => zoom(1.25)}>
            <IconPlus size={14} />
          </ActionIcon>
        </Tooltip>
        <Tooltip label="Smaller (-)">
          <ActionIcon variant="default" aria-label="Smaller" onClick={() => zoom(0.8)}>
            <IconMinus size={14} />
          </ActionIcon>
        </Tooltip>
        <Tooltip label="All of it (0)">
          <ActionIcon variant="default" aria-label="Show all of it" onClick={fit}>
            <IconFocusCentered size={14} />
          </ActionIcon>
        </Tooltip>
      </div>
    </div>
  );
}

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** The node that is nearest in a direction; the first one if none is selected. */
function neighbour(l: Layout, from: string | undefined, dx: number, dy: number): string | undefined {
  const a = from ? rectOf(l, from) : undefined;
  const all = [...l.items, ...l.boxes];
  if (!a) return [...l.items.keys(), ...l.boxes.keys()][0];
  let best: string | undefined;
  let least = Infinity;
  const cx = a.x + a.w / 2;
  const cy = a.y + a.h / 2;
  for (const [id, r] of all) {
    if (id === from) continue;
    const isBox = l.boxes.has(id);
    const [x, y] = [r.x + r.w / 2 - cx, (isBox ? r.y + l.head / 2 : r.y + r.h / 2) - cy];
    const along = x * dx + y * dy;
    const aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (along < 8) continue;
    const d = along + 2.5 * aside;
    if (d < least) [best, least] = [id, d];
  }
  return best;
}
