// What becomes of a packet between two endpoints, and of its reply. Nothing is sent.
import { Autocomplete, Button, NumberInput, Select, TextInput } from "@mantine/core";
import { IconArrowsExchange } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useSearchParams } from "react-router";
import "../ui/chain.css";
import "./topology/topology.css";
import { api, data } from "../api/client";
import { useList } from "../api/live";
import type { Trace } from "../api/types";
import { Empty, Failure, Loading, Notice, PageHead, Panel, SameAs, State } from "../ui/basic";
import { command, count } from "../ui/format";
import { Named } from "../ui/Named";
import { LinkButton } from "../ui/Plan";
import { nodeOf } from "./topology/way";

type Way = Trace["request"];
type Step = NonNullable<Way["steps"]>[number];

const fields = ["from", "to", "match", "source", "destination", "source_port", "vlan"] as const;
type Query = Partial<Record<(typeof fields)[number], string>>;

const packets = ["icmp", "arp", "tcp/80", "tcp/443", "tcp/22", "udp/53", "udp/123"];

export default function TracePage() {
  const endpoints = useList("endpoint");
  const [params, setParams] = useSearchParams();
  const q: Query = Object.fromEntries(fields.flatMap((f) => (params.get(f) ? [[f, params.get(f)!]] : [])));
  const [more, setMore] = useState(!!(q.source || q.destination || q.source_port || q.vlan));
  const put = (change: Query) =>
    setParams(
      (was) => {
        for (const [k, v] of Object.entries(change)) {
          if (v) was.set(k, v);
          else was.delete(k);
        }
        return was;
      },
      { replace: true },
    );
  const complete = !!q.from && !!q.to;
  const trace = useQuery<Trace>({
    queryKey: ["trace", q],
    enabled: complete,
    gcTime: 0,
    placeholderData: (old) => old,
    refetchInterval: 5_000, // policies and healths change
    queryFn: ({ signal }) => {
      const query = { ...q, source_port: q.source_port ? Number(q.source_port) : undefined, vlan: q.vlan ? Number(q.vlan) : undefined };
      return data<Trace>(api.GET("/v1/trace", { params: { query: query as never }, signal }) as Promise<{ data?: Trace }>);
    },
  });
  if (!endpoints) return <Loading />;
  const names = endpoints.map((e) => e.name);
  const t = complete && !trace.error ? trace.data : undefined;
  const decides = [...(t?.request.policies ?? []), ...(t?.reply.policies ?? [])].find((p) => p.verdict === "decides");
  return (
    <div className="stack">
      <PageHead title="Trace" lead="What becomes of a packet between two endpoints, and of its reply: which policy decides and why not another, which ports it meets, whether it arrives. Nothing is sent." />
      {names.length < 2 && (
        <Empty title="A trace needs two endpoints" action={<LinkButton to="/start">From nothing to a chain, step by step</LinkButton>}>
          There {names.length ? "is one" : "are none"} yet.
        </Empty>
      )}
      {names.length >= 2 && (
        <Panel>
          <div className="form">
            <div className="trace-form">
              <Select label="From" searchable data={names} value={q.from ?? null} onChange={(v) => put({ from: v ?? "" })} placeholder="An endpoint" limit={100} nothingFoundMessage="No endpoint has this name" />
              <Button variant="default" px={8} aria-label="Swap from and to" onClick={() => put({ from: q.to ?? "", to: q.from ?? "" })}>
                <IconArrowsExchange size={14} />
              </Button>
              <Select label="To" searchable data={names} value={q.to ?? null} onChange={(v) => put({ to: v ?? "" })} placeholder="Another endpoint" limit={100} nothingFoundMessage="No endpoint has this name" />
              <Autocomplete label="Packet" data={packets} value={q.match ?? ""} onChange={(v) => put({ match: v.trim() })} placeholder="icmp, or tcp/80" />
              <Button variant="default" onClick={() => setMore(!more)} aria-expanded={more}>
                {more ? "Less" : "More"}
              </Button>
            </div>
            {more && (
              <div className="pair">
                <TextInput label="Source address" placeholder="that of “from”" value={q.source ?? ""} onChange={(e) => put({ source: e.currentTarget.value.trim() })} />
                <TextInput label="Destination address" placeholder="that of “to”" value={q.destination ?? ""} onChange={(e) => put({ destination: e.currentTarget.value.trim() })} />
                <NumberInput label="Source port" placeholder="49152" min={1} max={65535} value={q.source_port ?? ""} onChange={(v) => put({ source_port: String(v) })} />
                <NumberInput label="VLAN" placeholder="untagged" min={0} max={4094} value={q.vlan ?? ""} onChange={(v) => put({ vlan: String(v) })} />
              </div>
            )}
            {complete && <Failure error={trace.error} />}
          </div>
        </Panel>
      )}
      {t && (
        <>
          <div className="traces">
            <Direction title="Packet" way={t.request} to={t.to} direction="forward" />
            <Direction title="Reply" way={t.reply} to={t.from} direction="reverse" />
          </div>
          <div className="row">{decides && <LinkButton to={`/topology?policy=${encodeURIComponent(decides.policy)}`}>Policy {decides.policy} in the topology</LinkButton>}</div>
          <SameAs
            label="Copy as command"
            text={command("weir", "trace", t.from, t.to, q.match, ...(q.source ? ["--source", q.source] : []), ...(q.destination ? ["--destination", q.destination] : []), ...(q.source_port ? ["--source-port", q.source_port] : []), ...(q.vlan ? ["--vlan", q.vlan] : []))}
          />
        </>
      )}
    </div>
  );
}

function Direction({ title, way, to, direction }: { title: string; way: Way; to: string; direction: "forward" | "reverse" }) {
  const policies = way.policies ?? [];
  const steps = (way.steps ?? []).filter((s, i, all) => !(i > 0 && s.event === "steered" && all[i - 1]!.event === "copied" && all[i - 1]!.port === s.port));
  const dropped = [...steps].reverse().find((s) => !s.branch && s.event === "dropped");
  return (
    <Panel title={title} right={<span className="mono break">{way.packet}</span>}>
      <div className="stack">
        <Notice level={way.delivered ? "ok" : "bad"} role="status">
          <strong>
            {way.delivered ? "Arrives at " : "Does not arrive at "}
            {to}
          </strong>
          {dropped && (
            <>
              : dropped at <span className="mono">{dropped.port}</span>
              {dropped.why && `, ${dropped.why}`}
            </>
          )}
        </Notice>
        <ul className="verdicts">
          {!policies.some((p) => p.verdict === "decides") && <li>No policy selects it: it is bridged normally.</li>}
          {policies.map((p) => (
            <li key={p.policy + p.verdict}>
              <Named kind="policy" name={p.policy} />{" "}
              {p.verdict === "decides" ? (
                <>
                  <strong>decides</strong>: chain <Named kind="chain" name={p.chain} />, {p.mode}, priority {p.priority}
                  {p.reply && ", on the way back"}
                  {p.state !== "active" && (
                    <>
                      {" "}
                      <State level="warn">not in force as shown here: {p.state}</State> {p.message}
                    </>
                  )}
                </>
              ) : p.verdict === "outranked" ? (
                <>selects it, too, and is outranked: priority {p.priority}</>
              ) : (
                <>selects other packets between these ends: {(p.match ?? []).join(", ")}</>
              )}
            </li>
          ))}
        </ul>
        <ol className={`way ${direction}`} aria-label={`Way of the ${title.toLowerCase()}`}>
          {steps.map((s, i) => (
            <StepRow key={i} s={s} />
          ))}
        </ol>
      </div>
    </Panel>
  );
}

const lost = new Set(["dropped"]);

function StepRow({ s }: { s: Step }) {
  const node = nodeOf(s.port);
  const [kind, name] = node ? [node.slice(0, node.indexOf("/")), node.slice(node.indexOf("/") + 1)] : ["", ""];
  const known = kind === "function" || kind === "endpoint";
  return (
    <li className={s.branch ? "copy" : undefined}>
      <span className="break">
        {known ? (
          <>
            <Named kind={kind} name={name} />
            <span className="mono dim">{s.port.slice(node!.length)}</span>
          </>
        ) : (
          <span className="mono">{s.port}</span>
        )}
      </span>
      <span className="figures">{lost.has(s.event) ? <State level="bad">{s.event}</State> : <span className="dim">{s.event}</span>}</span>
      <span className="sub">
        {s.host && <span>{s.host}</span>}
        {s.state === "down" && <State level="bad">link down</State>}
        {s.live && (
          <span className="num">
            received {count(s.rx.packets)}, sent {count(s.tx.packets)}
            {s.dropped.packets > 0 && `, dropped ${count(s.dropped.packets)}`}
          </span>
        )}
        {s.why && <span>{s.why}</span>}
      </span>
    </li>
  );
}
