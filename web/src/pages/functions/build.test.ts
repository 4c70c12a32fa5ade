import { parse } from "yaml";
import { describe, expect, it } from "vitest";
import { commandOf, documentOf, fileOf, maxCount, namesOf, type Wanted } from "./build";

const w = (o: Partial<Wanted>): Wanted => ({ name: "fw", how: "one", count: 2, endpoints: [], steer: true, spec: { image: "firewall" }, ...o });

describe("functions", () => {
  it("are one, a number, or one for each endpoint", () => {
    expect(namesOf(w({}))).toEqual(["fw"]);
    expect(namesOf(w({ how: "count", count: 3 }))).toEqual(["fw-1", "fw-2", "fw-3"]);
    expect(namesOf(w({ how: "count", count: 1e9 }))).toHaveLength(maxCount);
    expect(documentOf(w({ how: "endpoints", endpoints: ["alice"] }))).toEqual({
      functions: { "fw-alice": { image: "firewall" } },
      chains: { "fw-alice": { path: "fw-alice" } },
      policies: { "fw-alice": { from: "alice", chain: "fw-alice", mode: "exhaustive" } },
    });
  });
  it("are made by one command, or by a file", () => {
    expect(commandOf(w({ spec: { image: "firewall", config: { allow: ["tcp/80"], default: "drop" }, memory: "64M", command: ["/bin/x", "a b"] } }))).toBe(
      `weir function create fw --image firewall --config 'allow=["tcp/80"]' --config default=drop --memory 64M --start -- /bin/x 'a b'`,
    );
    const text = commandOf(w({ how: "count" }));
    expect(text.startsWith("weir apply -f - <<'EOF'\n")).toBe(true);
    expect(parse(fileOf(documentOf(w({ how: "count" }))))).toEqual({ functions: { "fw-1": { image: "firewall" }, "fw-2": { image: "firewall" } } });
  });
});
