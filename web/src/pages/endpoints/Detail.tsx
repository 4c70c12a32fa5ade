import { Button } from "@mantine/core";
import { IconTrash } from "@tabler/icons-react";
import { useState } from "react";
import { useNavigate, useParams } from "react-router";
import { usePorts } from "../../api/counters";
import { useList, useObject } from "../../api/live";
import { readyOf } from "../../api/ready";
import { useMay } from "../../api/session";
import { Empty, Loading, Notice, PageHead, Panel, Ready, SameAs } from "../../ui/basic";
import { Conditions } from "../../ui/Conditions";
import { DataTable } from "../../ui/DataTable";
import { bits, command, count } from "../../ui/format";
import { Delete, Gone } from "../../ui/Gone";
import { Named } from "../../ui/Named";
import { LinkButton, UndoButton } from "../../ui/Plan";
import { advice } from "../../ui/advice";
import { Match } from "../policies/List";
import { EndpointForm } from "./Form";
import { placeOf } from "./List";

export default function EndpointDetail() {
  const { name } = useParams();
  const e = useObject("endpoint", name ?? "");
  const policies = useList("policy") ?? [];
  const may = useMay("operator");
  const go = useNavigate();
  const [editing, setEditing] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const host = e?.spec.interface ? placeOf(e) || undefined : undefined;
  const { readings } = usePorts(host, (port) => port === `endpoint/${name}`);
  if (!name)
    return (
      <div className="stack">
        <PageHead title="New endpoint" crumb={{ to: "/endpoints", text: "Endpoints" }} lead="Where users' traffic enters. Nothing changes before you apply the plan." />
        <EndpointForm onDone={(n) => void go(`/endpoints/${n}`)} />
      </div>
    );
  if (e === undefined) return <Loading />;
  if (e === null) return <Gone kind="endpoint" name={name} />;
  const r = readyOf("endpoint", e);
  const users = policies.filter((p) => p.spec.from === name || p.spec.to === name);
  const rate = readings.at(-1)?.ports[0];
  const s = e.spec;
  const facts: [string, React.ReactNode][] = [
    [s.switch ? "switch" : "host", placeOf(e) ? <Named kind={s.switch ? "switch" : "host"} name={placeOf(e)} /> : <span className="dim">not found yet</span>],
    ["namespace", s.netns && <span className="mono">{s.netns}</span>],
    ["interface", s.interface && <span className="mono">{s.interface}</span>],
    ["port", s.switch_port && <span className="mono">{s.switch_port}</span>],
    ["address", s.address && <span className="mono">{[s.address, ...(s.addresses ?? [])].join(", ")}</span>],
    ["MAC", (e.status.mac || s.mac) && <span className="mono">{e.status.mac || s.mac}</span>],
    ["MTU", s.mtu],
    ["port security", s.port_security?.mode],
    ["shared addresses", s.port_security?.shared && <span className="mono">{s.port_security.shared.join(", ")}</span>],
    ["sends", rate?.rx && `${count(Math.round(rate.rx.packets))}/s, ${bits(rate.rx.bytes)}`],
    ["receives", rate?.tx && `${count(Math.round(rate.tx.packets))}/s, ${bits(rate.tx.bytes)}`],
    ["dropped", rate && rate.port.dropped.packets > 0 && count(rate.port.dropped.packets)],
  ];
  return (
    <div className="stack">
      <PageHead
        title={name}
        crumb={{ to: "/endpoints", text: "Endpoints" }}
        lead={<Ready r={r} />}
        actions={
          <>
            <UndoButton />
            <Button variant="default" leftSection={<IconTrash size={14} />} disabled={!may.ok || !!e.deleting} onClick={() => setDeleting(true)}>
              Delete
            </Button>
            <LinkButton to={`/policies/new?from=${encodeURIComponent(name)}`}>New policy from it</LinkButton>
            {may.ok && <Button onClick={() => setEditing(!editing)}>{editing ? "Leave it" : "Change"}</Button>}
          </>
        }
      />
      {!r.ready && r.message && (
        <Notice level={r.level === "bad" ? "bad" : "busy"} role="status">
          <strong>{r.message}</strong> {advice("endpoint", name, r)}
        </Notice>
      )}
      {editing && <EndpointForm key={e.generation} endpoint={e} onDone={() => setEditing(false)} />}
      <div className="two">
        <Panel title="Policies from and to it" flush>
          <DataTable
            name="endpoint-policies"
            noFilter
            rows={users}
            rowKey={(p) => p.name}
            empty={<Empty title="No policy names it">Its traffic is bridged normally, unless a policy selects it by address.</Empty>}
            columns={[
              { key: "name", title: "Policy", value: (p) => p.name, render: (p) => <Named kind="policy" name={p.name} /> },
              { key: "state", title: "State", value: (p) => readyOf("policy", p).state, render: (p) => <Ready r={readyOf("policy", p)} /> },
              { key: "ends", title: "From and to", value: (p) => `${p.spec.from || "any"} to ${p.spec.to || "any"}` },
              { key: "match", title: "Match", value: (p) => (p.spec.match ?? ["all"]).join(", "), render: (p) => <Match policy={p} /> },
              { key: "chain", title: "Chain", value: (p) => p.spec.chain, render: (p) => <Named kind="chain" name={p.spec.chain} /> },
            ]}
          />
        </Panel>
        <div className="stack">
          <Panel title="What it is">
            <dl className="kv">
              {facts
                .filter(([, v]) => v)
                .map(([k, v]) => (
                  <div key={k} style={{ display: "contents" }}>
                    <dt>{k}</dt>
                    <dd>{v}</dd>
                  </div>
                ))}
            </dl>
          </Panel>
          <Panel title="Conditions" flush>
            <Conditions conditions={e.status.conditions} none="None: it is as it is wanted." />
          </Panel>
          <SameAs text={command("weir", "describe", "endpoint", name)} />
        </div>
      </div>
      {deleting && (
        <Delete kind="endpoint" name={name} onClose={() => setDeleting(false)}>
          {users.length ? `Policies name it (${users.map((p) => p.name).join(", ")}): change or delete these first.` : s.netns ? "Its link is removed; the namespace stays. It can be undone." : "The interface is given back as it was. It can be undone."}
        </Delete>
      )}
    </div>
  );
}
