// Load, free memory and the last sign of life change all the time: the watch does not tell them. Pages that show them ask.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { fetchOK } from "./client";
import { useList } from "./live";
import type { Func, Host } from "./types";

const every = 5_000;

/** Hosts as the watch has them, with the load of the last seconds. */
export function useHosts(): Host[] | undefined {
  const live = useList("host");
  const asked = useQuery({
    queryKey: ["hosts-load"],
    queryFn: async () => ((await (await fetchOK("/v1/hosts", { cache: "no-store" })).json()) as { items: Host[] }).items,
    refetchInterval: every,
    gcTime: 0,
  }).data;
  return useMemo(() => {
    const now = new Map(asked?.map((h) => [h.name, h]));
    return live?.map((h) => {
      const a = now.get(h.name);
      return a && a.uid === h.uid ? { ...h, status: { ...h.status, load: a.status.load, free_bytes: a.status.free_bytes, heartbeat: a.status.heartbeat, clock_skew_ns: a.status.clock_skew_ns } } : h;
    });
  }, [live, asked]);
}

/** What functions on a host may take at most, by their limits. */
export function promised(functions: Func[] | undefined, host: string) {
  const here = (functions ?? []).filter((f) => f.placement?.host === host);
  return {
    functions: here,
    cores: here.reduce((n, f) => n + (f.spec.cpus ? (f.status.limits?.cpus ?? (Number(f.spec.cpus) || 0)) : 0), 0),
    memory: here.reduce((n, f) => n + (f.spec.memory ? (f.status.limits?.memory_bytes ?? 0) : 0), 0),
  };
}
