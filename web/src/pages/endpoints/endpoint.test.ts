import { describe, expect, it } from "vitest";
import { endpointMissing, endpointSpec } from "./Form";

describe("an endpoint's form", () => {
  const spec = { netns: "alice", interface: "eth0", address: "10.9.0.1/24", addresses: [], mac: "", switch: "s1", switch_port: "3", host: "h1", port_security: { mode: "off" } };
  it("keeps what belongs to its kind, and what it has no field for", () => {
    expect(endpointSpec({ name: "a", kind: "namespace", spec })).toEqual({ netns: "alice", interface: "eth0", address: "10.9.0.1/24", host: "h1", port_security: { mode: "off" } });
    expect(endpointSpec({ name: "a", kind: "interface", spec })).toEqual({ interface: "eth0", host: "h1", port_security: { mode: "off" } });
    expect(endpointSpec({ name: "a", kind: "station", spec })).toEqual({ switch: "s1", switch_port: "3", address: "10.9.0.1/24", port_security: { mode: "off" } });
  });
  it("leaves out port security of which nothing is said", () => {
    const said = (port_security: object) => endpointSpec({ name: "a", kind: "interface", spec: { interface: "eth0", port_security } });
    expect(said({})).toEqual({ interface: "eth0" });
    expect(said({ macs: [], router: false })).toEqual({ interface: "eth0" });
    expect(said({ mode: "on", shared: ["10.9.0.80"], dhcp_server: true, router: false })).toEqual({ interface: "eth0", port_security: { mode: "on", shared: ["10.9.0.80"], dhcp_server: true } });
  });
  it.each([
    ["", "namespace", {}, "name"],
    ["any", "namespace", { netns: "n", interface: "eth0" }, "not any"],
    ["a", "namespace", { interface: "eth0" }, "namespace"],
    ["a", "interface", {}, "interface"],
    ["a", "station", { switch: "s1" }, "where the station is"],
  ] as const)("says what %j of kind %s with %j lacks", (name, kind, spec, said) => expect(endpointMissing({ name, kind, spec })).toContain(said));
  it("lacks nothing when it is whole", () => {
    expect(endpointMissing({ name: "a", kind: "namespace", spec })).toBeUndefined();
    expect(endpointMissing({ name: "a", kind: "station", spec: { mac: "06:57:00:00:00:07" } })).toBeUndefined();
  });
});
