// Images are not watched: they are asked of the hosts when a page needs them.
import { useQuery } from "@tanstack/react-query";
import { api, data } from "./client";
import type { components } from "./schema";

export type Image = components["schemas"]["Image"];
type List = components["schemas"]["ImageList"];

export function useImages() {
  return useQuery({ queryKey: ["images"], queryFn: () => data<List>(api.GET("/v1/images") as Promise<{ data?: List }>), staleTime: 30_000 });
}

/** The image that a function names, with or without its tag. Of several the last by name counts, as hosts take the highest tag. */
export function imageOf(images: Image[] | undefined, ref: string): Image | undefined {
  return images?.find((i) => i.name === ref) ?? images?.filter((i) => i.name.split(":")[0] === ref).at(-1);
}
