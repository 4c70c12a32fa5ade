import { useMemo } from "react";
import { useList } from "../../api/live";
import { readyOf } from "../../api/ready";
import type { Host } from "../../api/types";
import { Empty, Loading, PageHead, Panel, Ready } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { bytes } from "../../ui/format";
import { Named } from "../../ui/Named";

export default function Hosts() {
  const hosts = useList("host");
  const columns = useMemo<Column<Host>[]>(
    () => [
      { key: "name", title: "Name", value: (h) => h.name, render: (h) => <Named kind="host" name={h.name} /> },
      { key: "state", title: "State", value: (h) => readyOf("host", h).state, render: (h) => <Ready r={readyOf("host", h)} /> },
      { key: "cores", title: "Cores", align: "right", value: (h) => h.status.cores ?? 0 },
      { key: "memory", title: "Memory", align: "right", value: (h) => h.status.memory_bytes ?? 0, render: (h) => bytes(h.status.memory_bytes ?? 0) },
      { key: "switch", title: "Switch", value: (h) => h.status.switch ?? "" },
      { key: "runtime", title: "Runtime", value: (h) => h.status.runtime ?? "" },
      { key: "kernel", title: "Kernel", wide: true, value: (h) => h.status.kernel ?? "" },
      { key: "version", title: "Weir", wide: true, value: (h) => h.status.version ?? "" },
    ],
    [],
  );
  if (!hosts) return <Loading />;
  return (
    <div className="stack">
      <PageHead title="Hosts" lead="Machines with an agent. Functions run there." />
      <Panel flush>
        <DataTable name="hosts" rows={hosts} columns={columns} rowKey={(h) => h.name} empty={<Empty title="No host yet">Make a join token and start an agent with it.</Empty>} />
      </Panel>
    </div>
  );
}
