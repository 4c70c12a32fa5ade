// The objects as a graph: hosts and switches are boxes, endpoints and functions are in them, policies and links are edges. Pure.
import { readyOf, type Level, type Readiness } from "../../api/ready";
import type { Chain, Endpoint, Func, Host, Policy, Switch } from "../../api/types";
import { parseChain } from "../../ui/chain";

export interface Objects {
  endpoints: Endpoint[];
  functions: Func[];
  chains: Chain[];
  policies: Policy[];
  hosts: Host[];
  switches: Switch[];
  /** Pairs of hosts that a tunnel joins. */
  tunnels?: [string, string][];
}

export interface Item {
  id: string; // function/fw
  kind: "endpoint" | "function";
  name: string;
  detail: string;
  r: Readiness;
  chain?: string;
  /** In its chain, from 0; a tap has the place of what is before it. */
  place?: number;
  tap?: boolean;
  /** An endpoint at which policies only end. */
  end?: boolean;
}

export interface Box {
  id: string; // host/h1
  kind: "host" | "switch" | "nowhere";
  name: string;
  detail: string;
  r: Readiness;
  items: Item[];
}

export interface Edge {
  from: string;
  to: string;
  kind: "steers" | "copies" | "link" | "tunnel";
  policies: string[];
}

export interface Graph {
  boxes: Box[];
  edges: Edge[];
}

const collator = new Intl.Collator("en", { numeric: true });
export const byName = (a: { name: string }, b: { name: string }) => collator.compare(a.name, b.name) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

const nowhere: Readiness = { ready: false, level: "busy", state: "waiting", message: "No host or switch has these yet." };

export function graphOf(o: Objects): Graph {
  const boxes = new Map<string, Box>();
  for (const h of o.hosts) boxes.set(`host/${h.name}`, { id: `host/${h.name}`, kind: "host", name: h.name, detail: h.status.address ?? "", r: readyOf("host", h), items: [] });
  const stations = new Map<string, string>(); // MAC -> switch
  for (const s of o.switches) {
    boxes.set(`switch/${s.name}`, { id: `switch/${s.name}`, kind: "switch", name: s.name, detail: s.status.product ?? "", r: readyOf("switch", s), items: [] });
    for (const p of s.status.ports ?? []) for (const st of p.stations ?? []) stations.set(st.split(" ")[0]!, s.name);
  }
  const into = (host: string | undefined, sw?: string): Box => {
    const id = host ? `host/${host}` : sw ? `switch/${sw}` : "";
    const b = boxes.get(id) ?? boxes.get("nowhere");
    if (b) return b;
    const lost: Box = { id: "nowhere", kind: "nowhere", name: "not placed yet", detail: "", r: nowhere, items: [] };
    boxes.set("nowhere", lost);
    return lost;
  };
  const places = new Map<string, { chain: string; place: number; tap: boolean }>();
  const hops = new Map<string, { name: string; tap: boolean }[]>();
  for (const c of o.chains) {
    const path = parseChain(c.spec.path).hops;
    hops.set(c.name, path);
    let place = -1;
    for (const h of path) {
      if (!h.tap) place++;
      places.set(h.name, { chain: c.name, place: Math.max(0, place), tap: h.tap });
    }
  }
  const starts = new Set(o.policies.map((p) => p.spec.from));
  const ends = new Set(o.policies.map((p) => p.spec.to));
  for (const e of o.endpoints) {
    const sw = e.spec.switch || stations.get(e.status.mac || e.spec.mac || "");
    const onHost = e.spec.interface ? e.placement?.host || e.status.host || e.spec.host : undefined;
    into(onHost, sw).items.push({
      id: `endpoint/${e.name}`,
      kind: "endpoint",
      name: e.name,
      detail: e.spec.address || e.spec.interface || e.status.mac || "",
      r: readyOf("endpoint", e),
      end: ends.has(e.name) && !starts.has(e.name),
    });
  }
  for (const f of o.functions)
    into(f.placement?.host || f.status.host).items.push({ id: `function/${f.name}`, kind: "function", name: f.name, detail: f.spec.image, r: readyOf("function", f), ...places.get(f.name) });
  const there = new Set<string>();
  for (const b of boxes.values()) {
    b.items.sort(byName);
    b.items.forEach((i) => there.add(i.id));
  }

  const edges = new Map<string, Edge>();
  const join = (from: string, to: string, kind: Edge["kind"], policy?: string) => {
    const key = `${kind} ${from} ${to}`;
    let e = edges.get(key);
    if (!e) edges.set(key, (e = { from, to, kind, policies: [] }));
    if (policy && !e.policies.includes(policy)) e.policies.push(policy);
  };
  for (const p of o.policies) {
    const replica = p.spec.mode === "replica";
    const end = (name: string | undefined) => (there.has(`endpoint/${name}`) ? `endpoint/${name}` : undefined);
    let at = end(p.spec.from);
    for (const h of hops.get(p.spec.chain) ?? []) {
      const f = `function/${h.name}`;
      if (!there.has(f)) continue;
      if (at) join(at, f, h.tap || replica ? "copies" : "steers", p.name);
      if (!h.tap) at = f;
    }
    const to = end(p.spec.to);
    if (at && to && !replica) join(at, to, "steers", p.name);
  }
  const pair = (a: string, b: string, kind: Edge["kind"]) => (a < b ? join(a, b, kind) : join(b, a, kind));
  for (const s of o.switches)
    for (const port of s.status.ports ?? []) {
      const other = portOwner(port.peer ?? "", boxes);
      if (other && other !== `switch/${s.name}`) pair(`switch/${s.name}`, other, "link");
    }
  for (const [a, b] of o.tunnels ?? []) if (boxes.has(`host/${a}`) && boxes.has(`host/${b}`)) pair(`host/${a}`, `host/${b}`, "tunnel");
  const rank: Record<Box["kind"], number> = { switch: 0, host: 1, nowhere: 2 };
  return {
    boxes: [...boxes.values()].sort((a, b) => rank[a.kind] - rank[b.kind] || byName(a, b)),
    edges: [...edges.values()].sort((a, b) => (key(a) < key(b) ? -1 : 1)),
  };
}

const key = (e: Edge) => `${e.kind} ${e.from} ${e.to}`;

/** The box of what a switch's port is joined to: "s2:1", "host:h1:uplink/eth0", "h1:uplink/eth0". */
export function portOwner(peer: string, boxes: ReadonlyMap<string, unknown>): string | undefined {
  const name = peer.replace(/^host:/, "").split(":")[0]!.split(" ")[0]!;
  return [`switch/${name}`, `host/${name}`].find((id) => boxes.has(id));
}

/** The worst of what is in a box, and of the box. */
export function worst(b: Box): Level {
  const order: Level[] = ["bad", "warn", "busy", "ok", "idle"];
  let at = order.indexOf(b.r.level);
  for (const i of b.items) at = Math.min(at, order.indexOf(i.r.level));
  return order[at]!;
}
