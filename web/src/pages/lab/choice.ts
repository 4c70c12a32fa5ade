// Which parts and levels of a study a run has, as --only of weir lab run says it.
import type { LabPart, LabStudy } from "../../api/lab";

export interface Choice {
  parts: string[];
  /** Levels that are left out, by factor. */
  without: Record<string, string[]>;
}

/** The factors of some parts, each with all of its levels. A level that is the baseline of one of the parts stays. */
export function factorsOf(parts: LabPart[]): { name: string; levels: string[]; fixed: string[] }[] {
  const out: { name: string; levels: string[]; fixed: string[] }[] = [];
  for (const p of parts)
    for (const f of p.factors) {
      let x = out.find((o) => o.name === f.name);
      if (!x) out.push((x = { name: f.name, levels: [], fixed: [] }));
      for (const l of f.levels) if (!x.levels.includes(l)) x.levels.push(l);
      if (p.compare === f.name && !x.fixed.includes(p.baseline)) x.fixed.push(p.baseline);
    }
  return out;
}

/** "part=stream,wires=1,wires=9"; "" is all of the study. */
export function onlyOf(s: LabStudy, c: Choice): string {
  const chosen = s.parts.filter((p) => c.parts.includes(p.name));
  const words = chosen.length < s.parts.length ? chosen.map((p) => `part=${p.name}`) : [];
  for (const f of factorsOf(chosen)) {
    const out = (c.without[f.name] ?? []).filter((l) => f.levels.includes(l) && !f.fixed.includes(l));
    if (out.length) words.push(...f.levels.filter((l) => !out.includes(l)).map((l) => `${f.name}=${l}`));
  }
  return words.join(",");
}

/** How long the chosen parts take with all of their levels, in ns; undefined: some of them do not say. */
export function takes(parts: LabPart[]): number | undefined {
  return parts.every((p) => p.takes_ns) ? parts.reduce((n, p) => n + (p.takes_ns ?? 0), 0) : undefined;
}
