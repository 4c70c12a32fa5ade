import { Select } from "@mantine/core";
import { useMemo } from "react";
import { useSearchParams } from "react-router";
import { useLabComparison, useLabRuns, type LabPair, type LabSide } from "../../api/lab";
import { Empty, Failure, Loading, Notice, PageHead, Panel, SameAs, State } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { command } from "../../ui/format";
import { figure, span } from "./figure";

export default function Compare() {
  const [query, setQuery] = useSearchParams();
  const a = query.get("a") ?? "";
  const b = query.get("b") ?? "";
  const runs = useLabRuns();
  const q = useLabComparison(a, b);
  const set = (key: "a" | "b") => (v: string | null) =>
    setQuery(
      (old) => {
        if (v) old.set(key, v);
        else old.delete(key);
        return old;
      },
      { replace: true },
    );
  const columns = useMemo<Column<LabPair>[]>(
    () => [
      { key: "part", title: "Part", value: (p) => `${p.part} ${p.group ?? ""}`, render: (p) => <span className="mono">{[p.part, p.group].filter(Boolean).join(" ")}</span> },
      { key: "level", title: "Level", value: (p) => p.level, render: (p) => <span className="mono">{p.level}</span> },
      { key: "metric", title: "Metric", value: (p) => `${p.metric} ${p.unit}` },
      { key: "a", title: "A", align: "right", value: (p) => p.a.median, render: (p) => <Side s={p.a} /> },
      { key: "b", title: "B", align: "right", value: (p) => p.b.median, render: (p) => <Side s={p.b} /> },
      { key: "ratio", title: "B by A", align: "right", value: (p) => p.ratio, render: (p) => <Two main={p.ratio.toFixed(3)} more={span(p.range)} /> },
      { key: "apart", title: "Intervals", value: (p) => apart(p), render: (p) => <State level={p.too_few ? "idle" : p.apart ? "warn" : "ok"}>{apart(p)}</State> },
      { key: "va", title: "A by its baseline", wide: true, value: (p) => p.a.verdict, render: (p) => <Verdict s={p.a} /> },
      { key: "vb", title: "B by its baseline", wide: true, value: (p) => p.b.verdict, render: (p) => <Verdict s={p.b} /> },
    ],
    [],
  );
  if (runs.isPending) return <Loading />;
  const names = (runs.data?.items ?? []).filter((r) => r.state !== "damaged" && r.state !== "running");
  const label = (n: string) => `${n}, ${names.find((r) => r.name === n)?.study ?? ""}`;
  const all = names.map((r) => ({ value: r.name, label: label(r.name) }));
  return (
    <div className="stack">
      <PageHead title="Compare two runs" crumb={{ to: "/lab", text: "Lab" }} lead="Before and after a change, or on two machines: what both runs have measured, side by side." />
      <Failure error={runs.error} />
      <Panel>
        <div className="grid">
          <Select label="Run A" placeholder="The former one" searchable data={all.filter((o) => o.value !== b)} value={a || null} onChange={set("a")} />
          <Select label="Run B" placeholder="The later one" searchable data={all.filter((o) => o.value !== a)} value={b || null} onChange={set("b")} />
        </div>
      </Panel>
      {!a || !b ? (
        <Empty title="Choose two runs">Only levels that both have measured can be compared.</Empty>
      ) : q.isPending ? (
        <Loading />
      ) : (
        <>
          <Failure error={q.error} />
          {q.data && (
            <>
              <Notice level="busy">
                Two runs did not take turns, so the ratio includes what changed on the machine between them. Its range is what both 95&nbsp;% intervals leave it: wider than a 95&nbsp;% interval. To claim a
                difference, put both variants into one study. The ratios by each run&apos;s own baseline are of trials that took turns.
              </Notice>
              {q.data.differences.length > 0 && (
                <Panel title="The runs differ in">
                  <ul style={{ margin: 0, paddingLeft: "1.1rem" }}>
                    {q.data.differences.map((d) => (
                      <li key={d} className="break">
                        {d}
                      </li>
                    ))}
                  </ul>
                </Panel>
              )}
              <Panel flush>
                <DataTable
                  name="comparison"
                  rows={q.data.items}
                  columns={columns}
                  rowKey={(p) => `${p.part} ${p.group} ${p.level} ${p.metric}`}
                  empty={<Empty title="Nothing in common">The runs have no measured level of one metric in common.</Empty>}
                />
              </Panel>
            </>
          )}
          <SameAs text={command("weir", "lab", "compare", ...[a, b].map((n) => `${runs.data?.directory ?? ""}/${n}`))} />
        </>
      )}
    </div>
  );
}

const apart = (p: LabPair) => (p.too_few ? "too few blocks" : p.apart ? "apart" : "overlap");

function Two({ main, more }: { main: string; more: string }) {
  return (
    <span className="num nowrap">
      {main}
      {more && (
        <>
          <br />
          <span className="dim">{more}</span>
        </>
      )}
    </span>
  );
}

const Side = ({ s }: { s: LabSide }) => <Two main={figure(s.median)} more={span(s.interval)} />;

function Verdict({ s }: { s: LabSide }) {
  return (
    <span className="num">
      {s.verdict}
      {!!s.ratio && (
        <>
          <br />
          <span className="dim nowrap">
            {s.ratio.toFixed(3)}, {span(s.ratio_interval)}
          </span>
        </>
      )}
    </span>
  );
}
