// Images are not watched: they are asked of the hosts when a page needs them. Pulls and imports bring some to the manager, from where hosts fetch them.
import { useQuery } from "@tanstack/react-query";
import { api, ApiError, asApiError, data, fetchOK, refusalOf } from "./client";
import type { components } from "./schema";

export type Image = components["schemas"]["Image"];
export type ImagePull = components["schemas"]["ImagePull"];
export type GCItem = components["schemas"]["ImageGCItem"];
type GC = components["schemas"]["ImageGC"];
type List = components["schemas"]["ImageList"];
type Pulls = components["schemas"]["ImagePulls"];
type Imported = components["schemas"]["ImageImport"];

export function useImages() {
  return useQuery({ queryKey: ["images"], queryFn: () => data<List>(api.GET("/v1/images") as Promise<{ data?: List }>), staleTime: 30_000 });
}

/** The image that a function names, with or without its tag. Of several the last by name counts, as hosts take the highest tag. */
export function imageOf(images: Image[] | undefined, ref: string): Image | undefined {
  return images?.find((i) => i.name === ref) ?? images?.filter((i) => i.name.split(":")[0] === ref).at(-1);
}

const often = 1_000;
const seldom = 10_000;

/** What the manager fetches from registries: soon anew while something goes on. */
export const usePulls = () =>
  useQuery({
    queryKey: ["image-pulls"],
    queryFn: ({ signal }) => data<Pulls>(api.GET("/v1/images/pulls", { signal }) as Promise<{ data?: Pulls }>),
    refetchInterval: (q) => (q.state.data?.items?.some((p) => p.state === "pulling") ? often : seldom),
  });

export const pullImage = (reference: string, plainHTTP: boolean) =>
  data<ImagePull>(api.POST("/v1/images/pulls", { body: { reference, ...(plainHTTP && { plain_http: true }) } }) as Promise<{ data?: ImagePull }>);

/** Ends a pull that goes on, or forgets one that has ended. */
export const endPull = (name: string) => fetchOK(`/v1/images/pulls/${encodeURIComponent(name)}`, { method: "DELETE" });

/** Takes an image from the manager. */
export const deleteImage = (name: string) => fetchOK(`/v1/images?image=${encodeURIComponent(name)}`, { method: "DELETE" });

/** Removes from the manager's store what no image uses, or with plan says what would go, and why the rest stays. */
export const collectImages = (plan: boolean) => data<GC>(api.POST("/v1/images/gc", { body: { plan } }) as Promise<{ data?: GC }>);

/** What the API takes at most, in bytes. */
export const maxArchive = 1 << 30;

/** Gives the manager the images of an archive. fetch does not tell how far an upload is, so this is an XMLHttpRequest. */
export function importImage(archive: Blob, as: string, progress: (sent: number) => void, signal: AbortSignal): Promise<Imported> {
  return new Promise((done, failed) => {
    const x = new XMLHttpRequest();
    x.open("POST", `/v1/images/import${as ? `?as=${encodeURIComponent(as)}` : ""}`);
    x.setRequestHeader("Content-Type", "application/x-tar");
    x.upload.onprogress = (e) => progress(e.loaded);
    x.onload = () => {
      const r = new Response(x.responseText, { status: x.status, statusText: x.statusText });
      if (r.ok) r.json().then((v) => done(v as Imported), (e: unknown) => failed(asApiError(e)));
      else void refusalOf(r).then(failed);
    };
    x.onerror = () => failed(new ApiError(0, "No answer", "The upload broke off: Weir does not answer, or has refused the archive."));
    x.onabort = () => failed(new ApiError(0, "Cancelled", "The upload was cancelled: nothing has changed."));
    signal.addEventListener("abort", () => x.abort());
    x.send(archive);
  });
}
