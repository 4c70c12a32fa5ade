import { describe, expect, it } from "vitest";
import { graphOf, type Objects } from "./graph";
import { layoutOf, type Rect } from "./layout";
import { hit } from "./paint";
import { switchRates } from "../../api/switches";
import { dropsOf, legsOf, lossesOf, nodeOf, stopsOf } from "./way";

const meta = (name: string) => ({ name, generation: 1 });

/** A network as the API lists it: hosts with functions in chains of three and a tap, policies between endpoints of other hosts. */
function network(hosts: number, each: number): Objects {
  const o: Objects = { endpoints: [], functions: [], chains: [], policies: [], hosts: [], switches: [] };
  for (let h = 0; h < hosts; h++) {
    const host = `h${h}`;
    o.hosts.push({ ...meta(host), status: { state: "ready" } } as never);
    o.endpoints.push({ ...meta(`e${h}`), spec: { interface: "eth0" }, placement: { host }, status: { state: "up", observed_generation: 1 } } as never);
    for (let f = 0; f < each; f++) o.functions.push({ ...meta(`f${h}-${f}`), spec: { image: "wire" }, placement: { host }, status: { state: "started", healthy: true, observed_generation: 1 } } as never);
    for (let f = 0; f + 3 < each; f += 4) {
      o.chains.push({ ...meta(`c${h}-${f}`), spec: { path: `f${h}-${f} | f${h}-${f + 1} | tap:f${h}-${f + 2} | f${h}-${f + 3}` }, status: {} } as never);
      o.policies.push({ ...meta(`p${h}-${f}`), spec: { from: `e${h}`, to: `e${(h + 1) % hosts}`, chain: `c${h}-${f}` }, status: {} } as never);
    }
  }
  return o;
}

const overlap = (a: Rect, b: Rect) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

describe("the graph", () => {
  it("has what policies steer, and copies to taps", () => {
    const g = graphOf(network(1, 4));
    expect(g.edges.map((e) => `${e.kind} ${e.from} ${e.to}`)).toEqual(["copies function/f0-1 function/f0-2", "steers endpoint/e0 function/f0-0", "steers function/f0-0 function/f0-1", "steers function/f0-1 function/f0-3", "steers function/f0-3 endpoint/e0"]);
  });
  it("has switches with their cables and stations, and what no host has yet", () => {
    const o = network(1, 0);
    o.switches.push({ ...meta("s1"), status: { state: "connected", rules: 0, ports: [{ name: "1", number: 1, kind: "link", state: "up", peer: "s2:3" }, { name: "2", number: 2, kind: "host", state: "up", peer: "h0:eth0" }, { name: "3", number: 3, kind: "edge", state: "up", stations: ["06:00:00:00:00:01 10.0.0.1"] }] } } as never);
    o.switches.push({ ...meta("s2"), status: { state: "connected", rules: 0, ports: [{ name: "3", number: 3, kind: "link", state: "up", peer: "s1:1" }] } } as never);
    o.endpoints.push({ ...meta("station"), spec: {}, status: { mac: "06:00:00:00:00:01", state: "up", observed_generation: 1 } } as never);
    o.functions.push({ ...meta("homeless"), spec: { image: "wire" }, status: {} } as never);
    const g = graphOf(o);
    expect(g.boxes.map((b) => [b.id, b.items.map((i) => i.name)])).toEqual([["switch/s1", ["station"]], ["switch/s2", []], ["host/h0", ["e0"]], ["nowhere", ["homeless"]]]);
    expect(g.edges.map((e) => `${e.kind} ${e.from} ${e.to}`)).toEqual(["link host/h0 switch/s1", "link switch/s1 switch/s2"]);
    const l = layoutOf(g);
    expect(l.boxes.get("switch/s2")!.y).toBeLessThan(l.boxes.get("switch/s1")!.y); // far from hosts: above
    expect(l.boxes.get("switch/s1")!.y).toBeLessThan(l.boxes.get("host/h0")!.y);
  });
});

describe("the layout", () => {
  const g = graphOf(network(100, 10));
  it("is the same for the same network, in whatever order it is listed", () => {
    const o = network(7, 9);
    const a = layoutOf(graphOf(o));
    for (const list of Object.values(o)) if (Array.isArray(list)) list.reverse();
    const b = layoutOf(graphOf(o));
    expect([...b.items].sort()).toEqual([...a.items].sort());
    expect([...b.boxes].sort()).toEqual([...a.boxes].sort());
  });
  it("puts everything into its box, and nothing onto another", () => {
    for (const aspect of [0.6, 1, 1.6, 3])
      for (const size of [graphOf(network(1, 4)), graphOf(network(3, 17)), g]) {
        const l = layoutOf(size, { aspect });
        const boxes = [...l.boxes.values()];
        boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => expect(overlap(a, b)).toBe(false)));
        for (const b of size.boxes) {
          const outer = l.boxes.get(b.id)!;
          const inner = b.items.map((i) => l.items.get(i.id)!);
          inner.forEach((r, i) => {
            expect(r.x >= outer.x && r.y >= outer.y + l.head - 10 && r.x + r.w <= outer.x + outer.w && r.y + r.h <= outer.y + outer.h).toBe(true);
            inner.slice(i + 1).forEach((other) => expect(overlap(r, other)).toBe(false));
          });
        }
      }
  });
  it("has chains from left to right with taps below, and downwards where it is narrow", () => {
    const one = graphOf(network(1, 4));
    const wide = layoutOf(one).items;
    const at = (l: Map<string, Rect>, n: string) => l.get(`function/${n}`)!;
    expect(at(wide, "f0-0").x).toBeLessThan(at(wide, "f0-1").x);
    expect(at(wide, "f0-2").x).toBe(at(wide, "f0-1").x);
    expect(at(wide, "f0-2").y).toBeGreaterThan(at(wide, "f0-1").y);
    const narrow = layoutOf(one, { aspect: 0.6 }).items;
    expect(at(narrow, "f0-0").y).toBeLessThan(at(narrow, "f0-1").y);
    expect(at(narrow, "f0-2").x).toBeGreaterThan(at(narrow, "f0-1").x);
  });
  it("folds a host to its head", () => {
    const open = layoutOf(g);
    const l = layoutOf(g, { collapsed: new Set(["host/h5"]) });
    expect(l.items.has("function/f5-0")).toBe(false);
    expect(l.inside.get("function/f5-0")).toBe("host/h5");
    expect(l.boxes.get("host/h5")!.h).toBeLessThan(open.boxes.get("host/h5")!.h);
    const r = l.boxes.get("host/h5")!;
    expect(hit({ graph: g, layout: l }, r.x + r.w - 10, r.y + 10)).toEqual({ id: "host/h5", fold: true });
  });
});

const hop = (port: string, rx: number, tx: number, dropped = 0) => ({ port, live: true, host: "h1", state: "up" as const, rx: { packets: rx, bytes: 100 * rx }, tx: { packets: tx, bytes: 100 * tx }, dropped: { packets: dropped, bytes: 0 } });

describe("a policy's way", () => {
  const before = [hop("endpoint/a", 0, 0), hop("function/fw/in", 0, 0), hop("function/fw/out", 0, 0), hop("function/mon/tap", 0, 0), hop("endpoint/b", 0, 0)];
  const now = [hop("endpoint/a", 10, 4), hop("function/fw/in", 4, 10), hop("function/fw/out", 7, 4), hop("function/mon/tap", 0, 7), hop("endpoint/b", 4, 7, 2)];
  it("counts at each port what goes along the way", () => {
    const stops = stopsOf(now, { hops: before, seconds: 2 });
    expect(stops.map((s) => [s.takes, s.packets, s.rate?.pps])).toEqual([["rx", 10, 5], ["tx", 10, 5], ["rx", 7, 3.5], ["tx", 7, 3.5], ["tx", 7, 3.5]]);
    expect(stops[0]!.rate!.bps).toBe(4000);
    expect(Object.fromEntries(lossesOf(stops))).toEqual({ "function/fw": 1.5, "endpoint/b": 1 });
    expect(legsOf(stops).map((l) => [l.from, l.to, l.copy])).toEqual([["endpoint/a", "function/fw", false], ["function/fw", "function/mon", true], ["function/fw", "endpoint/b", false]]);
  });
  it("takes a leg's rate from functions: endpoints have other traffic, too", () => {
    const busy = now.map((h) => (h.port === "endpoint/b" ? hop("endpoint/b", 4, 700) : h));
    expect(legsOf(stopsOf(busy, { hops: before, seconds: 2 })).map((l) => l.rate!.pps)).toEqual([5, 3.5, 3.5]);
  });
  it("counts replies the other way round", () => {
    const back = [...now].reverse();
    expect(stopsOf(back).map((s) => [s.port, s.packets])).toEqual([["endpoint/b", 4], ["function/mon/tap", 7], ["function/fw/out", 4], ["function/fw/in", 4], ["endpoint/a", 4]]);
    expect(legsOf(stopsOf(back)).map((l) => [l.from, l.to, l.copy])).toEqual([["endpoint/b", "function/mon", true], ["endpoint/b", "function/fw", false], ["function/fw", "endpoint/a", false]]);
  });
  it("has no rate before the second reading, and none below zero after a restart", () => {
    expect(stopsOf(now)[0]!.rate).toBeUndefined();
    expect(stopsOf(before, { hops: now, seconds: 1 })[0]!.rate!.pps).toBe(0);
  });
  it("leads over switches and tunnels", () => {
    const far = ["endpoint/a", "s1:2", "s1:1", "s2:1", "s2:3", "h1:uplink/eth0", "function/f/in", "function/f/out", "h1:tunnel/h2", "endpoint/b"].map((port) => hop(port, 1, 1));
    expect(legsOf(stopsOf(far)).map((l) => `${l.from} ${l.to}`)).toEqual(["endpoint/a switch/s1", "switch/s1 switch/s2", "switch/s2 function/f", "function/f endpoint/b"]);
    expect(["endpoint/a", "function/f/in", "s1:2", "h1:uplink/eth0", "h1:tunnel/h2", "any", "10.0.0.0/8", "2001:db8::1", "02:00:00:00:00:01"].map(nodeOf)).toEqual(["endpoint/a", "function/f", "switch/s1", "host/h1", "host/h1", undefined, undefined, undefined, undefined]);
  });
});

describe("drops", () => {
  const hop = (port: string, dropped: number) => ({ port, host: "h1", live: true, rx: { packets: 0, bytes: 0 }, tx: { packets: 0, bytes: 0 }, dropped: { packets: dropped, bytes: 0 } });
  it("are those of functions and endpoints, each port once for both directions", () => {
    const [forward, reverse] = [
      [hop("endpoint/alice", 0), hop("function/fw/in", 7), hop("function/fw/out", 2), hop("uplink/eth1", 99), hop("endpoint/bob", 4)],
      [hop("endpoint/bob", 4), hop("function/fw/out", 2), hop("function/fw/in", 7)],
    ];
    const before = forward.map((h) => ({ ...h, dropped: { packets: 0, bytes: 0 } }));
    expect(dropsOf(stopsOf(forward, { hops: before, seconds: 2 }), stopsOf(reverse))).toEqual([
      { node: "function/fw", perS: 4.5, total: 9 },
      { node: "endpoint/bob", perS: 2, total: 4 },
    ]);
    expect(dropsOf([])).toEqual([]);
  });
});

describe("ports of fabric switches", () => {
  const port = (number: number, packets: number) => ({ number, rx: { packets, bytes: 100 * packets }, tx: { packets: 0, bytes: 0 }, dropped_packets: 0, error_packets: 0 });
  it("have a rate from the second reading on, and none where a counter fell", () => {
    const none = { packets: 0, bytes: 0 };
    expect(switchRates(undefined, [port(1, 9)], 0)).toEqual([{ counters: port(1, 9) }]);
    expect(switchRates([port(1, 10), port(2, 10)], [port(1, 30), port(2, 3), port(3, 1)], 2)).toEqual([
      { counters: port(1, 30), rx: { packets: 10, bytes: 1000 }, tx: none },
      { counters: port(2, 3), rx: undefined, tx: none },
      { counters: port(3, 1) },
    ]);
  });
});
