import { expect, test } from "vitest";
import type { Event } from "../../api/types";
import { hours, restartsOf, strip } from "./restarts";

const at = (h: number) => new Date(Date.UTC(2026, 0, 2, h)).toISOString();
const event = (reason: string, time: string, more: Partial<Event> = {}) => ({ name: time, kind: "function", object: "fw", reason, time, severity: "warning", message: reason, ...more }) as Event;

test("ends of a function are its events, the newest first, each with how often it was", () => {
  const all = [
    event("FunctionDied", at(3)),
    event("FunctionRecovered", at(4)),
    event("FunctionRestarting", at(9), { count: 5, first: at(8) }),
    event("FunctionDied", at(9), { object: "other" }),
    event("FunctionDied", at(9), { kind: "chain" }),
  ];
  expect(restartsOf(all, "fw").map((m) => [new Date(m.from).getUTCHours(), new Date(m.to).getUTCHours(), m.times, m.what])).toEqual([
    [8, 9, 5, "it hung"],
    [3, 3, 1, "its process ended"],
  ]);
  expect(restartsOf(undefined, "fw")).toEqual([]);
});

test("the strip has the last hours, and what began before them from its beginning on", () => {
  const now = Date.parse(at(12));
  const marks = restartsOf([event("FunctionDied", at(6)), event("FunctionDied", at(-11), { count: 9, first: at(-20) }), event("FunctionDied", at(-13))], "fw");
  expect(strip(marks, now).map((s) => [s.at * hours, s.width * hours])).toEqual([
    [18, 0],
    [0, 1],
  ]);
});
