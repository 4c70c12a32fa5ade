import { useMemo } from "react";
import { useList } from "../../api/live";
import { useRates } from "../../api/rates";
import { readyOf } from "../../api/ready";
import type { Endpoint } from "../../api/types";
import { Empty, Loading, PageHead, Panel, Ready, SameAs } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { bits, count } from "../../ui/format";
import { Named } from "../../ui/Named";
import { LinkButton, UndoButton } from "../../ui/Plan";

export const placeOf = (e: Endpoint) => e.spec.switch || e.placement?.host || e.status.host || "";

export default function Endpoints() {
  const endpoints = useList("endpoint");
  const policies = useList("policy");
  const rates = useRates();
  const ports = useMemo(() => new Map(rates?.ports?.map((p) => [p.name, p])), [rates]);
  const users = useMemo(() => {
    const by = new Map<string, string[]>();
    for (const p of policies ?? []) for (const e of new Set([p.spec.from, p.spec.to])) if (e) by.set(e, [...(by.get(e) ?? []), p.name]);
    return by;
  }, [policies]);
  const columns = useMemo<Column<Endpoint>[]>(
    () => [
      { key: "name", title: "Name", value: (e) => e.name, render: (e) => <Named kind="endpoint" name={e.name} /> },
      { key: "state", title: "State", value: (e) => readyOf("endpoint", e).state, render: (e) => <Ready r={readyOf("endpoint", e)} /> },
      { key: "at", title: "At", value: placeOf, render: (e) => (placeOf(e) ? <Named kind={e.spec.switch ? "switch" : "host"} name={placeOf(e)} /> : <span className="dim">not found yet</span>) },
      { key: "netns", title: "Namespace", value: (e) => e.spec.netns ?? "", render: (e) => <span className="mono break">{e.spec.netns}</span> },
      { key: "interface", title: "Interface", value: (e) => e.spec.interface || e.spec.switch_port || "", render: (e) => <span className="mono">{e.spec.interface || e.spec.switch_port}</span> },
      { key: "address", title: "Address", value: (e) => e.spec.address ?? "", render: (e) => <span className="mono">{e.spec.address}</span> },
      {
        key: "policies",
        title: "Policies",
        value: (e) => (users.get(e.name) ?? []).join(" "),
        render: (e) => (
          <span className="row">
            {(users.get(e.name) ?? []).slice(0, 5).map((p) => (
              <Named key={p} kind="policy" name={p} />
            ))}
          </span>
        ),
      },
      { key: "sends", title: "Sends", align: "right", value: (e) => ports.get(`endpoint/${e.name}`)?.rx.bits_per_s ?? 0, render: (e) => <Rate r={ports.get(`endpoint/${e.name}`)?.rx} /> },
      { key: "receives", title: "Receives", align: "right", value: (e) => ports.get(`endpoint/${e.name}`)?.tx.bits_per_s ?? 0, render: (e) => <Rate r={ports.get(`endpoint/${e.name}`)?.tx} /> },
      { key: "mac", title: "MAC", wide: true, value: (e) => e.status.mac || e.spec.mac || "", render: (e) => <span className="mono">{e.status.mac || e.spec.mac}</span> },
    ],
    [users, ports],
  );
  if (!endpoints) return <Loading />;
  return (
    <div className="stack">
      <PageHead
        title="Endpoints"
        lead="Where users' traffic enters: a link into a namespace, an interface of a host, or a station of the fabric."
        actions={
          <>
            <UndoButton />
            <LinkButton to="/endpoints/new" primary>
              New endpoint
            </LinkButton>
          </>
        }
      />
      <Panel flush>
        <DataTable
          name="endpoints"
          rows={endpoints}
          columns={columns}
          rowKey={(e) => e.name}
          empty={
            <Empty title="No endpoint yet" action={<LinkButton to="/start">From nothing to a chain, step by step</LinkButton>}>
              Without one, no traffic enters.
            </Empty>
          }
        />
      </Panel>
      <SameAs text="weir get endpoints -o wide" />
    </div>
  );
}

function Rate({ r }: { r?: { packets_per_s: number; bits_per_s: number } }) {
  return r ? (
    <span className="nowrap" title={`${count(Math.round(r.packets_per_s))} packets a second`}>
      {bits(r.bits_per_s / 8)}
    </span>
  ) : null;
}
