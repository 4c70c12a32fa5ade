import { describe, expect, it } from "vitest";
import { fieldsOf, valueAt, withValue } from "./schema";

describe("a form", () => {
  it("has a field for each property", () => {
    const fields = fieldsOf({
      properties: {
        allow: { description: "services", $ref: "#/$defs/services" },
        default: { enum: ["drop", "accept"], default: "drop" },
        n: { type: "integer", minimum: 1 },
        up: { $ref: "#/$defs/limit" },
        odd: { oneOf: [] },
      },
      $defs: { services: { type: "array", items: { type: "string" } }, limit: { type: "object", required: ["rate"], properties: { rate: { type: "string" } } } },
    })!;
    expect(fields.map((f) => [f.name, f.kind, f.fallback])).toEqual([["allow", "list", ""], ["default", "choice", "drop"], ["n", "number", ""], ["up", "group", ""], ["odd", "yaml", ""]]);
    expect(fields[3]).toMatchObject({ fields: [{ path: ["up", "rate"], required: true, kind: "text" }] });
  });
  it("of a hostile schema ends", () => {
    const loop = { properties: { a: { $ref: "#/properties/a" }, b: { $ref: "#" } } };
    expect(fieldsOf(loop)!.map((f) => f.kind)).toEqual(["yaml", "yaml"]);
    const deep = { type: "object", properties: { x: { $ref: "#/$defs/y" } }, $defs: { y: { type: "object", properties: { z: { $ref: "#/$defs/y" }, w: { $ref: "#/$defs/y" } } } } };
    expect(fieldsOf(deep)).toBeDefined();
    const many = { properties: Object.fromEntries(Array.from({ length: 5000 }, (_, i) => ["p" + i, { type: "string" }])) };
    expect(fieldsOf(many)).toHaveLength(200);
    for (const odd of [null, true, [], "x", { properties: null }, { properties: { a: null } }, { properties: { a: { type: 7, enum: [{}], description: {} } } }, { $ref: 5 }]) expect(() => fieldsOf(odd)).not.toThrow();
  });
});

describe("a config", () => {
  it("keeps only what was set", () => {
    let c = withValue({}, ["up", "rate"], "1Mbit");
    expect(c).toEqual({ up: { rate: "1Mbit" } });
    expect(valueAt(c, ["up", "rate"])).toBe("1Mbit");
    c = withValue(c, ["up", "rate"], undefined);
    expect(c).toEqual({});
  });
  it("has no prototype to spoil", () => {
    const c = withValue({}, ["__proto__", "x"], 1);
    expect(({} as { x?: number }).x).toBeUndefined();
    expect(Object.keys(c)).toEqual(["__proto__"]);
  });
});
