// What a document changes, or would change: one line for each object.
import type { Level } from "../api/ready";
import type { Change } from "../api/types";
import { State } from "./basic";
import { plural } from "./format";
import { Named } from "./Named";

const levels: Record<string, Level> = { create: "ok", update: "warn", delete: "bad", unchanged: "idle" };

export function Changes({ changes, brief }: { changes: Change[]; brief?: boolean }) {
  const same = changes.filter((c) => c.action === "unchanged").length;
  const rows = changes.filter((c) => c.action !== "unchanged");
  return (
    <div className="stack">
      {rows.length === 0 && <p>Everything is as it says already.</p>}
      {rows.length > 0 && (
        <div className="scroll-x" tabIndex={0} role="region" aria-label="Changes">
          <table className="table">
            <thead>
              <tr>
                <th scope="col">Action</th>
                <th scope="col">Object</th>
                {!brief && <th scope="col">What changes</th>}
                {!brief && <th scope="col">Who notices</th>}
              </tr>
            </thead>
            <tbody>
              {rows.map((c) => (
                <tr key={`${c.kind}/${c.name}`}>
                  <td>
                    <State level={levels[c.action] ?? "idle"}>{c.action}</State>
                  </td>
                  <td>
                    <Named kind={c.kind} name={c.name} withKind />
                  </td>
                  {!brief && <td className="mono break">{c.fields?.map((f) => <div key={f}>{f}</div>)}</td>}
                  {!brief && <td className="mono dim break">{c.affects?.join(", ")}</td>}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {same > 0 && rows.length > 0 && <p className="dim">{plural(same, "object")} unchanged.</p>}
    </div>
  );
}
