import { SegmentedControl } from "@mantine/core";
import { useMemo } from "react";
import { useSearchParams } from "react-router";
import { maxEvents, useList } from "../api/live";
import type { Level } from "../api/ready";
import type { Event } from "../api/types";
import { Empty, Loading, PageHead, Panel, SameAs, State, Time } from "../ui/basic";
import { DataTable, type Column } from "../ui/DataTable";
import { command, duration } from "../ui/format";
import { Named } from "../ui/Named";

export const severity: Record<string, Level> = { info: "idle", warning: "warn", error: "bad" };
const rank: Record<string, number> = { info: 0, warning: 1, error: 2 };

export const eventColumns: Column<Event>[] = [
  { key: "time", title: "Time", value: (e) => e.time, render: (e) => <Time at={e.time} /> },
  { key: "severity", title: "Severity", value: (e) => e.severity, render: (e) => <State level={severity[e.severity] ?? "idle"}>{e.severity}</State> },
  { key: "reason", title: "Reason", value: (e) => e.reason, render: (e) => <span className="mono">{e.reason}</span> },
  { key: "object", title: "About", value: (e) => (e.kind ? `${e.kind}/${e.object}` : ""), render: (e) => (e.kind && e.object ? <Named kind={e.kind} name={e.object} withKind /> : "") },
  {
    key: "message",
    title: "Message",
    value: (e) => e.message,
    render: (e) => (
      <span className="break">
        {e.message}
        {!!e.outage_ns && <span className="dim"> (outage {duration(e.outage_ns)})</span>}
      </span>
    ),
  },
  {
    key: "count",
    title: "Times",
    align: "right",
    value: (e) => e.count ?? 1,
    render: (e) => (e.count && e.count > 1 ? <span title={e.first && `first ${e.first}`}>{e.count}×</span> : ""),
  },
  { key: "source", title: "Source", wide: true, value: (e) => e.source ?? "", render: (e) => <span className="mono dim">{e.source}</span> },
];

export default function Events() {
  const all = useList("event");
  const [query, setQuery] = useSearchParams();
  const least = query.get("severity") ?? "info";
  const rows = useMemo(() => (all ?? []).filter((e) => (rank[e.severity] ?? 0) >= (rank[least] ?? 0)), [all, least]);
  if (!all) return <Loading />;
  return (
    <div className="stack">
      <PageHead title="Events" lead={`What happened, newest first; ${maxEvents.toLocaleString()} at most. An event that happens again within ten minutes is one row with a count.`} />
      <Panel flush>
        <DataTable
          name="events"
          rows={rows}
          columns={eventColumns}
          rowKey={(e) => e.name}
          sort={{ key: "time", down: true }}
          empty={<Empty title="Nothing has happened yet">Events come when hosts join, functions fail or recover, and when functions themselves report something.</Empty>}
          tools={
            <SegmentedControl
              size="xs"
              aria-label="At least this severe"
              value={least}
              onChange={(v) =>
                setQuery(
                  (q) => {
                    if (v === "info") q.delete("severity");
                    else q.set("severity", v);
                    return q;
                  },
                  { replace: true },
                )
              }
              data={[
                { value: "info", label: "All" },
                { value: "warning", label: "Warnings" },
                { value: "error", label: "Errors" },
              ]}
            />
          }
        />
      </Panel>
      <SameAs text={command("weir", "events", "-f", least !== "info" && "--severity", least !== "info" && least)} />
    </div>
  );
}
