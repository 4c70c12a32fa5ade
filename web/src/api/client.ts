// The typed client of the REST API, and its problems (RFC 9457) as errors.
import createClient from "openapi-fetch";
import type { paths } from "./schema";
import type { Problem, ProblemError } from "./types";

/** An answer that is no success, or no answer: then status is 0. */
export class ApiError extends Error {
  readonly status: number;
  readonly title: string;
  readonly problems: Problem[];
  /** It is about an object that is being deleted: the same request is accepted when that is gone. */
  readonly deleting: boolean;

  constructor(status: number, title: string, detail: string, problems: Problem[] = [], type = "") {
    super(detail || title);
    this.name = "ApiError";
    this.deleting = type === "urn:weir:problem:being-deleted";
    this.status = status;
    this.title = title;
    this.problems = problems;
  }

  static async of(r: Response): Promise<ApiError> {
    let p: Partial<ProblemError> = {};
    try {
      p = (await r.json()) as ProblemError;
    } catch {
      // No problem document: something between the browser and Weir answered.
    }
    return new ApiError(r.status, p.title ?? r.statusText ?? `HTTP status ${r.status}`, p.detail ?? "", p.errors ?? [], p.type);
  }
}

/** Turns whatever was thrown into an ApiError. */
export function asApiError(e: unknown): ApiError {
  if (e instanceof ApiError) return e;
  if (e instanceof TypeError) return new ApiError(0, "No answer", "Weir does not answer. Is it running?");
  return new ApiError(0, "Error", e instanceof Error ? e.message : String(e));
}

const signedOut = new Set<() => void>();

/** Calls f when an answer says that the session has ended. */
export function onSignedOut(f: () => void): () => void {
  signedOut.add(f);
  return () => signedOut.delete(f);
}

/** A fetch whose answer is a success; all others are ApiErrors. */
export async function fetchOK(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  let r: Response;
  try {
    r = await fetch(input, init);
  } catch (e) {
    if (init?.signal?.aborted || (e instanceof DOMException && e.name === "AbortError")) throw e;
    throw asApiError(e);
  }
  if (r.ok) return r;
  throw await refusalOf(r);
}

/** The error of an answer that is no success. */
export async function refusalOf(r: Response): Promise<ApiError> {
  const error = await ApiError.of(r);
  if (error.status === 401) signedOut.forEach((f) => f());
  return error;
}

/** Every method resolves to a success or throws an ApiError. */
export const api = createClient<paths>({
  baseUrl: typeof location === "undefined" ? "http://localhost" : location.origin,
  fetch: (r: Request) => fetchOK(r, { cache: "no-store" }),
});

/** The body of a successful answer. */
export async function data<T>(answer: Promise<{ data?: T }>): Promise<T> {
  return (await answer).data as T;
}
