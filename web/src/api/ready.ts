// What an object still lacks: the same rules as Ready() in api/state.go.
import type { Chain, Condition, Endpoint, Func, Host, Kind, Kinds, Policy, Switch } from "./types";

export type Level = "ok" | "busy" | "warn" | "bad" | "idle";

/** How an object is, in a word, and for people why. */
export interface Readiness {
  ready: boolean;
  level: Level;
  state: string;
  message: string;
  since?: string;
}

function readiness(generation: number | undefined, observed: number | undefined, state: string | undefined, want: string, message: string | undefined, conditions?: Condition[] | null): Readiness {
  const since = conditions?.[0]?.since;
  if (state === want && (observed ?? 0) >= (generation ?? 0)) return { ready: true, level: "ok", state, message: message ?? "", since };
  const word = state === want ? "changing" : state || "pending";
  return { ready: false, level: levelOf(word), state: word, message: message ?? "", since };
}

function levelOf(state: string): Level {
  switch (state) {
    case "failed":
    case "error":
    case "lost":
      return "bad";
    case "degraded":
      return "warn";
    default:
      return "busy";
  }
}

export function functionReady(f: Func): Readiness {
  const want = f.spec.state || "started";
  const r = readiness(f.generation, f.status.observed_generation, f.status.state, want, f.status.message, f.status.conditions);
  if (f.deleting) return { ...r, ready: false, level: "busy", state: "deleting" };
  if (!r.ready) return r;
  if (want !== "started") return { ...r, level: "idle" };
  if (!f.status.healthy) return { ...r, ready: false, level: "bad", state: "not healthy" };
  return f.status.conditions?.length ? { ...r, level: "warn" } : r;
}

const simple = {
  endpoint: (e: Endpoint) => readiness(e.generation, e.status.observed_generation, e.status.state, "up", e.status.message, e.status.conditions),
  chain: (c: Chain) => readiness(c.generation, c.status.observed_generation, c.status.state, "ready", c.status.message, c.status.conditions),
  policy: (p: Policy) => readiness(p.generation, p.status.observed_generation, p.status.state, "active", p.status.message, p.status.conditions),
  host: (h: Host) => readiness(0, 0, h.status.state, "ready", h.status.conditions?.[0]?.message, h.status.conditions),
  switch: (s: Switch) => readiness(0, 0, s.status.state, "connected", s.status.message),
};

/** How an object of any kind is. */
export function readyOf<K extends Exclude<Kind, "event">>(kind: K, object: Kinds[K]): Readiness {
  if (kind === "function") return functionReady(object as Func);
  const r = simple[kind as keyof typeof simple](object as never);
  if (object.deleting) return { ...r, ready: false, level: "busy", state: "deleting" };
  const conditions = (object.status as { conditions?: Condition[] | null }).conditions;
  return r.ready && conditions?.length ? { ...r, level: "warn", message: r.message || conditions[0]!.message || "" } : r;
}
