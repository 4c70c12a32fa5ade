// Figures as the lab writes them: the three or four digits that count.
import type { LabRange } from "../../api/lab";

export function figure(v: number | undefined): string {
  if (v === undefined || !Number.isFinite(v)) return "–";
  const a = Math.abs(v);
  if (a >= 1000) return v.toFixed(0);
  if (a >= 100) return v.toFixed(1);
  if (a >= 10) return v.toFixed(2);
  return String(Number(v.toPrecision(3)));
}

/** "0.91 to 1.02"; without an upper end "0.91 to ∞". */
export const span = (r: LabRange | undefined) => (r ? `${figure(r.low)} to ${r.high === undefined ? "∞" : figure(r.high)}` : "");
