// What changes something: requests of the API, and how pages call them.
import { useMutation } from "@tanstack/react-query";
import { notifications } from "@mantine/notifications";
import { api, data, fetchOK } from "./client";
import type { components } from "./schema";
import type { ApplyResult, Document, FunctionSpec, Operation } from "./types";

export type Verb = "start" | "stop" | "restart";

/** Asks for a function to run, stop or start anew; returns when it has been accepted. */
export const functionVerb = (name: string, verb: Verb) =>
  data<Operation>(api.POST(`/v1/functions/{name}/${verb}` as "/v1/functions/{name}/start", { params: { path: { name } } }) as Promise<{ data?: Operation }>);

/** Deletes objects of any kinds in one step. */
export const deleteObjects = (names: { endpoints?: string[]; functions?: string[]; chains?: string[]; policies?: string[] }) => api.POST("/v1/delete", { body: names });

/** What a document changes, or with plan would change. */
export const apply = (document: Document, plan = false, prune = false) => data<ApplyResult>(api.POST("/v1/apply", { body: { document, plan, prune } }) as Promise<{ data?: ApplyResult }>);

/** Changes members of a spec; null removes one. */
export const patchFunction = (name: string, spec: Partial<Record<keyof FunctionSpec, unknown>>) => patch(`/v1/functions/${encodeURIComponent(name)}`, spec);

export const patchHost = (name: string, spec: { unschedulable?: boolean | null; drain?: null; cpus?: string | null; memory?: string | null }) => patch(`/v1/hosts/${encodeURIComponent(name)}`, spec);

export type DrainResult = components["schemas"]["DrainResult"];

/** Moves a host's functions to others, or with plan says which would move. */
export const drainHost = (name: string, plan = false) => data<DrainResult>(api.POST("/v1/hosts/{name}/drain", { params: { path: { name } }, body: { plan } }) as Promise<{ data?: DrainResult }>);

export const deleteHost = (name: string) => fetchOK(`/v1/hosts/${encodeURIComponent(name)}`, { method: "DELETE" });

const patch = (path: string, spec: unknown) => fetchOK(path, { method: "PATCH", headers: { "Content-Type": "application/merge-patch+json" }, body: JSON.stringify({ spec }) });

/** An action of a page: what it does, and what is said when it is done. Its error is shown where the action is. */
export function useAction<A = void>(f: (a: A) => Promise<unknown>, o: { done?: (a: A) => string; onDone?: (a: A) => void } = {}) {
  return useMutation<unknown, Error, A>({
    mutationFn: f,
    onSuccess: (_, a) => {
      if (o.done) notifications.show({ message: o.done(a), autoClose: 4000 });
      o.onDone?.(a);
    },
  });
}
