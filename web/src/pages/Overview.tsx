import { Button } from "@mantine/core";
import { Suspense, lazy, useMemo } from "react";
import { Link } from "react-router";
import { useList } from "../api/live";
import { useTraffic } from "../api/rates";
import { readyOf, type Readiness } from "../api/ready";
import type { Kind } from "../api/types";
import { Ago, Empty, Loading, Notice, PageHead, Panel, SameAs, State } from "../ui/basic";
import { DataTable } from "../ui/DataTable";
import { bits, count, plural } from "../ui/format";
import { Named } from "../ui/Named";
import { advice } from "../ui/advice";
import { eventColumns } from "./Events";

const Chart = lazy(() => import("../ui/Chart"));

type Steady = Exclude<Kind, "event">;
interface Lacking {
  kind: Steady;
  name: string;
  r: Readiness;
}

const order: Steady[] = ["host", "switch", "endpoint", "function", "chain", "policy"];
const level = { bad: 0, warn: 1, busy: 2, idle: 3, ok: 4 };

export default function Overview() {
  const host = useList("host");
  const sw = useList("switch");
  const endpoint = useList("endpoint");
  const fn = useList("function");
  const chain = useList("chain");
  const policy = useList("policy");
  const events = useList("event");
  const lists = useMemo(() => ({ host, switch: sw, endpoint, function: fn, chain, policy }), [host, sw, endpoint, fn, chain, policy]);
  const lacking = useMemo(() => {
    const out: Lacking[] = [];
    for (const kind of order)
      for (const o of lists[kind] ?? []) {
        const r = readyOf(kind, o as never);
        if (!r.ready || r.level === "warn") out.push({ kind, name: o.name, r });
      }
    return out.sort((a, b) => level[a.r.level] - level[b.r.level]);
  }, [lists]);
  const last = useMemo(() => (events ?? []).slice(-12), [events]);
  if (!host || !fn || !policy || !chain || !endpoint) return <Loading />;
  const nothing = fn.length + chain.length + policy.length + endpoint.length === 0;
  return (
    <div className="stack">
      <PageHead title="Overview" />
      {nothing ? <First /> : <Verdict lacking={lacking} />}
      <div className="tiles">
        {order
          .filter((kind) => kind !== "switch" || (sw?.length ?? 0) > 0)
          .map((kind) => (
            <Tile key={kind} kind={kind} count={lists[kind]?.length ?? 0} lacking={lacking.filter((l) => l.kind === kind)} />
          ))}
      </div>
      {lacking.length > 0 && (
        <Panel title="What is not well" flush>
          <DataTable
            name="not-well"
            noFilter
            rows={lacking}
            rowKey={(l) => `${l.kind}/${l.name}`}
            sort={{ key: "rank" }}
            empty={null}
            columns={[
              { key: "rank", title: "State", value: (l) => level[l.r.level], render: (l) => <State level={l.r.level}>{l.r.state}</State> },
              { key: "name", title: "Object", value: (l) => `${l.kind}/${l.name}`, render: (l) => <Named kind={l.kind} name={l.name} withKind /> },
              { key: "since", title: "Since", value: (l) => l.r.since ?? "", render: (l) => (l.r.since ? <Ago at={l.r.since} /> : "") },
              { key: "why", title: "Why", value: (l) => l.r.message, render: (l) => <span className="break">{l.r.message || <span className="dim">not reported yet</span>}</span> },
              { key: "do", title: "What to do", value: (l) => advice(l.kind, l.name, l.r), render: (l) => <span className="break">{advice(l.kind, l.name, l.r)}</span> },
            ]}
          />
        </Panel>
      )}
      {!nothing && <LastHour />}
      <Panel title="Last events" right={<Link to="/events">All events</Link>} flush>
        <DataTable name="last-events" noFilter rows={last} columns={eventColumns.filter((c) => c.key !== "source")} rowKey={(e) => e.name} sort={{ key: "time", down: true }} empty={<Empty title="Nothing has happened yet" />} />
      </Panel>
      <SameAs text="weir status; weir top traffic" />
    </div>
  );
}

/** What endpoints have sent in the last hour. */
function LastHour() {
  const traffic = useTraffic();
  const points = traffic?.points ?? [];
  const drawn = useMemo(() => {
    const times: number[] = [];
    const sent: number[] = [];
    for (const p of traffic?.points ?? []) {
      times.push(Date.parse(p.time) / 1000);
      sent.push(p.bits_per_s / 8);
    }
    return { times, lines: [{ label: "sent by endpoints", values: sent, colour: "--accent" }] };
  }, [traffic]);
  const now = points.at(-1);
  const dropped = points.reduce((n, p) => n + p.dropped_per_s, 0) * ((traffic?.every_ns ?? 0) / 1e9);
  return (
    <Panel
      title="Traffic of the last hour"
      right={
        now && (
          <span className="label">
            now {bits(now.bits_per_s / 8)}, {count(Math.round(now.packets_per_s))} packets/s; {count(Math.round(dropped))} dropped in the hour
          </span>
        )
      }
    >
      {points.length < 2 ? (
        <p className="dim">{traffic ? "Figures come a minute after the manager's start." : "…"}</p>
      ) : (
        <Suspense fallback={<div style={{ height: 140 }} />}>
          <Chart times={drawn.times} lines={drawn.lines} format={bits} label="Traffic of the last hour" height={140} />
        </Suspense>
      )}
    </Panel>
  );
}

function Verdict({ lacking }: { lacking: Lacking[] }) {
  const bad = lacking.filter((l) => !l.r.ready && l.r.level !== "busy");
  const busy = lacking.filter((l) => l.r.level === "busy");
  const soft = lacking.filter((l) => l.r.ready);
  const first = bad[0] ?? busy[0] ?? soft[0];
  if (!first)
    return (
      <Notice level="ok" role="status">
        <strong>All well.</strong> Every object is as it is wanted.
      </Notice>
    );
  const text = [bad.length && `${plural(bad.length, "object")} not as wanted`, busy.length && `${plural(busy.length, "object")} on the way`, soft.length && plural(soft.length, "warning")].filter(Boolean).join(", ");
  return (
    <Notice level={bad.length ? "bad" : busy.length ? "busy" : "warn"} role="status">
      <strong>{text}.</strong>{" "}
      <span className="mono">
        {first.kind}/{first.name}
      </span>
      : {first.r.state}
      {first.r.message && `, ${first.r.message}`}
      {first.r.since && (
        <>
          {" "}
          (<Ago at={first.r.since} />)
        </>
      )}
      . {advice(first.kind, first.name, first.r)}
    </Notice>
  );
}

const titles: Record<Steady, [string, string]> = {
  host: ["Hosts", "/hosts"],
  switch: ["Switches", "/topology"],
  endpoint: ["Endpoints", "/endpoints"],
  function: ["Functions", "/functions"],
  chain: ["Chains", "/chains"],
  policy: ["Policies", "/policies"],
};

function Tile({ kind, count, lacking }: { kind: Steady; count: number; lacking: Lacking[] }) {
  const [title, to] = titles[kind];
  const down = lacking.filter((l) => !l.r.ready);
  const worst = lacking[0]?.r.level;
  return (
    <Link className="tile" to={to}>
      <span className="label">{title}</span>
      <b>{count}</b>
      {count === 0 ? <span className="dim">none yet</span> : worst ? <State level={worst}>{down.length ? `${down.length} not ready` : plural(lacking.length, "warning")}</State> : <State level="ok">all ready</State>}
    </Link>
  );
}

/** What to do on an empty machine. */
function First() {
  return (
    <Panel title="Nothing is here yet">
      <div className="stack">
        <p>Traffic enters at endpoints. A policy says which of it goes through which chain of functions.</p>
        <div className="row">
          <Button component={Link} to="/start">
            Step by step
          </Button>
          <Button component={Link} to="/apply" variant="default">
            Apply a file, from an example
          </Button>
        </div>
      </div>
    </Panel>
  );
}
