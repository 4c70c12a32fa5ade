// How far a run is.
import type { LabRun } from "../../api/lab";
import { Ago } from "../../ui/basic";
import { duration } from "../../ui/format";
import { figure } from "./figure";

export function Bar({ done, of, label }: { done: number; of: number; label: string }) {
  const share = of ? Math.min(100, Math.round((100 * done) / of)) : 0;
  return (
    <div className="meter" role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={of || 1} aria-valuenow={done} aria-valuetext={`${done} of ${of} trials`}>
      <span className="num">
        {done} of {of || "?"}
      </span>
      <div className="bar">
        <i style={{ width: `${share}%` }} />
      </div>
    </div>
  );
}

export function Progress({ run }: { run: LabRun }) {
  const p = run.progress;
  if (!p) return <p className="dim">It prepares: what others left is removed first.</p>;
  return (
    <div className="stack">
      <Bar done={p.done} of={p.planned} label={`Trials of ${run.name}`} />
      <dl className="kv">
        <dt>Part</dt>
        <dd>
          <span className="mono">{p.part}</span> <span className="dim">{p.question}</span>
        </dd>
        <dt>Now</dt>
        <dd>{run.message || p.now || "it ends"}</dd>
        <dt>Began</dt>
        <dd>
          <Ago at={p.began} />
          {!!p.part_left_ns && <span className="dim">, this part takes about {duration(p.part_left_ns)} more</span>}
        </dd>
      </dl>
      {p.values.length > 0 && (
        <div className="scroll-x" tabIndex={0} role="region" aria-label="Figures so far">
          <table className="table">
            <thead>
              <tr>
                <th scope="col">Variant</th>
                <th scope="col" className="right">
                  Median {p.metric}, {p.unit}
                </th>
                <th scope="col" className="right">
                  Last
                </th>
                <th scope="col" className="right">
                  Trials
                </th>
                <th scope="col" className="right">
                  Void
                </th>
              </tr>
            </thead>
            <tbody>
              {p.values.map((v) => (
                <tr key={v.variant + (v.again ? "'" : "")}>
                  <td>
                    <span className="mono">{v.variant}</span> {v.again && <span className="dim">again</span>}
                  </td>
                  <td className="right">{v.n ? figure(v.median) : "–"}</td>
                  <td className="right">{v.n ? figure(v.last) : "–"}</td>
                  <td className="right">{v.n}</td>
                  <td className="right">{v.void ?? 0}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <p className="dim">These are figures on the way. What may be claimed, with intervals, is in the report when the run ends.</p>
    </div>
  );
}
