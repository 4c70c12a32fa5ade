// How far the drain of a host is, in a word or two.
import type { Host } from "../../api/types";

/** Why a host takes no new functions; "" if it takes some. */
export function closedWord(h: Host): string {
  const d = h.status.drain;
  if (!h.spec.drain) return h.spec.unschedulable ? "closed" : "";
  if (!d) return "draining";
  if (d.leaving > 0) return `draining, ${d.leaving + d.stays} left`;
  return d.stays > 0 ? `draining, ${d.stays} stay` : "drained";
}
