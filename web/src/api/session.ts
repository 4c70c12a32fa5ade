// Who is signed in, and what they may.
import { useQuery } from "@tanstack/react-query";
import { fetchOK } from "./client";

export type Role = "viewer" | "operator" | "admin";

export interface Session {
  who: string;
  role: Role;
  expires?: string;
  version?: string;
}

const json = { "Content-Type": "application/json" };

export async function readSession(): Promise<Session> {
  return (await fetchOK("/v1/session", { cache: "no-store" })).json() as Promise<Session>;
}

/** Signs in by the code of a link or by a token. */
export async function signIn(by: { code: string } | { token: string }): Promise<Session> {
  return (await fetchOK("/v1/session", { method: "POST", headers: json, body: JSON.stringify(by) })).json() as Promise<Session>;
}

export async function signOut(): Promise<void> {
  await fetchOK("/v1/session", { method: "DELETE" });
  tellOtherTabs();
}

/** The session; its error has status 401 where nobody is signed in. */
export function useSession(enabled = true) {
  return useQuery({ queryKey: ["session"], queryFn: readSession, enabled, retry: (n, e) => n < 20 && !(e instanceof Error && "status" in e && e.status === 401), retryDelay: 1000, staleTime: 60_000 });
}

const rank: Record<string, number> = { viewer: 1, operator: 2, admin: 3 };

/** Whether the session's role allows what needs a role, and if not, why. */
export function useMay(need: Role): { ok: boolean; why?: string } {
  const s = useSession().data;
  const ok = (rank[s?.role ?? ""] ?? 0) >= rank[need]!;
  return ok ? { ok } : { ok, why: s ? `This needs the role ${need}; ${s.who} has the role ${s.role}.` : undefined };
}

// Tabs of a browser share the session: who signs in or out in one does so in all.
const channel = typeof BroadcastChannel === "undefined" ? undefined : new BroadcastChannel("weir-session");

export const tellOtherTabs = () => channel?.postMessage("changed");

/** Calls f when another tab has signed in or out. */
export function onOtherTab(f: () => void): () => void {
  channel?.addEventListener("message", f);
  return () => channel?.removeEventListener("message", f);
}
