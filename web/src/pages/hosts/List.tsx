import { Button } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { promised, useHosts } from "../../api/hosts";
import { useList } from "../../api/live";
import { readyOf } from "../../api/ready";
import { useMay } from "../../api/session";
import type { Host, Switch } from "../../api/types";
import { Ago, Empty, Loading, Meter, PageHead, Panel, Ready, SameAs, State } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { bytes } from "../../ui/format";
import { Named } from "../../ui/Named";
import { closedWord } from "./drain";
import { Join } from "./Join";

export default function Hosts() {
  const hosts = useHosts();
  const functions = useList("function");
  const switches = useList("switch");
  const may = useMay("admin");
  const [join, setJoin] = useState(false);
  const columns = useMemo<Column<Host>[]>(
    () => [
      { key: "name", title: "Name", value: (h) => h.name, render: (h) => <Named kind="host" name={h.name} /> },
      {
        key: "state",
        title: "State",
        value: (h) => readyOf("host", h).state + (closedWord(h) ? ` ${closedWord(h)}` : ""),
        render: (h) => (
          <span className="row">
            <Ready r={readyOf("host", h)} />
            {closedWord(h) && <State level="idle">{closedWord(h)}</State>}
          </span>
        ),
      },
      { key: "functions", title: "Functions", align: "right", value: (h) => promised(functions, h.name).functions.length },
      {
        key: "load",
        title: "Load, of cores",
        value: (h) => h.status.load ?? 0,
        render: (h) => <Meter value={h.status.load ?? 0} of={h.status.cores ?? 0} text={`${(h.status.load ?? 0).toFixed(1)} of ${h.status.cores ?? 0}`} label={`load of ${h.name}`} />,
      },
      {
        key: "memory",
        title: "Memory used",
        value: (h) => (h.status.memory_bytes ?? 0) - (h.status.free_bytes ?? 0),
        render: (h) => {
          const all = h.status.memory_bytes ?? 0;
          const used = Math.max(0, all - (h.status.free_bytes ?? 0));
          return <Meter value={used} of={all} text={`${bytes(used)} of ${bytes(all)}`} label={`memory of ${h.name}`} />;
        },
      },
      { key: "switch", title: "Switch", wide: true, value: (h) => h.status.switch ?? "", render: (h) => <span className="mono">{h.status.switch}</span> },
      { key: "runtime", title: "Runtime", wide: true, value: (h) => h.status.runtime ?? "", render: (h) => <span className="mono">{h.status.runtime}</span> },
      { key: "kernel", title: "Kernel", wide: true, value: (h) => h.status.kernel ?? "", render: (h) => <span className="mono dim">{h.status.kernel}</span> },
      { key: "heartbeat", title: "Last heard", align: "right", wide: true, value: (h) => h.status.heartbeat ?? "", render: (h) => <Ago at={h.status.heartbeat} /> },
    ],
    [functions],
  );
  if (!hosts) return <Loading />;
  const add = (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setJoin(true)} disabled={!may.ok} title={may.why}>
      Add a host
    </Button>
  );
  return (
    <div className="stack">
      <PageHead title="Hosts" lead="Machines with an agent: functions run there, traffic enters there." actions={add} />
      <Panel flush>
        <DataTable name="hosts" rows={hosts} columns={columns} rowKey={(h) => h.name} empty={<Empty title="No host has joined yet" action={add}>Make a token and run one command on the machine that is to join.</Empty>} />
      </Panel>
      {!!switches?.length && <Switches switches={switches} />}
      <SameAs text={switches?.length ? "weir get hosts -o wide\nweir get switches" : "weir get hosts -o wide"} />
      <Join opened={join} onClose={() => setJoin(false)} />
    </div>
  );
}

const switchColumns: Column<Switch>[] = [
  { key: "name", title: "Name", value: (s) => s.name, render: (s) => <Named kind="switch" name={s.name} /> },
  { key: "state", title: "State", value: (s) => readyOf("switch", s).state, render: (s) => <Ready r={readyOf("switch", s)} /> },
  { key: "ports", title: "Ports up", align: "right", value: (s) => (s.status.ports ?? []).filter((p) => p.state === "up").length, render: (s) => `${(s.status.ports ?? []).filter((p) => p.state === "up").length} of ${s.status.ports?.length ?? 0}` },
  { key: "rules", title: "Rules", align: "right", value: (s) => s.status.rules ?? 0 },
  { key: "product", title: "Product", wide: true, value: (s) => s.status.product ?? "", render: (s) => <span className="dim">{s.status.product}</span> },
  { key: "since", title: "Since", align: "right", wide: true, value: (s) => s.status.since ?? "", render: (s) => <Ago at={s.status.since} /> },
];

/** The fabric: each switch's name leads to the picture, with what passes at its ports. */
function Switches({ switches }: { switches: Switch[] }) {
  return (
    <Panel title="Switches of the fabric" flush>
      <DataTable name="switches" noFilter rows={switches} columns={switchColumns} rowKey={(s) => s.name} empty={<Empty title="None" />} />
    </Panel>
  );
}
