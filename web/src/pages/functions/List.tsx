import { Button } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useMemo } from "react";
import { Link } from "react-router";
import { useList } from "../../api/live";
import { useRates } from "../../api/rates";
import { functionReady } from "../../api/ready";
import type { Func } from "../../api/types";
import { Ago, Empty, Loading, PageHead, Panel, Ready, SameAs } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { bits, bytes, count, duration, percent } from "../../ui/format";
import { Named } from "../../ui/Named";
import { UndoButton } from "../../ui/Plan";

export function chainOf(chains: { name: string; spec: { path: string } }[] | undefined, name: string): string {
  return chains?.find((c) => c.spec.path.split("|").some((p) => p.trim().replace(/^tap:/, "") === name))?.name ?? "";
}

export default function Functions() {
  const functions = useList("function");
  const chains = useList("chain");
  const now = useRates();
  const rates = useMemo(() => new Map(now?.functions?.map((f) => [f.name, f])), [now]);
  const columns = useMemo<Column<Func>[]>(
    () => [
      { key: "name", title: "Name", value: (f) => f.name, render: (f) => <Named kind="function" name={f.name} /> },
      { key: "state", title: "State", value: (f) => functionReady(f).state, render: (f) => <Ready r={functionReady(f)} /> },
      { key: "image", title: "Image", value: (f) => f.spec.image, render: (f) => <span className="mono">{f.spec.image}</span> },
      { key: "chain", title: "Chain", value: (f) => chainOf(chains, f.name), render: (f) => <span className="mono">{chainOf(chains, f.name) || <span className="dim">none</span>}</span> },
      {
        key: "rate",
        title: "Packets in",
        align: "right",
        value: (f) => rates.get(f.name)?.in.packets_per_s ?? 0,
        render: (f) => {
          const r = rates.get(f.name);
          return r && <span title={`${bits(r.in.bits_per_s / 8)} in, ${bits(r.out.bits_per_s / 8)} out`}>{count(Math.round(r.in.packets_per_s))}/s</span>;
        },
      },
      { key: "host", title: "Host", value: (f) => f.placement?.host ?? "", render: (f) => (f.placement?.host ? <Named kind="host" name={f.placement.host} /> : <span className="dim">none yet</span>) },
      { key: "runtime", title: "Runtime", wide: true, value: (f) => f.status.runtime ?? "", render: (f) => <span className="mono">{f.status.runtime}</span> },
      { key: "cpu", title: "CPU", align: "right", wide: true, value: (f) => rates.get(f.name)?.cpus ?? 0, render: (f) => (rates.get(f.name)?.memory_bytes ? percent(rates.get(f.name)?.cpus ?? 0) : "") },
      { key: "memory", title: "Memory", align: "right", wide: true, value: (f) => rates.get(f.name)?.memory_bytes ?? 0, render: (f) => (rates.get(f.name)?.memory_bytes ? bytes(rates.get(f.name)!.memory_bytes!) : "") },
      { key: "rtt", title: "Probe", align: "right", wide: true, value: (f) => f.status.rtt_ns ?? 0, render: (f) => (f.status.rtt_ns ? duration(f.status.rtt_ns) : "") },
      { key: "restarts", title: "Restarts", align: "right", wide: true, value: (f) => f.status.restarts ?? 0 },
      { key: "started", title: "Running for", align: "right", wide: true, value: (f) => f.status.started ?? "", render: (f) => (f.status.started ? <Ago at={f.status.started} suffix="" /> : "") },
    ],
    [chains, rates],
  );
  if (!functions) return <Loading />;
  return (
    <div className="stack">
      <PageHead title="Functions" lead="Network functions that run, or should. Each is in at most one chain."
        actions={
          <>
            <UndoButton />
            <Button component={Link} to="/functions/new" leftSection={<IconPlus size={14} />}>
              New function
            </Button>
          </>
        }
      />
      <Panel flush>
        <DataTable name="functions" rows={functions} columns={columns} rowKey={(f) => f.name} empty={<Empty title="No function yet">A function is a container that packets pass: a firewall, a shaper, a monitor. Make one, put it in a chain, and let a policy say which traffic goes through.</Empty>} />
      </Panel>
      <SameAs text="weir get functions" />
    </div>
  );
}
