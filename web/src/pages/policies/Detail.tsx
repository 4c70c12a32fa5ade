import { Button } from "@mantine/core";
import { IconTrash } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { useParams } from "react-router";
import { useList, useObject } from "../../api/live";
import { usePolicyWay, type Ways } from "../../api/path";
import { readyOf } from "../../api/ready";
import { useRates } from "../../api/rates";
import { useMay } from "../../api/session";
import { Ago, Empty, Failure, Loading, Notice, PageHead, Panel, Ready, SameAs } from "../../ui/basic";
import { ChainPath } from "../../ui/ChainEditor";
import { Conditions } from "../../ui/Conditions";
import { DataTable } from "../../ui/DataTable";
import { bits, command, count, plural } from "../../ui/format";
import { Delete, Gone } from "../../ui/Gone";
import { Named } from "../../ui/Named";
import { LinkButton, UndoButton } from "../../ui/Plan";
import { advice } from "../../ui/advice";
import { eventColumns } from "../Events";
import { dropsOf } from "../topology/way";
import { Way } from "../topology/Way";
import { End, Figure, Match } from "./List";

/** What its rules select now, each frame once, where it enters. */
function Now({ name }: { name: string }) {
  const rates = useRates();
  const p = rates?.policies?.find((x) => x.name === name);
  return (
    <>
      {(["forward", "reverse"] as const).map((way) => (
        <div key={way}>
          <span className="dim">{way === "forward" ? "packets" : "replies"}</span> <Figure n={p?.[way].packets_per_s} known={!!rates} />/s
          {p && p[way].bits_per_s >= 1 && <span className="dim">, {bits(p[way].bits_per_s / 8)}</span>}
        </div>
      ))}
    </>
  );
}

/** What switches drop at the ports of its way. A function's ports are its chain's alone; an endpoint's have all of its traffic. */
function Dropped({ ways }: { ways?: Ways }) {
  if (!ways) return <span className="dim">…</span>;
  const drops = dropsOf(ways.forward, ways.reverse);
  if (!drops.length) return <>nothing at the ports of its way</>;
  return (
    <>
      {drops.map((d) => {
        const [kind, name] = [d.node.slice(0, d.node.indexOf("/")), d.node.slice(d.node.indexOf("/") + 1)];
        return (
          <div key={d.node}>
            at <Named kind={kind} name={name} /> <span className="num">{count(Math.round(d.perS))}</span>/s, {count(d.total)} so far
            {kind === "endpoint" && <span className="dim"> of all of its traffic</span>}
          </div>
        );
      })}
    </>
  );
}

export default function PolicyDetail() {
  const name = useParams().name!;
  const p = useObject("policy", name);
  const chains = useList("chain");
  const functions = useList("function");
  const events = useList("event");
  const may = useMay("operator");
  const [deleting, setDeleting] = useState(false);
  const { ways, error } = usePolicyWay(p ? name : undefined);
  const chain = chains?.find((c) => c.name === p?.spec.chain);
  const about = useMemo(() => (events ?? []).filter((e) => (e.kind === "policy" && e.object === name) || (e.kind === "chain" && e.object === p?.spec.chain)).slice(-10), [events, name, p?.spec.chain]);
  if (p === undefined) return <Loading />;
  if (p === null) return <Gone kind="policy" name={name} />;
  const r = readyOf("policy", p);
  const s = p.spec;
  const q = encodeURIComponent(name);
  const ends = [s.from, s.to].every((e) => e && e !== "any" && !/[.:/]/.test(e));
  const first = s.match?.find((m) => /^(icmp|arp|(tcp|udp|sctp)\/\d+$)/.test(m));
  return (
    <div className="stack">
      <PageHead
        title={name}
        crumb={{ to: "/policies", text: "Policies" }}
        lead={
          <span className="row">
            <Ready r={r} />
            <span>
              <End name={s.from} /> to <End name={s.to} />
            </span>
            <span>
              through <Named kind="chain" name={s.chain} />
            </span>
          </span>
        }
        actions={
          <>
            <UndoButton />
            <LinkButton to={`/topology?policy=${q}`}>In the topology</LinkButton>
            {ends && <LinkButton to={`/trace?from=${encodeURIComponent(s.from!)}&to=${encodeURIComponent(s.to!)}${first ? `&match=${encodeURIComponent(first)}` : ""}`}>Trace</LinkButton>}
            <Button variant="default" leftSection={<IconTrash size={14} />} disabled={!may.ok || !!p.deleting} onClick={() => setDeleting(true)}>
              Delete
            </Button>
            {may.ok && (
              <LinkButton to={`/policies/${q}/edit`} primary>
                Change
              </LinkButton>
            )}
          </>
        }
      />
      {!r.ready && r.level !== "busy" && (
        <Notice level={r.level === "bad" ? "bad" : "warn"} role="status">
          <strong>{r.message || r.state}</strong> {advice("policy", name, r)}
        </Notice>
      )}
      <div className="two">
        <div className="stack">
          <Panel title="The way of its packets" right={ways && <span className="label">{ways.path.forward?.every((h) => h.live) ? "counters of the ports, each second" : "some hosts do not answer"}</span>}>
            <Failure error={error} />
            {ways && ways.forward.length === 0 && <p className="dim">It is not in force yet, so there is no way. {p.status.message}</p>}
            {ways && ways.forward.length > 0 && (
              <div className="grid">
                <div>
                  <h3>Packets</h3>
                  <Way stops={ways.forward} direction="forward" label="Way of packets" />
                </div>
                {ways.reverse.length > 0 && (
                  <div>
                    <h3>Replies</h3>
                    <Way stops={ways.reverse} direction="reverse" label="Way of replies" />
                  </div>
                )}
              </div>
            )}
          </Panel>
          <Panel title="Events" flush>
            <DataTable name="policy-events" noFilter rows={about} columns={eventColumns.filter((c) => ["time", "severity", "reason", "message"].includes(c.key))} rowKey={(e) => e.name} sort={{ key: "time", down: true }} empty={<Empty title="Nothing has happened to it" />} />
          </Panel>
        </div>
        <div className="stack">
          <Panel title="What it says">
            <dl className="kv">
              <dt>from</dt>
              <dd>
                <End name={s.from} />
              </dd>
              <dt>to</dt>
              <dd>
                <End name={s.to} />
              </dd>
              <dt>match</dt>
              <dd>
                <Match policy={p} />
              </dd>
              <dt>chain</dt>
              <dd>
                <Named kind="chain" name={s.chain} />
                {chain && (
                  <div>
                    <ChainPath path={chain.spec.path} functions={functions} />
                  </div>
                )}
              </dd>
              <dt>mode</dt>
              <dd>{s.mode || "selective"}</dd>
              <dt>replies</dt>
              <dd>{s.symmetric === false || s.mode === "replica" ? "are not steered" : "in reverse order"}</dd>
              <dt>priority</dt>
              <dd className="num">{s.priority || 100}</dd>
              {s.match_by && (
                <>
                  <dt>by</dt>
                  <dd>{s.match_by}</dd>
                </>
              )}
              <dt>steered by</dt>
              <dd>
                {p.placement?.router ? "the router" : p.placement?.host ? <Named kind="host" name={p.placement.host} /> : <span className="dim">nobody yet</span>}
                {p.placement?.reason && <div className="dim">{p.placement.reason}</div>}
              </dd>
              <dt>now</dt>
              <dd>
                <Now name={name} />
              </dd>
              <dt>dropped</dt>
              <dd>
                <Dropped ways={ways} />
              </dd>
              <dt>rules</dt>
              <dd className="num">{p.status.rules ?? 0}</dd>
              <dt>generation</dt>
              <dd className="num">
                {p.generation}
                {(p.status.observed_generation ?? 0) < (p.generation ?? 0) && `, ${p.status.observed_generation ?? 0} in force`}
              </dd>
              <dt>changed</dt>
              <dd>
                <Ago at={p.updated} />
              </dd>
            </dl>
          </Panel>
          <Panel title="Conditions" flush>
            <Conditions conditions={p.status.conditions} none="None: it is as it is wanted." />
          </Panel>
          <SameAs text={command("weir", "describe", "policy", name)} />
        </div>
      </div>
      {deleting && (
        <Delete kind="policy" name={name} onClose={() => setDeleting(false)}>
          Its traffic is bridged normally from then on{chain && `, past ${plural(chain.spec.path.split("|").length, "function")} of chain ${chain.name}`}. The chain and its functions stay. It can be undone.
        </Delete>
      )}
    </div>
  );
}
