// The declarative file, as far as a browser reads it: YAML into the API's document. What is wrong in it the manager says.
import { LineCounter, parseDocument } from "yaml";
import { ApiError } from "../api/client";
import type { Document, Problem } from "../api/types";

/** Reads a file; bare text is a chain's path. Throws an ApiError with the place of each mistake. */
export function readDocument(text: string): { document: Document; secrets: boolean } {
  const lines = new LineCounter();
  const doc = parseDocument(text, { lineCounter: lines, prettyErrors: false, uniqueKeys: true });
  if (doc.errors.length) {
    const problems = doc.errors.slice(0, 20).map((e): Problem => {
      const at = lines.linePos(e.pos[0]);
      return { message: e.message, line: at.line, column: at.col };
    });
    throw new ApiError(0, "No YAML", "The text is no YAML: nothing was sent.", problems);
  }
  const value: unknown = doc.toJS({ maxAliasCount: 100 });
  if (value === null || value === undefined) return { document: {}, secrets: false };
  if (typeof value !== "object" || Array.isArray(value)) throw new ApiError(0, "No document", "The text is no document: want sections such as endpoints, functions, chains, policies.");
  const out: Record<string, unknown> = { ...(value as Record<string, unknown>) };
  const secrets = "secrets" in out;
  if (out.chains && typeof out.chains === "object") out.chains = Object.fromEntries(Object.entries(out.chains).map(([name, c]) => [name, typeof c === "string" ? { path: c } : c]));
  return { document: out as Document, secrets };
}

/** Puts line and column to problems that name a path of the text. */
export function withLines(problems: Problem[], text: string): Problem[] {
  const lines = new LineCounter();
  const doc = parseDocument(text, { lineCounter: lines });
  return problems.map((p) => {
    if (p.line || !p.path) return p;
    const steps = p.path.replace(/^document\./, "").split(/[.[\]]+/).filter(Boolean);
    for (let n = steps.length; n > 0; n--) {
      const node = doc.getIn(steps.slice(0, n).map((s) => (/^\d+$/.test(s) ? Number(s) : s)), true) as { range?: [number, number, number] } | undefined;
      if (node?.range) {
        const at = lines.linePos(node.range[0]);
        return { ...p, line: at.line, column: at.col };
      }
    }
    return p;
  });
}
