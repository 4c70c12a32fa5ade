import { describe, expect, it } from "vitest";
import { chainFunctions, chainsOf, checkChain, parseChain, wordAt } from "./chain";

describe("a chain's path", () => {
  it("is functions and taps, each with its place in the text", () => {
    const { hops, mistakes } = parseChain(" fw |w1 | tap: mon");
    expect(mistakes).toEqual([]);
    expect(hops).toEqual([
      { name: "fw", tap: false, from: 1, to: 3 },
      { name: "w1", tap: false, from: 5, to: 7 },
      { name: "mon", tap: true, from: 15, to: 18 },
    ]);
    expect(chainFunctions("fw | tap:mon")).toEqual(["fw", "mon"]);
  });
  it.each([
    ["", 0, 0, "empty"],
    ["fw || w1", 4, 4, "missing"],
    ["fw | ", 4, 5, "missing"],
    ["fw | W1", 5, 7, "no function's name"],
    ["fw | w_1 | w2", 5, 8, "no function's name"],
    ["fw | w1 | fw", 10, 12, "place 1 already"],
    ["fw | tap:", 5, 9, "after tap:"],
    ["a | tap:b | tap:c | tap:d | tap:e | tap:f", 36, 41, "at most 4 taps"],
  ])("%j is refused at its place", (text, from, to, message) => {
    const { mistakes } = parseChain(text);
    expect(mistakes).toHaveLength(1);
    expect(mistakes[0]).toMatchObject({ from, to });
    expect(mistakes[0]!.message).toContain(message);
  });
  it("may have 256 functions and no more", () => {
    const path = (n: number) => Array.from({ length: n }, (_, i) => `f${i}`).join(" | ");
    expect(parseChain(path(256)).mistakes).toEqual([]);
    expect(parseChain(path(257)).mistakes).toHaveLength(1);
  });
  it("names functions that are there, and in no other chain", () => {
    const of = chainsOf([{ name: "web", spec: { path: "fw | w1" } }]);
    expect(checkChain("fw | wl1", "web", ["fw", "w1"], of)).toMatchObject([{ from: 5, to: 8, message: "there is no function wl1; is it w1?" }]);
    expect(checkChain("w1", "other", ["fw", "w1"], of)[0]!.message).toContain("in chain web");
    expect(checkChain("w1 | fw", "web", ["fw", "w1"], of)).toEqual([]);
  });
});

describe("the word to complete", () => {
  it.each([
    ["fw | w", 6, 5, 6, "w"],
    ["fw | tap:mo | x", 11, 9, 11, "mo"],
    ["fw", 0, 0, 2, ""],
    ["fw | ", 5, 5, 5, ""],
    ["fw | w1 | x", 6, 5, 7, "w"],
  ])("of %j at %i", (text, cursor, from, to, typed) => expect(wordAt(text, cursor)).toEqual({ from, to, typed }));
});
