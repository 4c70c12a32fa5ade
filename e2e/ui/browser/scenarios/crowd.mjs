// A hundred hosts with a thousand functions in the topology: when it is first drawn, and how many frames a second it moves with. The figures are
// printed and not judged: a machine that tests share is no place to measure.
import { moves, say, signedIn } from "../lib.mjs";

const hosts = 100;
const each = 10;
const name = (kind, n) => kind + String(n).padStart(4, "0");
const meta = (n) => ({ name: n, uid: n, generation: 1, revision: 1 });
const range = (n) => Array.from({ length: n }, (_, i) => i);

function lists() {
  const chains = range((hosts * each) / 5);
  const path = (c) => range(5).map((i) => (i === 3 ? "tap:" : "") + name("nf", 5 * c + i)).join(" | ");
  return {
    hosts: range(hosts).map((h) => ({ ...meta(name("h", h)), spec: {}, status: { state: "ready" } })),
    endpoints: range(hosts).map((h) => ({ ...meta(name("vm", h)), spec: { interface: "eth0", address: `10.0.${h}.1/16` }, placement: { host: name("h", h) }, status: { state: "up", observed_generation: 1 } })),
    functions: range(hosts * each).map((f) => ({ ...meta(name("nf", f)), spec: { image: "wire" }, placement: { host: name("h", Math.floor(f / each)) }, status: { state: "started", healthy: f % 97 !== 5, observed_generation: 1 } })),
    chains: chains.map((c) => ({ ...meta(name("c", c)), spec: { path: path(c) }, status: { state: "ready", observed_generation: 1 } })),
    policies: chains.map((c) => ({ ...meta(name("p", c)), spec: { from: name("vm", Math.floor(c / 2) % hosts), to: name("vm", (7 * c + 13) % hosts), chain: name("c", c) }, status: { state: "active", observed_generation: 1 } })),
    switches: [],
    events: [],
  };
}

export default async function () {
  const page = await signedIn();
  for (const [kind, items] of Object.entries(lists())) {
    const body = JSON.stringify({ items, revision: 1 });
    await page.route((u) => u.pathname === `/v1/${kind}`, (r) => r.fulfill({ contentType: "application/json", body }));
  }
  await page.route((u) => u.pathname === "/v1/graph", (r) => r.fulfill({ contentType: "application/json", body: '{"nodes":[],"edges":[]}' }));
  await page.routeWebSocket((u) => u.pathname === "/v1/watch", () => undefined); // no change comes
  await page.goto(new URL("/topology", page.url()).href);
  say(await moves(page, { name: "100 hosts, 1000 functions, 100 endpoints", find: "nf0042" }));
}
