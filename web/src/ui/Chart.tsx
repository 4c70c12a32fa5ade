// Lines over time. Loaded only by pages that draw.
import "uplot/dist/uPlot.min.css";
import { useComputedColorScheme } from "@mantine/core";
import { useEffect, useRef } from "react";
import UPlot from "uplot";
import { localTime } from "./format";

export interface Line {
  label: string;
  values: (number | null)[];
  /** A custom property of app.css. */
  colour: string;
  dash?: boolean;
}

interface Props {
  /** Seconds since 1970. */
  times: number[];
  lines: Line[];
  /** How a value is written. */
  format: (n: number) => string;
  label: string;
  height?: number;
}

const span = 180; // s that are shown at least
const clock = (s: number) => localTime(new Date(s * 1000));

export default function Chart({ times, lines, format, label, height = 180 }: Props) {
  const at = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | undefined>(undefined);
  const scheme = useComputedColorScheme();
  const names = lines.map((l) => l.label).join("\n");
  const latest = useRef(format);
  latest.current = format;
  useEffect(() => {
    const box = at.current!;
    const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: '12px "Inter Variable"' };
    const p = new UPlot(
      {
        width: box.clientWidth || 300,
        height,
        cursor: { y: false },
        legend: { live: true },
        scales: { x: { range: (_u, lo, hi) => [Math.min(lo, hi - span), hi] }, y: { range: (_u, _lo, hi) => [0, hi > 0 ? hi * 1.1 : 1] } },
        axes: [{ ...axis, space: 90, values: (_u, v) => v.map(clock) }, { ...axis, size: 80, values: (_u, v) => v.map((n) => latest.current(n)) }],
        series: [
          { value: (_u, v) => (v == null ? "" : clock(v)) },
          ...lines.map((l) => ({ label: l.label, stroke: css(l.colour), width: 1.5, dash: l.dash ? [6, 4] : undefined, points: { show: false }, value: (_u: UPlot, v: number | null) => (v == null ? "" : latest.current(v)) })),
        ],
      },
      [times, ...lines.map((l) => l.values)],
      box,
    );
    plot.current = p;
    const sized = new ResizeObserver(() => p.setSize({ width: box.clientWidth || 300, height }));
    sized.observe(box);
    return () => {
      sized.disconnect();
      p.destroy();
      plot.current = undefined;
    };
    // The data come by setData below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [names, scheme, height]);
  useEffect(() => plot.current?.setData([times, ...lines.map((l) => l.values)]), [times, lines]);
  return <div ref={at} className="chart" role="img" aria-label={label} />;
}
