// Conditions of an object: what holds, why, since when.
import type { Condition } from "../api/types";
import { Ago, State } from "./basic";

const serious = new Set(["Failed", "Unhealthy", "Closed", "Lost", "Incapable"]);
const passing = new Set(["Waiting", "Starting", "Open"]);

export function Conditions({ conditions, none }: { conditions?: Condition[] | null; none: string }) {
  if (!conditions?.length) return <div className="cond dim">{none}</div>;
  return conditions.map((c) => (
    <div className="cond" key={c.type}>
      <div className="row">
        <State level={serious.has(c.type) ? "bad" : passing.has(c.type) ? "busy" : "warn"}>{c.type}</State>
        <span className="tag">{c.reason}</span>
        {c.since && (
          <span className="dim">
            <Ago at={c.since} />
          </span>
        )}
      </div>
      {c.message && <div className="break">{c.message}</div>}
    </div>
  ));
}
