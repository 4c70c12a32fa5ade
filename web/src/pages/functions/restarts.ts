// When a function ended or hung, by its events. Pure.
import type { Event } from "../../api/types";

/** What Weir does something about: it starts the function again. */
const ends: Record<string, string> = { FunctionDied: "its process ended", FunctionRestarting: "it hung" };

export interface Mark {
  /** From the first to the last time of one event, ms. */
  from: number;
  to: number;
  times: number;
  what: string;
  message: string;
}

/** The ends of a function of which there are events, the newest first. */
export function restartsOf(events: Event[] | undefined, name: string): Mark[] {
  return (events ?? [])
    .filter((e) => e.kind === "function" && e.object === name && e.reason in ends)
    .map((e): Mark => {
      const to = Date.parse(e.time);
      const from = e.first ? Date.parse(e.first) : to;
      return { from: Math.min(from, to), to, times: Math.max(1, e.count ?? 1), what: ends[e.reason]!, message: e.message };
    })
    .sort((a, b) => b.to - a.to);
}

export const hours = 24;

/** The marks of the last hours as shares of that time: 0 is its beginning. What happened once has no width. */
export function strip(marks: Mark[], now: number): { at: number; width: number; mark: Mark }[] {
  const span = hours * 3600e3;
  const share = (t: number) => Math.min(1, Math.max(0, (t - (now - span)) / span));
  return marks.filter((m) => m.to > now - span).map((mark) => ({ at: share(mark.from), width: share(mark.to) - share(mark.from), mark }));
}
