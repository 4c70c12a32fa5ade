import { Button } from "@mantine/core";
import { useMemo } from "react";
import { useNavigate, useParams } from "react-router";
import { promised, useHosts } from "../../api/hosts";
import { useList } from "../../api/live";
import { functionReady, readyOf } from "../../api/ready";
import type { components } from "../../api/schema";
import { Ago, Empty, Loading, Meter, Notice, PageHead, Panel, Ready, SameAs, State } from "../../ui/basic";
import { Conditions } from "../../ui/Conditions";
import { DataTable } from "../../ui/DataTable";
import { bytes, command, duration } from "../../ui/format";
import { advice } from "../../ui/advice";
import { Named } from "../../ui/Named";
import { eventColumns } from "../Events";
import { HostActions } from "./Actions";
import { closedWord } from "./drain";

type Feature = components["schemas"]["Feature"];
type Runtime = components["schemas"]["HostRuntime"];

export default function HostDetail() {
  const name = useParams().name!;
  const hosts = useHosts();
  const functions = useList("function");
  const endpoints = useList("endpoint");
  const events = useList("event");
  const go = useNavigate();
  const h = hosts?.find((x) => x.name === name);
  const p = useMemo(() => promised(functions, name), [functions, name]);
  const mine = useMemo(() => (events ?? []).filter((e) => e.host === name || (e.kind === "host" && e.object === name)).slice(-100), [events, name]);
  if (!hosts) return <Loading />;
  if (!h)
    return (
      <Empty page title={`There is no host ${name}`} action={<Button onClick={() => void go("/hosts")}>All hosts</Button>}>
        It was deleted, or never joined.
      </Empty>
    );
  const s = h.status;
  const r = readyOf("host", h);
  const memory = s.memory_bytes ?? 0;
  const used = Math.max(0, memory - (s.free_bytes ?? 0));
  return (
    <div className="stack">
      <PageHead
        title={name}
        crumb={{ to: "/hosts", text: "Hosts" }}
        lead={
          <span className="row">
            <Ready r={r} />
            {closedWord(h) && <State level="idle">{closedWord(h)}</State>}
            <span>
              heard <Ago at={s.heartbeat} />
            </span>
          </span>
        }
        actions={<HostActions h={h} functions={p.functions.length} onDeleted={() => void go("/hosts")} />}
      />
      {!r.ready && (
        <Notice level={r.level === "bad" ? "bad" : "busy"}>
          <strong>{r.state}.</strong> {r.message} <span className="dim">{advice("host", name, r)}</span>
        </Notice>
      )}
      <div className="two">
        <Panel title="What it has">
          <div className="grid">
            <div>
              <span className="label">Load of the last minute</span>
              <Meter value={s.load ?? 0} of={s.cores ?? 0} text={`${(s.load ?? 0).toFixed(2)} of ${s.cores ?? 0} cores`} label="load" />
            </div>
            <div>
              <span className="label">Memory used</span>
              <Meter value={used} of={memory} text={`${bytes(used)} of ${bytes(memory)}`} label="memory used" />
            </div>
            <div>
              <span className="label">Cores that functions ask for</span>
              <Meter value={p.cores} of={s.cores ?? 0} text={`${p.cores} of ${s.cores ?? 0}`} label="cores asked for" />
            </div>
            <div>
              <span className="label">Memory that functions ask for</span>
              <Meter value={p.memory} of={memory} text={`${bytes(p.memory)} of ${bytes(memory)}`} label="memory asked for" />
            </div>
          </div>
        </Panel>
        <Panel title="Conditions" flush>
          <Conditions conditions={s.conditions} none="None: it is as it should be." />
        </Panel>
      </div>
      <div className="two">
        <Panel title="Functions here" flush>
          <DataTable
            name={`functions-of-${name}`}
            noFilter
            rows={p.functions}
            rowKey={(f) => f.name}
            empty={<Empty title="None">{closedWord(h) ? `The host is ${closedWord(h)}: nothing new is placed on it.` : "The manager places functions here when it fits."}</Empty>}
            columns={[
              { key: "name", title: "Name", value: (f) => f.name, render: (f) => <Named kind="function" name={f.name} /> },
              { key: "state", title: "State", value: (f) => functionReady(f).state, render: (f) => <Ready r={functionReady(f)} /> },
              { key: "image", title: "Image", value: (f) => f.spec.image, render: (f) => <span className="mono">{f.spec.image}</span> },
              { key: "why", title: "Why here", wide: !h.spec.drain, value: (f) => f.placement?.stays ?? f.placement?.reason ?? "" },
            ]}
          />
        </Panel>
        <Panel title="The machine">
          <dl className="kv">
            <dt>Kernel</dt>
            <dd className="mono">{s.kernel}</dd>
            <dt>Weir</dt>
            <dd className="mono">{s.version}</dd>
            <dt>Switch</dt>
            <dd className="mono">
              {s.switch} {s.bridge && <span className="dim">{s.bridge}</span>}
            </dd>
            <dt>Clock</dt>
            <dd>{s.clock_skew_ns ? `${duration(Math.abs(s.clock_skew_ns))} ${s.clock_skew_ns > 0 ? "ahead" : "behind"}` : "as the manager's"}</dd>
            {s.address && (
              <>
                <dt>Underlay</dt>
                <dd className="mono">{s.address}</dd>
              </>
            )}
            <dt>Endpoints</dt>
            <dd>{(endpoints ?? []).filter((e) => e.placement?.host === name).length}</dd>
            <dt>Images</dt>
            <dd>{s.images?.length ?? 0}</dd>
          </dl>
        </Panel>
      </div>
      <div className="halves">
        <Panel title="What its kernel can" flush>
          <DataTable
            name={`features-of-${name}`}
            noFilter
            rows={s.features ?? []}
            rowKey={(f: Feature) => f.name}
            sort={{ key: "ok" }}
            empty={<Empty title="Not reported yet" />}
            columns={[
              { key: "ok", title: "There", value: (f) => (f.ok ? 1 : 0), render: (f) => <State level={f.ok ? "ok" : f.required ? "bad" : "warn"}>{f.ok ? "yes" : "no"}</State> },
              {
                key: "name",
                title: "Feature",
                value: (f) => f.name,
                render: (f) => (
                  <>
                    {f.name} {f.required && <span className="tag">required</span>}
                  </>
                ),
              },
              { key: "detail", title: "Why not, or what it means", value: (f) => f.detail ?? "", render: (f) => <span className="break dim">{f.detail}</span> },
            ]}
          />
        </Panel>
        <Panel title="Runtimes" flush>
          <DataTable
            name={`runtimes-of-${name}`}
            noFilter
            rows={s.runtimes ?? []}
            rowKey={(x: Runtime) => x.name}
            sort={{ key: "available", down: true }}
            empty={<Empty title="Not reported yet" />}
            columns={[
              { key: "available", title: "There", value: (x) => (x.available ? 1 : 0), render: (x) => <State level={x.available ? "ok" : "idle"}>{x.available ? "yes" : "no"}</State> },
              {
                key: "name",
                title: "Runtime",
                value: (x) => x.name,
                render: (x) => (
                  <>
                    <span className="mono">{x.name}</span> {x.default && <span className="tag">default</span>}
                  </>
                ),
              },
              { key: "why", title: "Why not", value: (x) => x.why ?? x.note ?? x.version ?? "", render: (x) => <span className="break dim">{x.why ?? x.note ?? x.version}</span> },
            ]}
          />
        </Panel>
      </div>
      <Panel title="Events" flush>
        <DataTable name={`events-of-${name}`} noFilter rows={mine} columns={eventColumns} rowKey={(e) => e.name} sort={{ key: "time", down: true }} empty={<Empty title="Nothing has happened here yet" />} />
      </Panel>
      <SameAs text={command("weir", "describe", "host", name)} />
    </div>
  );
}
