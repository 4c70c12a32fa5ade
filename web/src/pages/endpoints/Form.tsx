// An endpoint's form: a link into a namespace, an interface of a host, or a station of the fabric.
import { Checkbox, NumberInput, SegmentedControl, Select, TagsInput, TextInput } from "@mantine/core";
import { useMemo, useState } from "react";
import "../../ui/chain.css";
import { useList } from "../../api/live";
import type { Document, Endpoint, EndpointSpec, PortSecurity } from "../../api/types";
import { Command, Panel } from "../../ui/basic";
import { isName } from "../../ui/chain";
import { command } from "../../ui/format";
import { PlanPanel, problemsAt, usePlan } from "../../ui/Plan";

type Kind = "namespace" | "interface" | "station";

interface Draft {
  name: string;
  kind: Kind;
  spec: EndpointSpec;
}

const kindOf = (s: EndpointSpec): Kind => (s.netns ? "namespace" : s.interface ? "interface" : "station");

const given = (v: unknown) => v !== undefined && v !== "" && v !== null && v !== false && !(Array.isArray(v) && v.length === 0);
const filled = <T extends object>(o: T) => Object.fromEntries(Object.entries(o).filter(([, v]) => given(v)));

/** Only what belongs to the kind; empty fields are left out. */
export function endpointSpec(d: Draft): EndpointSpec {
  const { netns, interface: dev, address, addresses, mac, mtu, host, switch: sw, switch_port, port_security } = d.spec;
  const own = d.kind === "namespace" ? { netns, interface: dev, address, addresses, mac, mtu, host } : d.kind === "interface" ? { interface: dev, host } : { switch: sw, switch_port, address, addresses, mac };
  const secure = filled(port_security ?? {});
  return filled({ ...own, port_security: Object.keys(secure).length > 0 ? secure : undefined });
}

export function endpointMissing(d: Draft): string | undefined {
  if (!d.name) return "Give the endpoint a name.";
  if (!isName(d.name) || d.name === "any") return "The name is 1 to 42 characters of a-z, 0-9 and inner -, and not any.";
  if (d.kind === "namespace" && !d.spec.netns) return "Name the network namespace.";
  if (d.kind !== "station" && !d.spec.interface) return "Name the interface.";
  if (d.kind === "station" && !d.spec.address && !d.spec.mac && !(d.spec.switch && d.spec.switch_port)) return "Say where the station is: its address, its MAC, or its switch and port.";
  return undefined;
}

const fresh = (): Draft => ({ name: "", kind: "namespace", spec: { interface: "eth0" } });

export function EndpointForm({ endpoint, onDone, again }: { endpoint?: Endpoint; onDone: (name: string) => void; again?: boolean }) {
  const hosts = useList("host") ?? [];
  const switches = useList("switch") ?? [];
  const endpoints = useList("endpoint") ?? [];
  const [d, setD] = useState<Draft>(() => (endpoint ? { name: endpoint.name, kind: kindOf(endpoint.spec), spec: endpoint.spec } : fresh()));
  const set = (spec: EndpointSpec) => setD((was) => ({ ...was, spec: { ...was.spec, ...spec } }));
  const taken = !endpoint && endpoints.some((e) => e.name === d.name);
  const missing = taken ? `There is an endpoint ${d.name} already.` : endpointMissing(d);
  const document = useMemo<Document | undefined>(() => (missing ? undefined : { endpoints: { [d.name]: endpointSpec(d) } }), [d, missing]);
  const planned = usePlan(document);
  const problem = (field: string) => problemsAt(planned, `endpoints.${d.name}.${field}`);
  const text = (label: string, field: "netns" | "interface" | "address" | "mac" | "switch_port", placeholder: string, description?: string) => (
    <TextInput label={label} description={description} placeholder={placeholder} value={d.spec[field] ?? ""} onChange={(e) => set({ [field]: e.currentTarget.value.trim() })} error={problem(field)} />
  );
  const secure: PortSecurity = d.spec.port_security ?? {};
  const guard = (change: PortSecurity) => set({ port_security: { ...secure, ...change } });
  const several = (label: string, field: "macs" | "addresses" | "shared", description: string) => (
    <TagsInput label={label} description={description} placeholder="none" value={secure[field] ?? []} onChange={(v) => guard({ [field]: v })} splitChars={[",", " "]} acceptValueOnBlur error={problem(`port_security.${field}`)} />
  );
  return (
    <div className="plan-beside">
      <Panel title="Where traffic enters">
        <div className="form">
          <SegmentedControl
            size="xs"
            aria-label="What it is"
            value={d.kind}
            onChange={(v) => setD({ ...d, kind: v as Kind })}
            data={[
              { value: "namespace", label: "A namespace" },
              { value: "interface", label: "An interface" },
              { value: "station", label: "A station of the fabric", disabled: switches.length === 0 && d.kind !== "station" },
            ]}
          />
          {!endpoint && <TextInput label="Name" placeholder="alice" value={d.name} onChange={(e) => setD({ ...d, name: e.currentTarget.value.trim() })} error={d.name && (taken || !isName(d.name)) ? missing : undefined} />}
          {d.kind === "namespace" && (
            <>
              <div className="pair">
                {text("Network namespace", "netns", "alice", "As in ip netns, or an absolute path")}
                {text("Interface in it", "interface", "eth0", "Weir makes it")}
              </div>
              <div className="pair">
                {text("Address", "address", "10.9.0.1/24", "With its prefix length")}
                {text("MAC", "mac", "02:00:00:00:00:01", "Left out: derived from the name")}
              </div>
              <div className="pair">
                <TagsInput label="Further addresses" placeholder="none" value={d.spec.addresses ?? []} onChange={(addresses) => set({ addresses })} splitChars={[",", " "]} acceptValueOnBlur error={problem("addresses")} />
                <NumberInput label="MTU" placeholder="1500" min={68} max={65535} value={d.spec.mtu ?? ""} onChange={(v) => set({ mtu: Number(v) || undefined })} error={problem("mtu")} />
              </div>
              <div className="same">
                <span className="label">A namespace is made on its host, as root:</span>
                <Command text={command("ip", "netns", "add", d.spec.netns || "alice")} />
              </div>
            </>
          )}
          {d.kind === "interface" && (
            <>
              {text("Interface of the host", "interface", "eth1", "A card, a tap, a VLAN. It becomes a port and has no address or route of its own")}
            </>
          )}
          {d.kind === "station" && (
            <>
              <div className="pair">
                <Select label="Switch" clearable data={switches.map((s) => s.name)} value={d.spec.switch ?? null} onChange={(v) => set({ switch: v ?? undefined })} placeholder="wherever it is seen" error={problem("switch")} />
                {text("Its port", "switch_port", "number or name")}
              </div>
              <div className="pair">
                {text("Address", "address", "10.9.0.7/24")}
                {text("MAC", "mac", "06:57:00:00:00:07")}
              </div>
            </>
          )}
          {d.kind !== "station" && hosts.length > 1 && <Select label="Host" searchable data={hosts.map((h) => h.name)} value={d.spec.host ?? null} onChange={(v) => set({ host: v ?? undefined })} placeholder="The host that the interface is on" limit={100} error={problem("host")} />}
          <details open={endpoint?.spec.port_security !== undefined}>
            <summary>Port security: what may enter here</summary>
            <div className="form">
              <Select
                label="Frames with forged addresses"
                description={d.kind === "interface" ? "Auto lets them in at an interface, unless more is said below" : "Auto drops them where Weir knows the addresses"}
                data={[
                  { value: "auto", label: "auto" },
                  { value: "on", label: "on: they are dropped" },
                  { value: "off", label: "off: they enter" },
                ]}
                value={secure.mode || "auto"}
                allowDeselect={false}
                onChange={(v) => guard({ mode: v === "auto" ? undefined : (v ?? undefined) })}
                error={problem("port_security.mode") ?? problem("port_security")}
              />
              <div className="pair">
                {several("Further MACs", "macs", "That frames may come from")}
                {several("Further source addresses", "addresses", "Or prefixes")}
              </div>
              {several("Shared addresses", "shared", "That several endpoints send from and none claims by ARP, as servers that answer directly")}
              <div className="pair">
                <Checkbox label="It may be a DHCP server" checked={secure.dhcp_server ?? false} onChange={(e) => guard({ dhcp_server: e.currentTarget.checked })} />
                <Checkbox label="It is a router: it forwards packets of others" checked={secure.router ?? false} onChange={(e) => guard({ router: e.currentTarget.checked })} />
              </div>
            </div>
          </details>
        </div>
      </Panel>
      <div className="beside">
        <PlanPanel
          document={document}
          planned={planned}
          missing={missing}
          done={endpoint ? `endpoint/${d.name} is changed.` : `endpoint/${d.name} is made.`}
          onDone={() => {
            onDone(d.name);
            if (again) setD({ ...fresh(), kind: d.kind });
          }}
        />
      </div>
    </div>
  );
}
