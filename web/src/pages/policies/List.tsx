import { useMemo } from "react";
import { useList } from "../../api/live";
import { useRates } from "../../api/rates";
import { readyOf } from "../../api/ready";
import type { Policy } from "../../api/types";
import { Empty, Loading, PageHead, Panel, Ready, SameAs } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { bits, count } from "../../ui/format";
import { Named } from "../../ui/Named";
import { LinkButton, UndoButton } from "../../ui/Plan";

/** What policies select now, in packets and bits a second: both directions, each frame once. */
function useHits(): Map<string, { pps: number; bps: number }> | undefined {
  const rates = useRates();
  return useMemo(() => rates && new Map(rates.policies?.map((p) => [p.name, { pps: p.forward.packets_per_s + p.reverse.packets_per_s, bps: p.forward.bits_per_s + p.reverse.bits_per_s }])), [rates]);
}

export const endText = (name: string | undefined) => name || "any";

export default function Policies() {
  const policies = useList("policy");
  const hits = useHits();
  const columns = useMemo<Column<Policy>[]>(
    () => [
      { key: "name", title: "Name", value: (p) => p.name, render: (p) => <Named kind="policy" name={p.name} /> },
      { key: "state", title: "State", value: (p) => readyOf("policy", p).state, render: (p) => <Ready r={readyOf("policy", p)} /> },
      { key: "from", title: "From", value: (p) => endText(p.spec.from), render: (p) => <End name={p.spec.from} /> },
      { key: "to", title: "To", value: (p) => endText(p.spec.to), render: (p) => <End name={p.spec.to} /> },
      { key: "match", title: "Match", value: (p) => (p.spec.match ?? ["all"]).join(", "), render: (p) => <Match policy={p} /> },
      { key: "chain", title: "Chain", value: (p) => p.spec.chain, render: (p) => <Named kind="chain" name={p.spec.chain} /> },
      { key: "mode", title: "Mode", wide: true, value: (p) => p.spec.mode || "selective" },
      { key: "priority", title: "Priority", align: "right", wide: true, value: (p) => p.spec.priority || 100 },
      { key: "steered", title: "Steered by", wide: true, value: (p) => (p.placement?.router ? "router" : (p.placement?.host ?? "")), render: (p) => (p.placement?.router ? "router" : p.placement?.host ? <Named kind="host" name={p.placement.host} /> : <span className="dim">nobody yet</span>) },
      { key: "pps", title: "Packets/s", align: "right", value: (p) => Math.round(hits?.get(p.name)?.pps ?? 0), render: (p) => <Figure n={hits?.get(p.name)?.pps} known={!!hits} /> },
      { key: "bps", title: "Bits/s", align: "right", wide: true, value: (p) => Math.round(hits?.get(p.name)?.bps ?? 0), render: (p) => (hits?.get(p.name)?.bps ? bits(hits.get(p.name)!.bps / 8) : "") },
    ],
    [hits],
  );
  if (!policies) return <Loading />;
  return (
    <div className="stack">
      <PageHead
        title="Policies"
        lead="Which traffic goes through which chain. Of several that select a packet, the one of the highest priority is taken."
        actions={
          <>
            <UndoButton />
            {policies.length > 0 && <LinkButton to="/trace">Trace a packet</LinkButton>}
            <LinkButton to="/policies/new" primary>
              New policy
            </LinkButton>
          </>
        }
      />
      <Panel flush>
        <DataTable
          name="policies"
          rows={policies}
          columns={columns}
          rowKey={(p) => p.name}
          empty={
            <Empty title="No policy yet" action={<LinkButton to="/start">From nothing to a chain, step by step</LinkButton>}>
              Without one, all frames are bridged normally. A policy needs a chain of functions, and traffic that enters at an endpoint.
            </Empty>
          }
        />
      </Panel>
      <SameAs text="weir get policies -o wide" />
    </div>
  );
}

export function Figure({ n, known }: { n?: number; known: boolean }) {
  if (!known) return <span className="dim">…</span>;
  return n && n >= 0.5 ? <>{count(Math.round(n))}</> : <span className="dim">0</span>;
}

export function End({ name }: { name?: string }) {
  const endpoints = useList("endpoint");
  if (!name || name === "any") return <span className="dim">any</span>;
  return endpoints?.some((e) => e.name === name) ? <Named kind="endpoint" name={name} /> : <span className="mono">{name}</span>;
}

export function Match({ policy }: { policy: Policy }) {
  const m = policy.spec.match?.length ? policy.spec.match : ["all"];
  return (
    <span className="row" style={{ gap: "0.25rem" }}>
      {m.slice(0, 6).map((t) => (
        <span className="tag" key={t}>
          {t}
        </span>
      ))}
      {m.length > 6 && <span className="dim">and {m.length - 6} more</span>}
    </span>
  );
}
