// A hundred hosts with a thousand functions in the topology: when it is first drawn, and how many frames a second it moves with. The figures are
// printed and not judged: a machine that tests share is no place to measure.
import { examine, moves, open, say, settled, signedIn } from "../lib.mjs";

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
    switches: [{ ...meta("s1"), status: { state: "connected", rules: 0, ports: [{ number: 1, name: "eth1", kind: "host", state: "up", peer: `${name("h", 0)}:eth0` }, { number: 2, name: "eth2", kind: "edge", state: "down" }] } }],
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
  say(await moves(page, { name: "100 hosts, 1 switch, 1000 functions, 100 endpoints", find: "nf0042" }));
  // What passes at a fabric switch's ports: a thousand packets more at each reading.
  let packets = 0;
  await page.route((u) => u.pathname === "/v1/switches/s1/counters", (r) => {
    packets += 1000;
    const none = { packets: 0, bytes: 0 };
    const ports = [{ number: 1, rx: { packets, bytes: 100 * packets }, tx: none, dropped_packets: 7, error_packets: 0 }, { number: 2, rx: none, tx: none, dropped_packets: 0, error_packets: 0 }];
    return r.fulfill({ contentType: "application/json", body: JSON.stringify({ switch: "s1", ports }) });
  });
  await open(page, "/hosts");
  await page.locator("section", { hasText: "Switches of the fabric" }).getByText("1 of 2").waitFor();
  await settled(page);
  await examine(page, "hosts and switches");
  await page.getByRole("link", { name: "s1", exact: true }).click();
  await page.waitForURL("**/topology?node=switch/s1");
  const ports = page.getByRole("region", { name: "Ports of s1" });
  await ports.locator("li", { hasText: "eth1" }).locator(".figures", { hasText: /in [1-9]/ }).waitFor();
  await ports.locator("li", { hasText: "eth1" }).getByText("7 dropped").waitFor();
  await ports.locator("li", { hasText: "eth2" }).getByText("down").waitFor();
  for (const width of [1440, 360]) {
    await page.setViewportSize({ width, height: 900 });
    await settled(page);
    await examine(page, `the ports of a switch, ${width} px`);
  }
}
