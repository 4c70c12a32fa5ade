import { Tabs } from "@mantine/core";
import { lazy, Suspense, useMemo } from "react";
import { useParams, useSearchParams } from "react-router";
import { usePorts, type Reading } from "../../api/counters";
import { useList, useObject } from "../../api/live";
import { functionReady } from "../../api/ready";
import type { Func } from "../../api/types";
import { Ago, Copy, Empty, Failure, Loading, Notice, PageHead, Panel, Ready, SameAs, Time, useNow } from "../../ui/basic";
import { Conditions } from "../../ui/Conditions";
import { DataTable } from "../../ui/DataTable";
import { useRates } from "../../api/rates";
import { bits, bytes, command, count, duration, percent, plural } from "../../ui/format";
import { Gone } from "../../ui/Gone";
import { Named } from "../../ui/Named";
import { advice } from "../../ui/advice";
import { AsYaml } from "../../ui/Object";
import { eventColumns } from "../Events";
import { FunctionActions } from "./Actions";
import { chainOf } from "./List";
import { hours, restartsOf, strip } from "./restarts";

const Chart = lazy(() => import("../../ui/Chart"));
const Logs = lazy(() => import("./Logs"));
const Shell = lazy(() => import("./Shell"));
const Edit = lazy(() => import("./Edit"));

export default function FunctionDetail() {
  const name = useParams().name!;
  const f = useObject("function", name);
  const chains = useList("chain");
  const [query, setQuery] = useSearchParams();
  if (f === undefined) return <Loading />;
  if (f === null) return <Gone kind="function" name={name} />;
  const r = functionReady(f);
  const chain = chainOf(chains, name);
  const tab = query.get("tab") ?? "state";
  return (
    <div className="stack">
      <PageHead
        title={name}
        crumb={{ to: "/functions", text: "Functions" }}
        lead={
          <span className="row">
            <Ready r={r} />
            <span className="mono">{f.spec.image}</span>
            {chain && (
              <span>
                in chain <Named kind="chain" name={chain} />
              </span>
            )}
            {f.placement?.host && (
              <span>
                on <Named kind="host" name={f.placement.host} />
              </span>
            )}
          </span>
        }
        actions={<FunctionActions f={f} chain={chain} />}
      />
      {!r.ready && r.message && (
        <Notice level={r.level === "bad" ? "bad" : "busy"}>
          <strong>{r.state}:</strong> {r.message}
          {r.since && (
            <>
              {" "}
              (<Ago at={r.since} />)
            </>
          )}
          . <span className="dim">{advice("function", name, r)}</span>
        </Notice>
      )}
      <Tabs value={tab} onChange={(v) => setQuery(v && v !== "state" ? { tab: v } : {}, { replace: true })} keepMounted={false}>
        <Tabs.List>
          <Tabs.Tab value="state">State</Tabs.Tab>
          <Tabs.Tab value="logs">Logs</Tabs.Tab>
          <Tabs.Tab value="config">Config</Tabs.Tab>
          <Tabs.Tab value="shell">Shell</Tabs.Tab>
          <Tabs.Tab value="events">Events</Tabs.Tab>
        </Tabs.List>
        <Suspense fallback={<Loading />}>
          <Tabs.Panel value="state" pt="md">
            <StateTab f={f} />
          </Tabs.Panel>
          <Tabs.Panel value="logs" pt="md">
            <Panel flush>
              <Logs name={name} life={`${f.uid} ${f.status.started ?? ""}`} />
            </Panel>
          </Tabs.Panel>
          <Tabs.Panel value="config" pt="md">
            <Edit f={f} />
          </Tabs.Panel>
          <Tabs.Panel value="shell" pt="md">
            <Panel flush>
              <Shell name={name} running={f.status.state === "started"} />
            </Panel>
          </Tabs.Panel>
          <Tabs.Panel value="events" pt="md">
            <EventsTab name={name} />
          </Tabs.Panel>
        </Suspense>
      </Tabs>
    </div>
  );
}

function StateTab({ f }: { f: Func }) {
  const s = f.status;
  const { readings, error } = usePorts(f.placement?.host, (n) => n.startsWith(`function/${f.name}/`));
  return (
    <div className="stack">
      <div className="two">
        <Panel title="Traffic" flush>
          <Ports readings={readings} />
          {error && (
            <div className="body">
              <Failure error={error} />
            </div>
          )}
        </Panel>
        <Panel title="Conditions" flush>
          <Conditions conditions={s.conditions} none="None: it is as it should be." />
        </Panel>
      </div>
      <div className="two">
        <Panel title="What it is">
          <dl className="kv">
            <dt>State</dt>
            <dd>
              {s.state ?? "pending"}, {s.healthy ? "healthy" : "not healthy"}
              {s.checked_by && <span className="dim"> (checked by {s.checked_by})</span>}
            </dd>
            {!!s.rtt_ns && (
              <>
                <dt>Probe</dt>
                <dd>{duration(s.rtt_ns)} round trip through its ports</dd>
              </>
            )}
            <dt>Running since</dt>
            <dd>
              <Time at={s.started} />
              {s.started && (
                <span className="dim">
                  {" "}
                  (<Ago at={s.started} suffix="" />)
                </span>
              )}
            </dd>
            <dt>Restarts</dt>
            <dd className="num">
              {s.restarts ?? 0}
              {s.last_exit && <span className="dim"> last: {s.last_exit}</span>}
            </dd>
            <dt>When it is down</dt>
            <dd>{f.spec.on_fail === "bypass" ? "bypass: traffic goes round it" : "drop: its traffic is dropped"}</dd>
            <dt>Image</dt>
            <dd>
              <span className="mono">{f.spec.image}</span>
              {s.image && (
                <span className="row mono dim">
                  {s.image.slice(0, 19)} <Copy text={s.image} label="Copy the digest" />
                </span>
              )}
            </dd>
            <dt>Runtime</dt>
            <dd>
              {s.runtime} {s.runtime_note && <span className="dim">({s.runtime_note})</span>}
            </dd>
            {s.pid ? (
              <>
                <dt>Process</dt>
                <dd className="num">{s.pid}</dd>
              </>
            ) : null}
            <dt>Placement</dt>
            <dd>{f.placement?.reason ?? <span className="dim">not decided</span>}</dd>
          </dl>
        </Panel>
        <Panel title="What it uses, and limits">
          <dl className="kv">
            <dt>Now</dt>
            <dd>
              <Used name={f.name} />
            </dd>
            <dt>Processors</dt>
            <dd>{s.limits?.cpus ? plural(s.limits.cpus, "core") : "no limit"}</dd>
            {s.limits?.cpuset && (
              <>
                <dt>On</dt>
                <dd>{s.limits.cpuset}</dd>
              </>
            )}
            <dt>Memory</dt>
            <dd>{s.limits?.memory_bytes ? bytes(s.limits.memory_bytes) : "no limit"}</dd>
            <dt>Processes</dt>
            <dd>{s.limits?.processes ?? "no limit"}</dd>
            <dt>Disk</dt>
            <dd>{s.limits?.disk_bytes_per_s ? `${bytes(s.limits.disk_bytes_per_s)}/s` : "no limit"}</dd>
            {s.limits?.ring_bytes !== undefined && (
              <>
                <dt>Rings of sockets</dt>
                <dd>{bytes(s.limits.ring_bytes)}</dd>
              </>
            )}
          </dl>
          {s.limits?.missing && (
            <p className="dim break" style={{ marginTop: "0.5rem" }}>
              {s.limits.missing}
            </p>
          )}
        </Panel>
      </div>
      <Restarts f={f} />
      <Panel title="The object" flush>
        <details>
          <summary style={{ padding: "0.6rem 1rem", cursor: "pointer" }}>As the API has it</summary>
          <AsYaml value={f} label={`function ${f.name} as YAML`} />
        </details>
      </Panel>
      <SameAs text={command("weir", "describe", "function", f.name)} />
    </div>
  );
}

const shownRestarts = 20;

/** When it ended or hung and Weir started it again: the last hours as a strip, and a list. Nothing for a function that never did. */
function Restarts({ f }: { f: Func }) {
  const events = useList("event");
  const now = useNow();
  const marks = useMemo(() => restartsOf(events, f.name), [events, f.name]);
  if (!marks.length && !f.status.restarts) return null;
  const drawn = strip(marks, now);
  const times = drawn.reduce((n, d) => n + d.mark.times, 0);
  const label = `${times === 1 ? "once" : `${times} times`} in the last ${hours} hours`;
  return (
    <Panel title="Restarts" right={<span className="label">{plural(f.status.restarts ?? 0, "restart")} since it was made</span>}>
      <div className="stack">
        <div>
          <svg width="100%" height="28" role="img" aria-label={`It ended or hung ${label}`} style={{ display: "block" }}>
            <line x1="0" x2="100%" y1="27" y2="27" stroke="var(--line)" />
            {drawn.map((d) => (
              <rect key={`${d.mark.to} ${d.mark.what}`} x={`${Math.min(99.5, 100 * d.at)}%`} y="4" width={`${Math.max(0.5, 100 * d.width)}%`} height="22" fill="var(--bad)">
                <title>{d.mark.message}</title>
              </rect>
            ))}
          </svg>
          <div className="row dim" style={{ justifyContent: "space-between" }}>
            <span>{hours} h ago</span>
            <span>{label}</span>
            <span>now</span>
          </div>
        </div>
        {marks.length > 0 ? (
          <div className="scroll-x" tabIndex={0} role="region" aria-label="When it ended or hung">
            <table className="table">
              <thead>
                <tr>
                  <th scope="col">When</th>
                  <th scope="col">What</th>
                  <th scope="col">Message</th>
                  <th scope="col" className="right">
                    Times
                  </th>
                </tr>
              </thead>
              <tbody>
                {marks.slice(0, shownRestarts).map((m) => (
                  <tr key={`${m.to} ${m.what}`}>
                    <td>
                      <Time at={new Date(m.to).toISOString()} />
                    </td>
                    <td className="nowrap">{m.what}</td>
                    <td className="break">{m.message}</td>
                    <td className="right">{m.times}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ) : (
          <p className="dim">The events of its restarts are forgotten by now.</p>
        )}
        <SameAs text={command("weir", "events", "--object", `function/${f.name}`)} />
      </div>
    </Panel>
  );
}

/** Rates and totals of ports, and their last minutes as lines. */
export function Ports({ readings }: { readings: Reading[] }) {
  const last = readings.at(-1);
  const times = useMemo(() => readings.map((r) => r.at), [readings]);
  const lines = useMemo(
    () =>
      (last?.ports ?? []).slice(0, 4).flatMap((p, i) => {
        const of = (way: "rx" | "tx") => readings.map((r) => r.ports.find((q) => q.port.name === p.port.name)?.[way]?.packets ?? null);
        const short = p.port.name.split("/").at(-1)!;
        const colour = ["--accent", "--warn", "--busy", "--bad"][i]!;
        return [
          { label: `${short} to it`, values: of("tx"), colour },
          { label: `${short} from it`, values: of("rx"), colour, dash: true },
        ];
      }),
    [readings, last],
  );
  if (!last) return <div className="empty">Reading the counters</div>;
  if (!last.ports.length) return <Empty title="No ports yet">They come when the function is made on its host.</Empty>;
  return (
    <>
      <div style={{ padding: "0.75rem 1rem 0" }}>
        <Suspense fallback={<div style={{ height: 210 }} />}>
          <Chart times={times} lines={lines} format={(n) => `${count(n)}/s`} label="Packets a second at each port, the last minutes" />
        </Suspense>
      </div>
      <div className="scroll-x" tabIndex={0} role="region" aria-label="Ports">
        <table className="table">
          <thead>
            <tr>
              <th scope="col">Port</th>
              <th scope="col">Link</th>
              <th scope="col" className="right">To it</th>
              <th scope="col" className="right">From it</th>
              <th scope="col" className="right">Packets to, from</th>
              <th scope="col" className="right">Dropped</th>
            </tr>
          </thead>
          <tbody>
            {last.ports.map((p) => (
              <tr key={p.port.name}>
                <td className="mono">{p.port.name.split("/").at(-1)}</td>
                <td className="mono dim">{p.port.link}</td>
                <td className="right">{p.tx ? `${count(p.tx.packets)}/s, ${bits(p.tx.bytes)}` : ""}</td>
                <td className="right">{p.rx ? `${count(p.rx.packets)}/s, ${bits(p.rx.bytes)}` : ""}</td>
                <td className="right">
                  {count(p.port.tx.packets)}, {count(p.port.rx.packets)}
                </td>
                <td className="right">{count(p.port.dropped.packets)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** What all of its processes use now. */
function Used({ name }: { name: string }) {
  const rates = useRates();
  const r = rates?.functions?.find((x) => x.name === name);
  if (!rates) return <span className="dim">…</span>;
  if (!r?.memory_bytes) return <span className="dim">not known</span>;
  return (
    <>
      {percent(r.cpus ?? 0)} of a core, {bytes(r.memory_bytes)}
    </>
  );
}

function EventsTab({ name }: { name: string }) {
  const all = useList("event");
  const rows = useMemo(() => (all ?? []).filter((e) => e.kind === "function" && e.object === name), [all, name]);
  return (
    <div className="stack">
      <Panel flush>
        <DataTable name={`events-${name}`} rows={rows} columns={eventColumns.filter((c) => c.key !== "object")} rowKey={(e) => e.name} sort={{ key: "time", down: true }} empty={<Empty title="Nothing has happened to it yet" />} />
      </Panel>
      <SameAs text={command("weir", "events", "-f", "--object", `function/${name}`)} />
    </div>
  );
}
