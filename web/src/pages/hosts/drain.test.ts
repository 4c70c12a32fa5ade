import { expect, test } from "vitest";
import type { Host } from "../../api/types";
import { closedWord } from "./drain";

const host = (spec: Host["spec"], drain?: Host["status"]["drain"]) => ({ name: "h1", spec, status: { drain } }) as Host;

test("a host says how far its drain is", () => {
  expect(closedWord(host({}))).toBe("");
  expect(closedWord(host({ unschedulable: true }))).toBe("closed");
  expect(closedWord(host({ drain: true }))).toBe("draining");
  expect(closedWord(host({ drain: true, unschedulable: true }, { leaving: 2, stays: 1 }))).toBe("draining, 3 left");
  expect(closedWord(host({ drain: true }, { leaving: 0, stays: 1 }))).toBe("draining, 1 stay");
  expect(closedWord(host({ drain: true }, { leaving: 0, stays: 0 }))).toBe("drained");
});
