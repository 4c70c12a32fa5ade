import { Button } from "@mantine/core";
import { IconArrowsLeftRight, IconExternalLink } from "@tabler/icons-react";
import { Link, useNavigate, useParams } from "react-router";
import { levelOf, reportOf, useLabReport, useLabRun, useLabRuns, type LabRun } from "../../api/lab";
import { Failure, Loading, Notice, PageHead, Panel, SameAs, State, Time } from "../../ui/basic";
import { bytes, command, plural } from "../../ui/format";
import { RunActions } from "./Actions";
import { Progress } from "./Progress";

export default function Run() {
  const { name = "" } = useParams();
  const q = useLabRun(name);
  const runs = useLabRuns();
  const go = useNavigate();
  if (q.isPending) return <Loading />;
  if (!q.data)
    return (
      <div className="stack">
        <PageHead title={name} crumb={{ to: "/lab", text: "Lab" }} />
        <Failure error={q.error} />
      </div>
    );
  const run = q.data;
  return (
    <div className="stack">
      <PageHead
        title={run.name}
        lead={run.title}
        crumb={{ to: "/lab", text: "Lab" }}
        actions={
          <>
            {run.state !== "running" && (
              <Button variant="default" component={Link} to={`/lab/compare?a=${encodeURIComponent(run.name)}`} leftSection={<IconArrowsLeftRight size={14} />}>
                Compare
              </Button>
            )}
            <RunActions run={run} refused={runs.data?.refused} onDeleted={() => void go("/lab")} />
          </>
        }
      />
      {q.error && <Failure error={q.error} />}
      {run.state !== "running" && run.message && <Notice level={run.state === "damaged" ? "bad" : "warn"}>{run.message}</Notice>}
      {run.distrusted?.map((d) => (
        <Notice key={d} level="warn">
          Nothing is claimed of {d}
        </Notice>
      ))}
      <Panel>
        <dl className="kv">
          <dt>State</dt>
          <dd>
            <State level={levelOf(run)}>{run.state}</State>
          </dd>
          <dt>Study</dt>
          <dd>
            {run.study}, {run.mode}, seed <span className="num">{run.seed}</span>
          </dd>
          <dt>Parts</dt>
          <dd className="mono">{(run.parts ?? []).join(", ")}</dd>
          <dt>Started</dt>
          <dd>
            <Time at={run.started} />
          </dd>
          {run.state !== "running" && (
            <>
              <dt>Last trial</dt>
              <dd>
                <Time at={run.ended} />
              </dd>
              <dt>Trials</dt>
              <dd>
                {plural(run.planned, "trial")}: {run.measured} measured, {run.void} void, {run.skipped} skipped, {run.left} left
              </dd>
            </>
          )}
          <dt>Kept in</dt>
          <dd>
            <code>{run.directory}</code>, {bytes(run.size_bytes)}, by version {run.version}
          </dd>
        </dl>
      </Panel>
      {run.state === "running" ? (
        <Panel title="Progress">
          <Progress run={run} />
        </Panel>
      ) : (
        <Report run={run} />
      )}
      <SameAs text={command("weir", "lab", run.state === "running" ? "runs" : "report", ...(run.state === "running" ? [] : [run.directory]))} />
    </div>
  );
}

/** The report in a sandbox: it is of no origin, has no session, and runs the lab's own scripts only. */
function Report({ run }: { run: LabRun }) {
  const there = useLabReport(run);
  if (run.state === "damaged") return null;
  return (
    <Panel
      title="Report"
      flush
      right={
        <Button variant="default" component="a" href={reportOf(run.name)} target="_blank" rel="noreferrer" leftSection={<IconExternalLink size={14} />}>
          In a tab of its own
        </Button>
      }
    >
      {there.isPending && <Loading />}
      <Failure error={there.error} />
      {there.data && <iframe className="report" title={`Report of ${run.name}`} src={reportOf(run.name)} sandbox="allow-scripts allow-downloads" />}
    </Panel>
  );
}
