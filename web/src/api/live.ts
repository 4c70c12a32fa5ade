// Live keeps lists of all kinds in TanStack Query's cache, under ["live", KIND], by one watch of the API. It resumes from the last revision after
// a broken connection, and lists again when the server no longer knows that revision.
import { useQuery, type QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import { ApiError, asApiError, fetchOK } from "./client";
import type { Kind, Kinds, Meta } from "./types";

export const watched: Kind[] = ["endpoint", "function", "chain", "policy", "host", "switch", "event"];

/** How many events a page keeps. */
export const maxEvents = 2_000;

const pingEvery = 1_500;
const pingTimeout = 1_200;
const retryMin = 200;
const retryMax = 2_000;
const hiddenFor = 60_000; // then the connection of a hidden page is given back
const flushAfter = 40;

export type Phase = "starting" | "live" | "lost" | "signed-out";

export interface Connection {
  phase: Phase;
  since: number; // of the phase, ms
  why?: string;
}

interface Delta {
  type: "put" | "delete";
  kind: Kind;
  object: Meta;
}

/** Merges changes into lists by name. A change that is older than what is there is one that came twice. */
export class Lists {
  private readonly by = new Map<Kind, Map<string, Meta>>();

  reset(kind: Kind, items: Meta[]) {
    this.by.set(kind, new Map(items.map((i) => [i.name, i])));
  }

  apply(d: Delta): boolean {
    let all = this.by.get(d.kind);
    if (!all) this.by.set(d.kind, (all = new Map()));
    const old = all.get(d.object.name);
    if (old && (old.revision ?? 0) > (d.object.revision ?? 0)) return false;
    if (d.type === "delete") return all.delete(d.object.name);
    all.set(d.object.name, d.object);
    return true;
  }

  sorted(kind: Kind): Meta[] {
    const items = [...(this.by.get(kind)?.values() ?? [])].sort((a, b) => (a.name < b.name ? -1 : 1));
    if (kind !== "event" || items.length <= maxEvents) return items;
    const kept = items.slice(-maxEvents); // names of events sort by time
    this.reset(kind, kept);
    return kept;
  }
}

/** Reads server-sent events of a response until it ends. */
export async function readEvents(body: ReadableStream<Uint8Array>, on: (event: string, data: string, id: string) => void): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  let event = "";
  let id = "";
  let lines: string[] = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n");
    rest = parts.pop()!;
    for (const raw of parts) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "") {
        if (event || lines.length || id) on(event, lines.join("\n"), id);
        [event, id, lines] = ["", "", []];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") event = text;
      else if (field === "data") lines.push(text);
      else if (field === "id") id = text;
    }
  }
}

const protocol = "weir-watch";

/** What a watch says, over a WebSocket: a browser has six other connections for all its pages of one server. */
async function watch(query: URLSearchParams, signal: AbortSignal): Promise<ReadableStream<Uint8Array>> {
  const ws = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/watch?${query}`, protocol);
  ws.binaryType = "arraybuffer";
  const aborted = () => new DOMException(String(signal.reason), "AbortError");
  let end: (why?: Error) => void = () => undefined;
  const body = new ReadableStream<Uint8Array>({
    start(c) {
      let over = false;
      end = (why) => {
        if (over) return;
        over = true;
        if (why) c.error(why);
        else c.close();
      };
      ws.onmessage = (e: MessageEvent<ArrayBuffer>) => over || c.enqueue(new Uint8Array(e.data));
    },
    cancel: () => ws.close(),
  });
  const opened = new Promise<boolean>((resolve) => {
    const abort = () => {
      end(aborted()); // at once: who hangs does not answer that it closes
      resolve(false);
      ws.close();
    };
    ws.onopen = () => resolve(true);
    ws.onclose = () => {
      signal.removeEventListener("abort", abort);
      end();
      resolve(false);
    };
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort);
  });
  if (await opened) return body;
  if (signal.aborted) throw aborted();
  await fetchOK("/v1/events?limit=1", { signal, cache: "no-store" }); // a page cannot see why a WebSocket was refused
  throw new ApiError(0, "No answer", "Weir does not answer.");
}

const paths = {
  endpoint: "/v1/endpoints",
  function: "/v1/functions",
  chain: "/v1/chains",
  policy: "/v1/policies",
  host: "/v1/hosts",
  switch: "/v1/switches",
  event: "/v1/events",
} as const satisfies Record<Kind, string>;

export class Live {
  private readonly queries: QueryClient;
  private lists = new Lists();
  private revision = 0;
  private heard = 0; // when something came last
  private pending: Delta[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private ending: AbortController | undefined;
  private stream: AbortController | undefined;
  private connection: Connection = { phase: "starting", since: Date.now() };
  private readonly listeners = new Set<() => void>();

  constructor(queries: QueryClient) {
    this.queries = queries;
  }

  subscribe = (f: () => void) => {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  };

  state = () => this.connection;

  /** Follows the API until stop. */
  start() {
    this.stop();
    const ending = new AbortController();
    this.ending = ending;
    this.revision = 0;
    this.say("starting");
    void this.run(ending.signal);
    void this.ping(ending.signal);
    let hide: ReturnType<typeof setTimeout> | undefined;
    const onVisible = () => {
      clearTimeout(hide);
      if (document.hidden) hide = setTimeout(() => this.stream?.abort("hidden"), hiddenFor);
    };
    document.addEventListener("visibilitychange", onVisible);
    ending.signal.addEventListener("abort", () => {
      clearTimeout(hide);
      document.removeEventListener("visibilitychange", onVisible);
    });
  }

  stop() {
    this.ending?.abort("stopped");
    this.stream?.abort("stopped");
    clearTimeout(this.timer);
    this.timer = undefined;
    this.pending = [];
  }

  /** Lists and connects again at once. */
  retry() {
    this.stream?.abort("retry");
  }

  private say(phase: Phase, why?: string) {
    if (this.connection.phase === phase && this.connection.why === why) return;
    const since = this.connection.phase === phase ? this.connection.since : Date.now();
    this.connection = { phase, since, why };
    this.listeners.forEach((f) => f());
  }

  private async run(ended: AbortSignal) {
    let retry = retryMin;
    while (!ended.aborted) {
      const stream = new AbortController();
      this.stream = stream;
      const before = this.revision;
      try {
        if (this.revision === 0) await this.list(stream.signal);
        await this.follow(stream.signal);
        if (!ended.aborted) this.say("lost", "The connection ended.");
      } catch (e) {
        if (ended.aborted) return;
        if (stream.signal.reason === "hidden") {
          await visible(ended);
          continue;
        }
        const error = stream.signal.aborted ? new ApiError(0, "No answer", String(stream.signal.reason)) : asApiError(e);
        if (error.status === 401) {
          this.say("signed-out");
          return;
        }
        if (error.status === 410) {
          this.revision = 0;
          continue;
        }
        this.say("lost", error.message);
      }
      if (this.revision !== before) retry = retryMin;
      await pause(retry, ended);
      retry = Math.min(2 * retry, retryMax);
    }
  }

  private async list(signal: AbortSignal) {
    const answers = await Promise.all(
      watched.map(async (kind) => {
        const r = await fetchOK(paths[kind] + (kind === "event" ? `?limit=${maxEvents}` : ""), { signal, cache: "no-store" });
        return (await r.json()) as { items: Meta[]; revision: number };
      }),
    );
    this.lists = new Lists();
    this.pending = [];
    watched.forEach((kind, i) => {
      this.lists.reset(kind, answers[i]!.items);
      this.publish(kind);
    });
    this.revision = Math.min(...answers.map((a) => a.revision));
  }

  private async follow(signal: AbortSignal) {
    const query = new URLSearchParams(watched.map((k): [string, string] => ["kinds", k]));
    query.set("revision", String(this.revision));
    const body = await watch(query, signal);
    this.say("live");
    await readEvents(body, (event, text, id) => {
      this.heard = Date.now();
      if (event === "error") {
        const p = JSON.parse(text) as { status: number; title: string; detail?: string };
        throw new ApiError(p.status, p.title, p.detail ?? "");
      }
      if (event === "put" || event === "delete") {
        const d = JSON.parse(text) as { kind: Kind; object: Meta };
        this.pending.push({ type: event, ...d });
        this.timer ??= setTimeout(this.flush, flushAfter);
      }
      if (id) this.revision = Number(id);
    });
  }

  private flush = () => {
    this.timer = undefined;
    const changed = new Set<Kind>();
    for (const d of this.pending) if (this.lists.apply(d)) changed.add(d.kind);
    this.pending = [];
    changed.forEach((kind) => this.publish(kind));
  };

  private publish(kind: Kind) {
    this.queries.setQueryData(["live", kind], this.lists.sorted(kind));
  }

  /** Finds out early that nobody is there: a connection on which nothing comes does not tell. */
  private async ping(ended: AbortSignal) {
    while (!ended.aborted) {
      await pause(pingEvery, ended);
      if (ended.aborted || document.hidden || this.connection.phase !== "live" || Date.now() - this.heard < pingEvery) continue;
      try {
        await fetch("/healthz", { signal: AbortSignal.any([ended, AbortSignal.timeout(pingTimeout)]), cache: "no-store" });
      } catch {
        if (ended.aborted || this.connection.phase !== "live") continue;
        this.say("lost", "Weir does not answer.");
        this.stream?.abort("Weir does not answer.");
      }
    }
  }
}

function pause(ms: number, ended: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(t);
      ended.removeEventListener("abort", done);
      resolve();
    };
    const t = setTimeout(done, ms);
    ended.addEventListener("abort", done);
  });
}

function visible(ended: AbortSignal): Promise<void> {
  return new Promise((done) => {
    if (!document.hidden) return done();
    const check = () => {
      if (document.hidden && !ended.aborted) return;
      document.removeEventListener("visibilitychange", check);
      done();
    };
    document.addEventListener("visibilitychange", check);
    ended.addEventListener("abort", check, { once: true });
  });
}

let live: Live | undefined;

/** Live of this page; made once, with the page's query client. */
export function liveOf(queries: QueryClient): Live {
  return (live ??= new Live(queries));
}

/** How the connection is. */
export function useConnection(l: Live): Connection {
  return useSyncExternalStore(l.subscribe, l.state);
}

/** All objects of a kind, live; undefined until they are known. */
export function useList<K extends Kind>(kind: K): Kinds[K][] | undefined {
  return useQuery<Kinds[K][]>({ queryKey: ["live", kind], queryFn: () => Promise.reject(new Error("only the watch writes this")), enabled: false, staleTime: Infinity, gcTime: Infinity }).data;
}

/** One object, live; null if there is none, undefined until that is known. */
export function useObject<K extends Kind>(kind: K, name: string): Kinds[K] | null | undefined {
  const all = useList(kind);
  return all && (all.find((o) => o.name === name) ?? null);
}
