import { Button } from "@mantine/core";
import { IconArrowsLeftRight, IconPlus } from "@tabler/icons-react";
import { useMemo } from "react";
import { Link } from "react-router";
import { levelOf, useLabRuns, type LabRun } from "../../api/lab";
import { useMay } from "../../api/session";
import { Empty, Failure, Loading, Notice, PageHead, Panel, SameAs, State, Time } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { bytes, command } from "../../ui/format";
import { RunActions } from "./Actions";
import { Bar, Progress } from "./Progress";

export default function Lab() {
  const q = useLabRuns();
  const admin = useMay("admin");
  const columns = useMemo<Column<LabRun>[]>(
    () => [
      {
        key: "name",
        title: "Run",
        value: (r) => r.name,
        render: (r) => (
          <Link className="name" to={`/lab/runs/${encodeURIComponent(r.name)}`}>
            {r.name}
          </Link>
        ),
      },
      { key: "state", title: "State", value: (r) => r.state, render: (r) => <State level={levelOf(r)}>{r.state}</State> },
      { key: "study", title: "Study", value: (r) => `${r.study ?? ""} ${r.mode ?? ""}`, render: (r) => (r.study ? `${r.study}, ${r.mode}` : "") },
      { key: "parts", title: "Parts", wide: true, value: (r) => (r.parts ?? []).join(" "), render: (r) => <span className="mono dim break">{(r.parts ?? []).join(", ")}</span> },
      { key: "started", title: "Started", value: (r) => r.started ?? "", render: (r) => <Time at={r.started} /> },
      { key: "trials", title: "Trials", value: (r) => r.planned - r.left, render: (r) => <Bar done={r.planned - r.left} of={r.planned} label={`Trials of ${r.name}`} /> },
      { key: "void", title: "Void", align: "right", wide: true, value: (r) => r.void },
      { key: "size", title: "Size", align: "right", wide: true, value: (r) => r.size_bytes, render: (r) => bytes(r.size_bytes) },
    ],
    [],
  );
  const head = (actions?: React.ReactNode) => (
    <PageHead title="Lab" lead="What chains cost on this machine, beside Linux bridges, Open vSwitch and others: studies, their runs, and what may be claimed from them." actions={actions} />
  );
  if (q.isPending) return <Loading />;
  if (!q.data)
    return (
      <div className="stack">
        {head()}
        <Failure error={q.error} />
      </div>
    );
  const runs = q.data;
  const running = runs.items.find((r) => r.state === "running");
  return (
    <div className="stack">
      {head(
        <>
          {runs.items.length > 1 && (
            <Button variant="default" component={Link} to="/lab/compare" leftSection={<IconArrowsLeftRight size={14} />}>
              Compare two
            </Button>
          )}
          <Button component={Link} to="/lab/new" leftSection={<IconPlus size={14} />} disabled={!admin.ok || !!runs.refused} data-disabled={!admin.ok || !!runs.refused || undefined}>
            New run
          </Button>
        </>,
      )}
      <Failure error={q.error} />
      {!running && runs.refused && <Notice level="warn">No run can be started: {runs.refused}.</Notice>}
      {running && (
        <Panel
          title={
            <>
              Running: <Link to={`/lab/runs/${encodeURIComponent(running.name)}`}>{running.name}</Link>
            </>
          }
          right={<RunActions run={running} onDeleted={() => undefined} />}
        >
          <Progress run={running} />
        </Panel>
      )}
      <Panel flush>
        <DataTable
          name="runs"
          rows={runs.items}
          columns={columns}
          rowKey={(r) => r.name}
          sort={{ key: "started", down: true }}
          empty={
            <Empty
              title="No run yet"
              action={
                admin.ok &&
                !runs.refused && (
                  <Button component={Link} to="/lab/new">
                    Start a quick run
                  </Button>
                )
              }
            >
              A run makes the trials of a study in random order, and its report says which differences are more than chance. Runs of a shell are here too, if their directory is below{" "}
              <code>{runs.directory}</code>.
            </Empty>
          }
        />
      </Panel>
      {!!runs.more && <p className="dim">{runs.more} older runs are not listed.</p>}
      <p className="dim">
        {bytes(runs.size_bytes)} of at most {bytes(runs.max_bytes)} in <code>{runs.directory}</code>.
      </p>
      <SameAs text={command("weir", "lab", "runs", runs.directory)} />
    </div>
  );
}
