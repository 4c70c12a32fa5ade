import { expect, test } from "vitest";
import type { LabPart, LabStudy } from "../../api/lab";
import { factorsOf, onlyOf, takes } from "./choice";

const part = (name: string, factors: LabPart["factors"], takes_ns?: number): LabPart => ({ name, question: "?", metrics: [], factors, compare: "platform", baseline: "bridges", trials: 1, takes_ns });
const s: LabStudy = {
  name: "s",
  title: "",
  parts: [
    part("stream", [{ name: "platform", levels: ["ebpf", "bridges"] }, { name: "wires", levels: ["1", "9"] }], 60e9),
    part("echo", [{ name: "platform", levels: ["ebpf", "ovs", "bridges"] }], 30e9),
    part("start", [{ name: "platform", levels: ["ebpf", "bridges"] }]),
  ],
};
const all = ["stream", "echo", "start"];

test("all of a study needs no words", () => expect(onlyOf(s, { parts: all, without: {} })).toBe(""));
test("parts are named where some are left out", () => expect(onlyOf(s, { parts: ["echo"], without: {} })).toBe("part=echo"));
test("a factor of which a level is left out is named with the others", () => {
  expect(onlyOf(s, { parts: ["stream"], without: { wires: ["9"] } })).toBe("part=stream,wires=1");
  expect(onlyOf(s, { parts: all, without: { platform: ["ovs"] } })).toBe("platform=ebpf,platform=bridges");
});
test("a baseline stays, and levels of parts that are not chosen do not count", () => {
  expect(onlyOf(s, { parts: all, without: { platform: ["bridges"] } })).toBe("");
  expect(onlyOf(s, { parts: ["echo"], without: { wires: ["9"] } })).toBe("part=echo");
});
test("factors are those of the chosen parts", () => {
  expect(factorsOf(s.parts.slice(0, 2))).toEqual([
    { name: "platform", levels: ["ebpf", "bridges", "ovs"], fixed: ["bridges"] },
    { name: "wires", levels: ["1", "9"], fixed: [] },
  ]);
});
test("how long it takes is not known where a part does not say", () => {
  expect(takes(s.parts.slice(0, 2))).toBe(90e9);
  expect(takes(s.parts)).toBeUndefined();
});
