// Counters are read live from a host's switch, not watched. Rates come of two readings.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api, data } from "./client";
import type { Counters, PortCounters } from "./types";

const every = 2_000;
const keep = 90;

export interface Rate {
  port: PortCounters;
  /** A second; undefined until there are two readings. */
  rx?: { packets: number; bytes: number };
  tx?: { packets: number; bytes: number };
}

export interface Reading {
  at: number; // s
  ports: Rate[];
}

/** The rates between two readings; a counter that fell began anew. */
export function ratesOf(before: { at: number; ports: PortCounters[] } | undefined, at: number, ports: PortCounters[]): Rate[] {
  const old = new Map(before?.ports.map((p) => [p.name, p]));
  const s = before ? at - before.at : 0;
  return ports.map((port) => {
    const o = old.get(port.name);
    if (!o || s <= 0 || o.link !== port.link) return { port };
    const rate = (way: "rx" | "tx") => (port[way].packets < o[way].packets ? undefined : { packets: (port[way].packets - o[way].packets) / s, bytes: (port[way].bytes - o[way].bytes) / s });
    return { port, rx: rate("rx"), tx: rate("tx") };
  });
}

/** Readings of some ports of a host, the last few minutes; new ones come while the page is open. */
export function usePorts(host: string | undefined, wanted: (name: string) => boolean) {
  const [readings, setReadings] = useState<Reading[]>([]);
  const before = useRef<{ at: number; ports: PortCounters[] } | undefined>(undefined);
  const want = useRef(wanted);
  want.current = wanted;
  const q = useQuery({
    queryKey: ["counters", host],
    queryFn: async () => ({ at: Date.now() / 1000, c: await data<Counters>(api.GET("/v1/hosts/{name}/counters", { params: { path: { name: host! } } }) as Promise<{ data?: Counters }>) }),
    enabled: !!host,
    refetchInterval: every,
    gcTime: 0,
  });
  useEffect(() => {
    before.current = undefined;
    setReadings([]);
  }, [host]);
  useEffect(() => {
    if (!q.data) return;
    const { at, c } = q.data;
    const ports = (c.ports ?? []).filter((p) => want.current(p.name));
    const rates = ratesOf(before.current, at, ports);
    before.current = { at, ports };
    setReadings((r) => [...r.slice(1 - keep), { at, ports: rates }]);
  }, [q.data]);
  return { readings, error: q.error };
}
