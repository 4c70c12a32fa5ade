// Counters of fabric switches' ports are read live, not watched. Rates come of two readings.
import { useQuery } from "@tanstack/react-query";
import { useRef } from "react";
import { api, data } from "./client";
import type { components } from "./schema";

export type SwitchCounters = components["schemas"]["SwitchCounters"];
export type SwitchPortCounters = components["schemas"]["SwitchPortCounters"];

const every = 2_000;

export interface SwitchPortRate {
  counters: SwitchPortCounters;
  /** A second; undefined until there are two readings. */
  rx?: { packets: number; bytes: number };
  tx?: { packets: number; bytes: number };
}

/** The rates between two readings; a counter that fell began anew. */
export function switchRates(before: SwitchPortCounters[] | null | undefined, now: SwitchPortCounters[] | null | undefined, seconds: number): SwitchPortRate[] {
  const old = new Map((before ?? []).map((p) => [p.number, p]));
  return (now ?? []).map((counters) => {
    const o = old.get(counters.number);
    if (!o || seconds <= 0) return { counters };
    const rate = (way: "rx" | "tx") =>
      counters[way].packets < o[way].packets ? undefined : { packets: (counters[way].packets - o[way].packets) / seconds, bytes: Math.max(0, counters[way].bytes - o[way].bytes) / seconds };
    return { counters, rx: rate("rx"), tx: rate("tx") };
  });
}

/** What passes at a switch's ports, while somebody looks. */
export function useSwitchPorts(name: string | undefined) {
  const last = useRef<{ name: string; at: number; ports: SwitchPortCounters[] | null | undefined }>(undefined);
  return useQuery<SwitchPortRate[]>({
    queryKey: ["switch-counters", name],
    enabled: !!name,
    refetchInterval: every,
    gcTime: 0,
    structuralSharing: false,
    queryFn: async ({ signal }) => {
      const { ports } = await data<SwitchCounters>(api.GET("/v1/switches/{name}/counters", { params: { path: { name: name! } }, signal }) as Promise<{ data?: SwitchCounters }>);
      const at = performance.now();
      const was = last.current?.name === name ? last.current : undefined;
      last.current = { name: name!, at, ports };
      return switchRates(was?.ports, ports, was ? (at - was.at) / 1000 : 0);
    },
  });
}
