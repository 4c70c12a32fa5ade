// A policy as the form has it, and the document that it makes. Pure.
import type { Document, Func, Policy, PolicySpec } from "../../api/types";
import { parseChain } from "../../ui/chain";

export type Mode = "selective" | "exhaustive" | "replica";

export interface Draft {
  name: string;
  from: string;
  to: string;
  match: string[];
  mode: Mode;
  symmetric: boolean;
  priority: number;
  matchBy: "" | "ip" | "mac";
  chain: string;
  /** A chain that is made with the policy. */
  newChain?: { name: string; path: string };
  /** on_fail of functions, where it is to be another. */
  onFail: Record<string, "drop" | "bypass">;
}

export const draft = (o: Partial<Draft> = {}): Draft => ({ name: "", from: "", to: "", match: [], mode: "selective", symmetric: true, priority: 100, matchBy: "", chain: "", onFail: {}, ...o });

export function draftOf(p: Policy): Draft {
  const s = p.spec;
  return draft({
    name: p.name,
    from: s.from ?? "",
    to: s.to ?? "",
    match: s.match ?? [],
    mode: (s.mode || "selective") as Mode,
    symmetric: s.symmetric !== false,
    priority: s.priority || 100,
    matchBy: (s.match_by ?? "") as Draft["matchBy"],
    chain: s.chain,
  });
}

/** What is to be said before there is anything to plan. */
export function missingIn(d: Draft): string | undefined {
  if (!d.name) return "Give the policy a name.";
  if (d.newChain && !d.newChain.name) return "Give the new chain a name.";
  if (d.newChain && parseChain(d.newChain.path).mistakes.length) return "Write the new chain's path.";
  if (!d.newChain && !d.chain) return "Choose a chain.";
  return undefined;
}

/** Fields that have their default are left out. */
export function specOf(d: Draft): PolicySpec {
  const spec: PolicySpec = { chain: d.newChain?.name ?? d.chain };
  if (d.from && d.from !== "any") spec.from = d.from;
  if (d.to && d.to !== "any") spec.to = d.to;
  if (d.match.length) spec.match = d.match;
  if (d.mode !== "selective") spec.mode = d.mode;
  if (!d.symmetric) spec.symmetric = false;
  if (d.priority !== 100) spec.priority = d.priority;
  if (d.matchBy) spec.match_by = d.matchBy;
  return spec;
}

export function documentOf(d: Draft, functions: Func[]): Document | undefined {
  if (missingIn(d)) return undefined;
  const doc: Document = { policies: { [d.name]: specOf(d) } };
  if (d.newChain) doc.chains = { [d.newChain.name]: { path: d.newChain.path.trim() } };
  for (const [name, on_fail] of Object.entries(d.onFail)) {
    const f = functions.find((x) => x.name === name);
    if (!f || (f.spec.on_fail || "drop") === on_fail) continue;
    const { state: _, restart: __, ...spec } = f.spec;
    (doc.functions ??= {})[name] = { ...spec, on_fail };
  }
  return doc;
}

export const protocols = ["all", "ip", "icmp", "arp", "tcp", "udp", "sctp", "tcp/22", "tcp/53", "tcp/80", "tcp/443", "udp/53", "udp/123", "udp/443"];
