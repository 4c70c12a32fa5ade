// A policy's way as the switches report it: nodes in order, with what passes there. Pure.
import type { PolicyPath } from "../../api/types";

type Hop = NonNullable<PolicyPath["forward"]>[number];

export interface Rate {
  pps: number;
  bps: number; // bits
}

/** One port on the way. */
export interface Stop {
  port: string;
  /** The object that has the port: "function/fw", "endpoint/alice", "switch/s1", "host/h1"; undefined for an address. */
  node?: string;
  host?: string;
  live: boolean;
  down: boolean;
  /** What of this port belongs to the way: frames into a function, out of it, of an endpoint. */
  takes: "rx" | "tx";
  rate?: Rate;
  packets: number;
  bytes: number;
  drops?: number; // a second
  dropped: number;
  copy: boolean;
}

/** From one node to the next. */
export interface Leg {
  from: string;
  to: string;
  copy: boolean;
  rate?: Rate;
}

/** What a function took and did not give back, a second. */
export const lossOf = (inRate: Rate | undefined, outRate: Rate | undefined) => (inRate && outRate ? Math.max(0, inRate.pps - outRate.pps) : undefined);

export function nodeOf(port: string): string | undefined {
  const [kind, name] = port.split("/");
  if ((kind === "function" || kind === "endpoint") && name) return `${kind}/${name}`;
  const at = port.indexOf(":");
  if (at > 0 && !/^[0-9a-f:.]+(\/\d+)?$/.test(port)) return /^(uplink|tunnel)\//.test(port.slice(at + 1)) ? `host/${port.slice(0, at)}` : `switch/${port.slice(0, at)}`;
  return undefined;
}

/** The stops of one direction. Each function is met at two ports, in and out; in the other direction the other way round. */
export function stopsOf(hops: Hop[] | null | undefined, before?: { hops: Hop[] | null | undefined; seconds: number }): Stop[] {
  const old = new Map((before?.hops ?? []).map((h) => [key(h), h]));
  const seen = new Set<string>();
  return (hops ?? []).map((h, i): Stop => {
    const node = nodeOf(h.port);
    const copy = /\/tap$/.test(h.port);
    // A frame leaves the switch (tx) into a function the first time the function is met, and comes back (rx) the second time.
    const entered = !!node && !seen.has(node);
    if (node) seen.add(node);
    const takes = node?.startsWith("endpoint/") ? (i === 0 ? "rx" : "tx") : entered ? (node?.startsWith("function/") ? "tx" : "rx") : node?.startsWith("function/") ? "rx" : "tx";
    const was = old.get(key(h));
    const s = before?.seconds ?? 0;
    const per = (now: number, then: number) => Math.max(0, now - then) / s;
    return {
      port: h.port,
      node,
      host: h.host,
      live: h.live,
      down: h.state === "down",
      takes,
      packets: h[takes].packets,
      bytes: h[takes].bytes,
      dropped: h.dropped.packets,
      rate: was && s > 0 && h.live ? { pps: per(h[takes].packets, was[takes].packets), bps: 8 * per(h[takes].bytes, was[takes].bytes) } : undefined,
      drops: was && s > 0 && h.live ? per(h.dropped.packets, was.dropped.packets) : undefined,
      copy,
    };
  });
}

const key = (h: Hop) => `${h.host ?? ""}:${h.port}`;

/** What a function's port says, where there is one: an endpoint's port has traffic of other policies, too. */
function legRate(from: Stop, to: Stop): Rate | undefined {
  const own = [to, from].find((s) => s.node!.startsWith("function/"));
  return own?.rate ?? to.rate ?? from.rate;
}

/** The legs between different nodes. A copy leaves the way at a tap. Hosts are passed by their uplinks and tunnels: what is on them is what counts. */
export function legsOf(stops: Stop[]): Leg[] {
  const legs: Leg[] = [];
  let at: Stop | undefined;
  let before: Stop | undefined; // where copies are made: behind the function before the tap
  for (const s of stops) {
    if (!s.node || s.node.startsWith("host/")) continue;
    if (s.copy) {
      const from = before ?? at;
      if (from?.node) legs.push({ from: from.node, to: s.node, copy: true, rate: s.rate });
      continue;
    }
    if (at?.node && at.node !== s.node) legs.push({ from: at.node, to: s.node, copy: false, rate: legRate(at, s) });
    at = s;
    before = s;
  }
  return legs;
}

/** What is dropped at one object's ports of a way. */
export interface Drops {
  node: string;
  perS: number; // packets
  total: number;
}

/** What switches drop at the ports of functions and endpoints on a way, in both directions; each port counts once. Objects without a drop are left out. */
export function dropsOf(...ways: Stop[][]): Drops[] {
  const out = new Map<string, Drops>();
  const ports = new Set<string>();
  for (const s of ways.flat()) {
    const port = `${s.host ?? ""}:${s.port}`;
    if (!s.node || !/^(function|endpoint)\//.test(s.node) || ports.has(port)) continue;
    ports.add(port);
    const d = out.get(s.node) ?? { node: s.node, perS: 0, total: 0 };
    out.set(s.node, { node: s.node, perS: d.perS + (s.drops ?? 0), total: d.total + s.dropped });
  }
  return [...out.values()].filter((d) => d.total > 0);
}

/** What functions keep back, and what switches drop at their ports and those of endpoints, by node, in packets a second. Each port counts once. */
export function lossesOf(stops: Stop[]): Map<string, number> {
  const out = new Map<string, number>();
  const into = new Map<string, Rate | undefined>();
  const ports = new Set<string>();
  for (const s of stops) {
    if (!s.node || s.node.startsWith("host/")) continue; // an uplink drops frames of all kinds
    if (s.drops && !ports.has(s.port)) out.set(s.node, (out.get(s.node) ?? 0) + s.drops);
    ports.add(s.port);
    if (!s.node.startsWith("function/") || s.copy) continue;
    if (!into.has(s.node)) into.set(s.node, s.rate);
    else {
      const lost = lossOf(into.get(s.node), s.rate);
      if (lost && lost > 0.5) out.set(s.node, (out.get(s.node) ?? 0) + lost);
    }
  }
  return out;
}
