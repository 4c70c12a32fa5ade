// The lab is not watched: pages that show it ask, each second while a run goes on.
import { useQuery } from "@tanstack/react-query";
import { api, data, fetchOK } from "./client";
import type { Level } from "./ready";
import type { components } from "./schema";

/** Lists are never null in what the lab answers. */
type Whole<T> = T extends (infer U)[] ? Whole<U>[] : T extends object ? { [K in keyof T]: Whole<Exclude<T[K], null>> } : T;
type Schemas = { [K in keyof components["schemas"] & `Lab${string}`]: Whole<components["schemas"][K]> };
export type LabRun = Schemas["LabRun"];
export type LabRuns = Schemas["LabRuns"];
export type LabProgress = Schemas["LabProgress"];
export type LabStudy = Schemas["LabStudy"];
export type LabPart = Schemas["LabPart"];
export type LabDoctor = Schemas["LabDoctor"];
export type LabPair = Schemas["LabPair"];
export type LabSide = Schemas["LabSide"];
export type LabRange = Schemas["LabRange"];
export type LabComparison = Schemas["LabComparison"];

const often = 1_000;
const seldom = 5_000;

export const useLabRuns = () =>
  useQuery({
    queryKey: ["lab", "runs"],
    queryFn: ({ signal }) => data<LabRuns>(api.GET("/v1/lab/runs", { signal }) as Promise<{ data?: LabRuns }>),
    refetchInterval: (q) => (q.state.data?.items.some((r) => r.state === "running") ? often : seldom),
    retry: false,
  });

export const useLabRun = (name: string) =>
  useQuery({
    queryKey: ["lab", "run", name],
    queryFn: ({ signal }) => data<LabRun>(api.GET("/v1/lab/runs/{name}", { params: { path: { name } }, signal }) as Promise<{ data?: LabRun }>),
    refetchInterval: (q) => (q.state.data?.state === "running" ? often : seldom),
    retry: false,
  });

export const useLabStudies = () =>
  useQuery({ queryKey: ["lab", "studies"], queryFn: () => data<{ items: LabStudy[] }>(api.GET("/v1/lab/studies") as Promise<{ data?: { items: LabStudy[] } }>), staleTime: Infinity, retry: false });

/** What the machine can measure. The first time it takes some seconds. */
export const useLabDoctor = (enabled: boolean) =>
  useQuery({ queryKey: ["lab", "doctor"], queryFn: () => data<LabDoctor>(api.GET("/v1/lab/doctor") as Promise<{ data?: LabDoctor }>), staleTime: 60_000, retry: false, enabled });

export const useLabComparison = (a: string, b: string) =>
  useQuery({
    queryKey: ["lab", "compare", a, b],
    queryFn: () => data<LabComparison>(api.GET("/v1/lab/compare", { params: { query: { a, b } } }) as Promise<{ data?: LabComparison }>),
    enabled: !!a && !!b && a !== b,
    staleTime: 60_000,
    retry: false,
  });

export const reportOf = (name: string) => `/v1/lab/runs/${encodeURIComponent(name)}/report`;

/** Whether a run's report is there: the server may have to make it first. */
export const useLabReport = (r: LabRun) =>
  useQuery({
    queryKey: ["lab-report", r.name, r.ended, r.left],
    queryFn: async () => {
      const answer = await fetchOK(reportOf(r.name), { cache: "no-store" });
      await answer.body?.cancel(); // the frame asks again
      return true;
    },
    enabled: r.state === "complete" || r.state === "partial",
    staleTime: Infinity,
    retry: false,
  });

export const startLab = (r: { study: string; only?: string; seed?: number }) => data<LabRun>(api.POST("/v1/lab/runs", { body: r }) as Promise<{ data?: LabRun }>);
export const cancelLab = (name: string) => api.POST("/v1/lab/runs/{name}/cancel", { params: { path: { name } } });
export const resumeLab = (name: string) => api.POST("/v1/lab/runs/{name}/resume", { params: { path: { name } } });
export const deleteLab = (name: string) => fetchOK(`/v1/lab/runs/${encodeURIComponent(name)}`, { method: "DELETE" });

const levels: Partial<Record<string, Level>> = { running: "busy", complete: "ok", partial: "warn", damaged: "bad" };
export const levelOf = (r: LabRun): Level => levels[r.state] ?? "idle";
