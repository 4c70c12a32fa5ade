import { Button, Modal, SegmentedControl, Select, TextInput } from "@mantine/core";
import { IconPlus, IconTrash } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { apply, deleteObjects, useAction } from "../api/actions";
import { useList } from "../api/live";
import { useRates } from "../api/rates";
import { readyOf } from "../api/ready";
import { useMay } from "../api/session";
import type { Endpoint, EndpointSpec } from "../api/types";
import { Command, Empty, Failure, Loading, PageHead, Panel, Ready, SameAs } from "../ui/basic";
import { Confirm } from "../ui/Confirm";
import { DataTable, type Column } from "../ui/DataTable";
import { bits, command, count } from "../ui/format";
import { Named } from "../ui/Named";
import { applyCommand } from "./functions/build";

/** Where it is, in a few words. */
function place(s: EndpointSpec): string {
  if (s.netns) return `${s.netns} ${s.interface ?? ""}`.trim();
  if (s.interface) return s.interface;
  if (s.switch) return `${s.switch} port ${s.switch_port ?? ""}`.trim();
  return "a station of the fabric";
}

export default function Endpoints() {
  const endpoints = useList("endpoint");
  const policies = useList("policy");
  const rates = useRates();
  const may = useMay("operator");
  const [make, setMake] = useState(false);
  const [gone, setGone] = useState<Endpoint>();
  const users = useMemo(() => {
    const by = new Map<string, string[]>();
    for (const p of policies ?? []) for (const e of new Set([p.spec.from, p.spec.to])) if (e) by.set(e, [...(by.get(e) ?? []), p.name]);
    return by;
  }, [policies]);
  const ports = useMemo(() => new Map(rates?.ports?.map((p) => [p.name, p])), [rates]);
  const columns = useMemo<Column<Endpoint>[]>(
    () => [
      { key: "name", title: "Name", value: (e) => e.name, render: (e) => <span className="mono">{e.name}</span> },
      { key: "state", title: "State", value: (e) => readyOf("endpoint", e).state, render: (e) => <Ready r={readyOf("endpoint", e)} /> },
      { key: "place", title: "Where", value: (e) => place(e.spec), render: (e) => <span className="mono break">{place(e.spec)}</span> },
      { key: "address", title: "Address", value: (e) => [e.spec.address, ...(e.spec.addresses ?? [])].filter(Boolean).join(" "), render: (e) => <span className="mono">{[e.spec.address, ...(e.spec.addresses ?? [])].filter(Boolean).join(" ")}</span> },
      { key: "policies", title: "Policies", value: (e) => (users.get(e.name) ?? []).join(" "), render: (e) => <span className="row">{(users.get(e.name) ?? []).slice(0, 5).map((p) => <Named key={p} kind="policy" name={p} />)}</span> },
      { key: "rate", title: "Sends, receives", align: "right", value: (e) => ports.get(`endpoint/${e.name}`)?.rx.bits_per_s ?? 0, render: (e) => <Rate p={ports.get(`endpoint/${e.name}`)} /> },
      { key: "host", title: "Host", wide: true, value: (e) => e.placement?.host ?? "", render: (e) => (e.placement?.host ? <Named kind="host" name={e.placement.host} /> : "") },
      { key: "mac", title: "MAC", wide: true, value: (e) => e.status.mac ?? e.spec.mac ?? "", render: (e) => <span className="mono dim">{e.status.mac ?? e.spec.mac}</span> },
      {
        key: "delete",
        title: "Delete",
        wide: true,
        value: () => "",
        render: (e) => (
          <Button variant="subtle" color="gray" px="xs" aria-label={`Delete ${e.name}`} disabled={!may.ok || !!e.deleting} onClick={() => setGone(e)}>
            <IconTrash size={14} />
          </Button>
        ),
      },
    ],
    [users, ports, may.ok],
  );
  if (!endpoints) return <Loading />;
  const add = (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setMake(true)} disabled={!may.ok} title={may.why}>
      New endpoint
    </Button>
  );
  return (
    <div className="stack">
      <PageHead title="Endpoints" lead="Where users' traffic enters: a network card, a link into a network namespace, or a station of the fabric." actions={add} />
      <Panel flush>
        <DataTable name="endpoints" rows={endpoints} columns={columns} rowKey={(e) => e.name} empty={<Empty title="No endpoint yet" action={add}>Policies name endpoints: traffic from one, or to one, goes through a chain.</Empty>} />
      </Panel>
      <SameAs text="weir get endpoints" />
      <Modal opened={make} onClose={() => setMake(false)} title="New endpoint">
        <Make onClose={() => setMake(false)} />
      </Modal>
      {gone && (
        <Confirm opened onClose={() => setGone(undefined)} title={`Delete ${gone.name}`} verb="Delete" dangerous command={command("weir", "delete", "endpoint", gone.name)} action={() => deleteObjects({ endpoints: [gone.name] })} done={`Deleting ${gone.name}`}>
          {users.get(gone.name)?.length ? `Policies name it (${users.get(gone.name)!.join(", ")}): delete them first.` : "Its port is taken away; a link that Weir made goes, too. The namespace stays."}
        </Confirm>
      )}
    </div>
  );
}

function Rate({ p }: { p?: { rx: { packets_per_s: number; bits_per_s: number }; tx: { packets_per_s: number; bits_per_s: number } } }) {
  if (!p) return null;
  return (
    <span className="nowrap" title={`${count(p.rx.packets_per_s)} and ${count(p.tx.packets_per_s)} packets a second`}>
      {bits(p.rx.bits_per_s / 8)}, {bits(p.tx.bits_per_s / 8)}
    </span>
  );
}

function Make({ onClose }: { onClose: () => void }) {
  const hosts = useList("host");
  const [kind, setKind] = useState<"netns" | "card" | "station">("netns");
  const [name, setName] = useState("");
  const [f, setF] = useState({ netns: "", interface: "eth0", address: "", mac: "", switch: "", port: "", host: "" });
  const set = (change: Partial<typeof f>) => setF({ ...f, ...change });
  const spec: EndpointSpec =
    kind === "netns"
      ? { netns: f.netns || name, interface: f.interface, ...(f.address && { address: f.address }) }
      : kind === "card"
        ? { interface: f.interface }
        : { ...(f.switch && { switch: f.switch, switch_port: f.port }), ...(f.address && { address: f.address }), ...(f.mac && { mac: f.mac }) };
  if (f.host && kind !== "station") spec.host = f.host;
  const doc = { endpoints: { [name.trim()]: spec } };
  const run = useAction(() => apply(doc), { done: () => `${name} is made`, onDone: onClose });
  return (
    <form
      className="stack"
      onSubmit={(e) => {
        e.preventDefault();
        run.mutate();
      }}
    >
      <SegmentedControl
        size="xs"
        aria-label="What it is"
        value={kind}
        onChange={(v) => setKind(v as typeof kind)}
        data={[
          { value: "netns", label: "In a namespace" },
          { value: "card", label: "An interface" },
          { value: "station", label: "A station of the fabric" },
        ]}
      />
      <TextInput label="Name" required value={name} onChange={(e) => setName(e.currentTarget.value)} placeholder="alice" spellCheck={false} data-autofocus />
      {kind === "netns" && (
        <>
          <TextInput label="Network namespace" description="a name under /run/netns, or a path; it has to be there" value={f.netns} placeholder={name || "alice"} onChange={(e) => set({ netns: e.currentTarget.value })} spellCheck={false} />
          <Command text={`ip netns add ${f.netns || name || "alice"}`} />
        </>
      )}
      <div className="grid">
        {kind !== "station" && <TextInput label="Interface" description={kind === "netns" ? "its name inside, made by Weir" : "of the host; it becomes a port"} required value={f.interface} onChange={(e) => set({ interface: e.currentTarget.value })} spellCheck={false} />}
        {kind === "station" && (
          <>
            <TextInput label="Switch" description="or leave it to discovery" value={f.switch} onChange={(e) => set({ switch: e.currentTarget.value })} />
            <TextInput label="Its port" description="number or name" value={f.port} onChange={(e) => set({ port: e.currentTarget.value })} disabled={!f.switch} />
            <TextInput label="MAC" description="by which it is known" value={f.mac} onChange={(e) => set({ mac: e.currentTarget.value })} />
          </>
        )}
        {kind !== "card" && <TextInput label="Address" description="with its prefix" value={f.address} onChange={(e) => set({ address: e.currentTarget.value })} placeholder="10.9.0.1/24" />}
        {kind !== "station" && (hosts?.length ?? 0) > 1 && <Select label="Host" description="where it is" data={hosts!.map((h) => h.name)} value={f.host || null} onChange={(v) => set({ host: v ?? "" })} clearable />}
      </div>
      <Failure error={run.error} />
      <SameAs text={applyCommand(doc)} />
      <div className="row" style={{ justifyContent: "flex-end" }}>
        <Button variant="default" onClick={onClose}>
          Cancel
        </Button>
        <Button type="submit" loading={run.isPending} disabled={!name.trim()}>
          Create
        </Button>
      </div>
    </form>
  );
}
