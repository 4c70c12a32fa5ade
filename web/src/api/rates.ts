// Rates of all ports, rules and functions: read live, while a page shows them.
import { useQuery } from "@tanstack/react-query";
import { api, data } from "./client";
import type { components } from "./schema";

export type Rates = components["schemas"]["Rates"];

export type Traffic = components["schemas"]["Traffic"];

/** What endpoints have sent in the last hour. */
export function useTraffic(): Traffic | undefined {
  return useQuery({ queryKey: ["traffic"], queryFn: ({ signal }) => data<Traffic>(api.GET("/v1/traffic", { signal }) as Promise<{ data?: Traffic }>), refetchInterval: 20_000 }).data;
}

export function useRates(): Rates | undefined {
  return useQuery({ queryKey: ["rates"], queryFn: ({ signal }) => data<Rates>(api.GET("/v1/rates", { signal }) as Promise<{ data?: Rates }>), refetchInterval: 3_000, gcTime: 0 }).data;
}
