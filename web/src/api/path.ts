// A policy's way with what passes there now: its path is read once a second while somebody looks.
import { useQuery } from "@tanstack/react-query";
import { useRef } from "react";
import { stopsOf, type Stop } from "../pages/topology/way";
import { api, data } from "./client";
import type { PolicyPath } from "./types";

/** A policy's path, and its stops in both directions. */
export interface Ways {
  path: PolicyPath;
  forward: Stop[];
  reverse: Stop[];
}

const every = 1_000;

export function usePolicyWay(name: string | undefined): { ways?: Ways; error: unknown } {
  const last = useRef<{ name: string; at: number; path: PolicyPath }>(undefined);
  const q = useQuery<Ways>({
    queryKey: ["way", name],
    enabled: !!name,
    refetchInterval: every,
    gcTime: 0,
    structuralSharing: false,
    queryFn: async ({ signal }) => {
      const path = await data<PolicyPath>(api.GET("/v1/policies/{name}/path", { params: { path: { name: name! } }, signal }) as Promise<{ data?: PolicyPath }>);
      const at = performance.now();
      const was = last.current?.name === name ? last.current : undefined;
      const seconds = was ? (at - was.at) / 1000 : 0;
      last.current = { name: name!, at, path };
      return {
        path,
        forward: stopsOf(path.forward, was && { hops: was.path.forward, seconds }),
        reverse: stopsOf(path.reverse, was && { hops: was.path.reverse, seconds }),
      };
    },
  });
  return { ways: name ? q.data : undefined, error: q.error };
}
