import { describe, expect, it } from "vitest";
import { ApiError } from "../api/client";
import { functionReady } from "../api/ready";
import type { Func } from "../api/types";
import { whenGone } from "../api/undo";
import { readDocument, withLines } from "./doc";
import { matches, toCSV, words } from "./export";
import { bits, bytes, command, count, duration } from "./format";

describe("numbers", () => {
  it("have units", () => {
    expect([bytes(0), bytes(1536), bytes(200 << 20)]).toEqual(["0 B", "1.5 KiB", "200 MiB"]);
    expect([count(7), count(1234), count(123456)]).toEqual(["7", "1.2k", "123k"]);
    expect(bits(1_250_000)).toBe("10.0 Mbit/s");
    expect([duration(41_000), duration(7.6e6), duration(3e9), duration(125e9), duration(7200e9)]).toEqual(["41 µs", "7.6 ms", "3.0 s", "2 min", "2 h 0 min"]);
  });
});

describe("commands", () => {
  it("are quoted for a shell", () => expect(command("weir", "function", "create", "fw", false, "--config", "allow=[tcp/80, it's]")).toBe(`weir function create fw --config 'allow=[tcp/80, it'\\''s]'`));
});

describe("filters and files", () => {
  it("find all words and leave out those with a minus", () => {
    expect(words('fw  -"not healthy" x')).toEqual(["fw", "-not healthy", "x"]);
    expect(matches(words("fw -lost"), ["FW", "ready"])).toBe(true);
    expect(matches(words("fw -ready"), ["FW", "ready"])).toBe(false);
  });
  it("escape CSV and disarm formulas", () => {
    const csv = toCSV([{ key: "a", title: "A", value: (r: { a: string | number }) => r.a }], [{ a: "=1+1" }, { a: 'x,"y"' }, { a: -3 }]);
    expect(csv).toBe("A\r\n'=1+1\r\n\"x,\"\"y\"\"\"\r\n-3\r\n");
  });
});

describe("a file", () => {
  it("takes a chain as bare text", () => expect(readDocument("chains: {web: fw | tap:mon}").document).toEqual({ chains: { web: { path: "fw | tap:mon" } } }));
  it("that is no YAML names the place", () => {
    try {
      readDocument("a:\n  b: [1");
      expect.unreachable();
    } catch (e) {
      expect((e as ApiError).problems[0]).toMatchObject({ line: 2 });
    }
  });
  it("gets the lines of what the manager refuses", () => {
    const text = "functions:\n  fw:\n    image: firewall\n    memory: lots\n";
    expect(withLines([{ path: "functions.fw.memory", message: "no" }], text)[0]).toMatchObject({ line: 4, column: 13 });
    expect(withLines([{ path: "policies.p.chain", message: "no" }], text)[0]!.line).toBeUndefined();
  });
});

describe("a function", () => {
  const f = (spec: object, status: object, generation = 1) => ({ name: "f", generation, spec: { image: "wire", ...spec }, status: { healthy: true, observed_generation: 1, state: "started", ...status } }) as Func;
  it("is ready as the commands say", () => {
    expect(functionReady(f({}, {}))).toMatchObject({ ready: true, level: "ok" });
    expect(functionReady(f({}, { healthy: false, message: "its process ended" }))).toMatchObject({ ready: false, state: "not healthy", level: "bad" });
    expect(functionReady(f({}, {}, 2))).toMatchObject({ ready: false, state: "changing" });
    expect(functionReady(f({ state: "stopped" }, { state: "stopped", healthy: false }))).toMatchObject({ ready: true, level: "idle" });
    expect(functionReady(f({}, { conditions: [{ type: "Outdated", reason: "Error" }] }))).toMatchObject({ ready: true, level: "warn" });
  });
});

describe("an undo", () => {
  const goes = new ApiError(409, "Conflict", "function fw is being deleted", [], "urn:weir:problem:being-deleted");
  it("waits for the end of a deletion", async () => {
    let n = 0;
    expect(await whenGone(() => (++n < 4 ? Promise.reject(goes) : Promise.resolve("made")), 1_000, 1)).toBe("made");
    expect(n).toBe(4);
  });
  it("gives up in time, and at once where waiting does not help", async () => {
    let n = 0;
    await expect(whenGone(() => (n++, Promise.reject(goes)), 20, 5)).rejects.toBe(goes);
    expect(n).toBeGreaterThan(1);
    n = 0;
    const inUse = new ApiError(409, "Conflict", "function fw is in use");
    await expect(whenGone(() => (n++, Promise.reject(inUse)), 1_000, 1)).rejects.toBe(inUse);
    expect(n).toBe(1);
  });
});
