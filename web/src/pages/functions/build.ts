// The document that makes one or many functions, and the command that does the same.
import { stringify } from "yaml";
import type { Document, FunctionSpec } from "../../api/types";
import { command } from "../../ui/format";

export interface Wanted {
  name: string;
  how: "one" | "count" | "endpoints";
  count: number;
  endpoints: string[];
  /** Each endpoint's traffic goes through its function. */
  steer: boolean;
  spec: FunctionSpec;
}

export const maxCount = 200;

/** Names of the functions. */
export function namesOf(w: Wanted): string[] {
  if (w.how === "one") return [w.name];
  if (w.how === "count") return Array.from({ length: Math.min(Math.max(0, Math.floor(w.count)), maxCount) }, (_, i) => `${w.name}-${i + 1}`);
  return w.endpoints.map((e) => `${w.name}-${e}`);
}

export function documentOf(w: Wanted): Document {
  const names = namesOf(w);
  const doc: Document = { functions: Object.fromEntries(names.map((n) => [n, w.spec])) };
  if (w.how === "endpoints" && w.steer) {
    doc.chains = Object.fromEntries(names.map((n) => [n, { path: n }]));
    doc.policies = Object.fromEntries(names.map((n, i) => [n, { from: w.endpoints[i]!, chain: n, mode: "exhaustive" }]));
  }
  return doc;
}

/** A document as a file: chains as bare text. */
export function fileOf(doc: Document): string {
  const chains = doc.chains && Object.fromEntries(Object.entries(doc.chains).map(([n, c]) => [n, c.path]));
  return stringify({ ...doc, ...(chains && { chains }) }, { aliasDuplicateObjects: false, lineWidth: 0 });
}

/** A shell command that applies a document. */
export const applyCommand = (doc: Document, ...flags: string[]) => `weir apply ${[...flags, "-f", "-"].join(" ")} <<'EOF'\n${fileOf(doc)}EOF`;

/** weir function create, where its flags can say all of it; else weir apply. */
export function commandOf(w: Wanted): string {
  const { image, config, on_fail, cpus, cpuset, memory, runtime, host, state, command: argv, env, ...rest } = w.spec;
  if (w.how !== "one" || Object.keys(rest).length) return applyCommand(documentOf(w));
  const flag = (name: string, value: string | undefined) => (value ? [name, value] : []);
  const flow = (v: unknown) => (typeof v === "string" && stringify(v) === v + "\n" ? v : JSON.stringify(v));
  return command(
    ...["weir", "function", "create", w.name, "--image", image],
    ...Object.entries(config ?? {}).flatMap(([k, v]) => ["--config", `${k}=${flow(v)}`]),
    ...flag("--on-fail", on_fail),
    ...flag("--cpus", cpus),
    ...flag("--cpuset", cpuset),
    ...flag("--memory", memory),
    ...flag("--runtime", runtime),
    ...flag("--host", host),
    ...Object.entries(env ?? {}).flatMap(([k, v]) => ["--env", `${k}=${v}`]),
    state !== "created" && "--start",
    ...(argv?.length ? ["--", ...argv] : []),
  );
}
