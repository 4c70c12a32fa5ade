// A way as a list: every stop with what passes there.
import "./topology.css";
import { Named } from "../../ui/Named";
import { State } from "../../ui/basic";
import { bits, count } from "../../ui/format";
import type { Rate, Stop } from "./way";

export const rateText = (r: Rate | undefined) => (r ? `${count(Math.round(r.pps))}/s, ${bits(r.bps / 8)}` : "");

interface Row {
  stop: Stop;
  /** What comes out, of a function. */
  out?: Stop;
}

/** A function's two ports as one row. */
function rowsOf(stops: Stop[]): Row[] {
  const rows: Row[] = [];
  const open = new Map<string, Row>();
  for (const stop of stops) {
    const function_ = stop.node?.startsWith("function/") && !stop.copy;
    const row = function_ ? open.get(stop.node!) : undefined;
    if (row && !row.out) {
      row.out = stop;
      continue;
    }
    const r: Row = { stop };
    rows.push(r);
    if (function_) open.set(stop.node!, r);
  }
  return rows;
}

export function Way({ stops, direction, label }: { stops: Stop[]; direction: "forward" | "reverse"; label: string }) {
  return (
    <ol className={`way ${direction}`} aria-label={label}>
      {rowsOf(stops).map((r, i) => (
        <StopRow key={i} {...r} />
      ))}
    </ol>
  );
}

function StopRow({ stop, out }: Row) {
  const [kind, name] = stop.node ? [stop.node.slice(0, stop.node.indexOf("/")), stop.node.slice(stop.node.indexOf("/") + 1)] : ["", ""];
  const known = kind === "function" || kind === "endpoint";
  const kept = stop.rate && out?.rate ? Math.max(0, stop.rate.pps - out.rate.pps) : 0;
  const drops = (stop.drops ?? 0) + (out?.drops ?? 0);
  const down = stop.down || out?.down;
  return (
    <li className={stop.copy ? "copy" : undefined}>
      <span className="break">
        {stop.copy && <span className="dim">copy to </span>}
        {known ? <Named kind={kind} name={name} /> : <span className="mono">{stop.port}</span>}
      </span>
      <span className="figures">{stop.live ? rateText(stop.rate) || <span className="dim">…</span> : <span className="dim">no counters</span>}</span>
      {(down || kept > 0.5 || drops > 0.5 || stop.dropped > 0 || (out?.dropped ?? 0) > 0) && (
        <span className="sub">
          {down && <State level="bad">link down</State>}
          {kept > 0.5 && <State level="warn">keeps back {count(Math.round(kept))}/s</State>}
          {drops > 0.5 ? <State level="bad">drops {count(Math.round(drops))}/s</State> : stop.dropped + (out?.dropped ?? 0) > 0 && <span>{count(stop.dropped + (out?.dropped ?? 0))} dropped so far</span>}
        </span>
      )}
    </li>
  );
}
