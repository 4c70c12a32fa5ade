// The last change that was made here, and what undoes it: the former specs, and the names of what was made. It is forgotten with the page.
import { useSyncExternalStore } from "react";
import type { QueryClient } from "@tanstack/react-query";
import { apply, deleteObjects } from "./actions";
import { ApiError } from "./client";
import type { Change, Document } from "./types";

type Section = "endpoints" | "functions" | "chains" | "policies";
/** The part of a document, and of the UI, that has the objects of a kind. */
export const sections = { endpoint: "endpoints", function: "functions", chain: "chains", policy: "policies" } as const satisfies Record<string, Section>;

export interface Undo {
  /** What was done, for people: "policy/guests changed". */
  what: string;
  at: number;
  /** Specs as they were, of what was changed or deleted. */
  former: Document;
  /** What was made, and goes again. */
  made: Partial<Record<Section, string[]>>;
}

/** What undoes a plan's changes, by the objects as they are before it is applied. State and restarts of functions are commands' own. */
export function undoOf(changes: Change[], specOf: (kind: string, name: string) => object | undefined, at = Date.now()): Undo | undefined {
  const undo: Undo = { what: "", at, former: {}, made: {} };
  const done: string[] = [];
  for (const c of changes) {
    const section = (sections as Partial<Record<string, Section>>)[c.kind];
    if (!section || c.action === "unchanged") continue;
    done.push(`${c.kind}/${c.name} ${c.action}d`);
    if (c.action === "create") (undo.made[section] ??= []).push(c.name);
    else {
      const { state: _, restart: __, ...spec } = (specOf(c.kind, c.name) ?? {}) as { state?: unknown; restart?: unknown };
      ((undo.former[section] ??= {}) as Record<string, object>)[c.name] = c.kind === "function" ? spec : specOf(c.kind, c.name)!;
    }
  }
  if (!done.length) return undefined;
  undo.what = done.length > 2 ? `${done[0]} and ${done.length - 1} more` : done.join(", ");
  return undo;
}

let last: Undo | undefined;
const listeners = new Set<() => void>();

export function remember(u: Undo | undefined) {
  if (u) put(u);
}

function put(u: Undo | undefined) {
  last = u;
  listeners.forEach((f) => f());
}

export const useUndo = () =>
  useSyncExternalStore(
    (f) => {
      listeners.add(f);
      return () => listeners.delete(f);
    },
    () => last,
  );

/** The spec of an object as the watch has it. */
export const specIn = (queries: QueryClient) => (kind: string, name: string) =>
  queries.getQueryData<{ name: string; spec: object }[]>(["live", kind])?.find((o) => o.name === name)?.spec;

/** Tries again while an object of the request is still being deleted, as weir apply does, for so long. */
export async function whenGone<T>(f: () => Promise<T>, patience = deletionPatience, pause = deletionPause): Promise<T> {
  for (const until = performance.now() + patience; ; ) {
    try {
      return await f();
    } catch (e) {
      if (!(e instanceof ApiError && e.deleting) || performance.now() + pause > until) throw e;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

/** How long an undo waits for the end of a deletion, and how often it asks; ms. */
export const deletionPatience = 30_000;
export const deletionPause = 500;

/** Puts the former specs back, then deletes what was made: two steps, since a document deletes nothing. */
export async function carryOut(u: Undo) {
  if (Object.keys(u.former).length) await whenGone(() => apply(u.former));
  if (Object.keys(u.made).length) await deleteObjects(u.made);
  put(undefined);
}
