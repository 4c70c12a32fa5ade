import { describe, expect, it } from "vitest";
import { undoOf } from "../../api/undo";
import { documentOf, draft, draftOf, missingIn } from "./spec";

const fw = { name: "fw", spec: { image: "firewall", on_fail: "drop", state: "started", restart: 2, config: { allow: ["icmp"] } } } as never;

describe("a policy's form", () => {
  it("says what is missing, and has no document until then", () => {
    expect(missingIn(draft())).toContain("name");
    expect(missingIn(draft({ name: "p" }))).toContain("chain");
    expect(missingIn(draft({ name: "p", newChain: { name: "web", path: "fw |" } }))).toContain("path");
    expect(documentOf(draft({ name: "p" }), [])).toBeUndefined();
  });
  it("leaves out what has its default", () => {
    expect(documentOf(draft({ name: "p", from: "any", chain: "web" }), [])).toEqual({ policies: { p: { chain: "web" } } });
  });
  it("makes its chain, and says what happens when a function is down", () => {
    const d = draft({ name: "p", from: "a", to: "b", match: ["tcp/80"], mode: "replica", symmetric: false, priority: 7, matchBy: "mac", newChain: { name: "web", path: " fw " }, onFail: { fw: "bypass" } });
    expect(documentOf(d, [fw])).toEqual({
      chains: { web: { path: "fw" } },
      functions: { fw: { image: "firewall", on_fail: "bypass", config: { allow: ["icmp"] } } }, // its state and restarts are commands' own
      policies: { p: { chain: "web", from: "a", to: "b", match: ["tcp/80"], mode: "replica", symmetric: false, priority: 7, match_by: "mac" } },
    });
    expect(documentOf({ ...d, onFail: { fw: "drop" } }, [fw])!.functions).toBeUndefined();
  });
  it("is the same policy again after it was read", () => {
    const spec = { chain: "web", from: "a", match: ["udp"], symmetric: false, priority: 3 };
    expect(documentOf(draftOf({ name: "p", spec, status: {} } as never), [])).toEqual({ policies: { p: spec } });
  });
});

describe("undo", () => {
  it("puts former specs back and takes away what was made", () => {
    const specs: Record<string, object> = { "chain/web": { path: "fw" }, "function/fw": { image: "wire", state: "stopped", restart: 3 } };
    const u = undoOf(
      [
        { action: "update", kind: "chain", name: "web" },
        { action: "update", kind: "function", name: "fw" },
        { action: "create", kind: "policy", name: "p" },
        { action: "unchanged", kind: "chain", name: "other" },
      ],
      (kind, name) => specs[`${kind}/${name}`],
      1,
    );
    expect(u).toEqual({ what: "chain/web updated and 2 more", at: 1, former: { chains: { web: { path: "fw" } }, functions: { fw: { image: "wire" } } }, made: { policies: ["p"] } });
    expect(undoOf([{ action: "unchanged", kind: "chain", name: "web" }], () => ({}))).toBeUndefined();
  });
});
