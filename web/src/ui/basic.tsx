// Small parts that all pages share.
import { ActionIcon, Tooltip } from "@mantine/core";
import { IconAlertTriangle, IconCheck, IconCircleCheck, IconCopy, IconInfoCircle, IconAlertOctagon } from "@tabler/icons-react";
import { useEffect, useState, useSyncExternalStore, type ReactNode } from "react";
import { Link } from "react-router";
import { asApiError } from "../api/client";
import type { Level, Readiness } from "../api/ready";
import type { Problem } from "../api/types";
import { duration, localTime, utc } from "./format";

/** The head of a page. */
export function PageHead({ title, lead, actions, crumb }: { title: ReactNode; lead?: ReactNode; actions?: ReactNode; crumb?: { to: string; text: string } }) {
  const text = typeof title === "string" ? title : undefined;
  useEffect(() => {
    if (text) document.title = `${text} · Weir`;
  }, [text]);
  return (
    <div className="page-head">
      <div className="grow">
        {crumb && (
          <div className="crumbs">
            <Link to={crumb.to}>{crumb.text}</Link>
            <span aria-hidden>/</span>
          </div>
        )}
        <h1 className="break">{title}</h1>
        {lead && <div className="lead">{lead}</div>}
      </div>
      {actions && <div className="actions">{actions}</div>}
    </div>
  );
}

/** A box with a heading. */
export function Panel({ title, right, children, flush, id }: { title?: ReactNode; right?: ReactNode; children: ReactNode; flush?: boolean; id?: string }) {
  return (
    <section className="panel" id={id}>
      {title && (
        <header>
          <h2>{title}</h2>
          {right && <div className="right">{right}</div>}
        </header>
      )}
      {flush ? children : <div className="body">{children}</div>}
    </section>
  );
}

const shapes: Record<Level, ReactNode> = {
  ok: <circle cx="5" cy="5" r="4" fill="currentColor" />,
  warn: <path d="M5 .8 9.6 9.2H.4Z" fill="currentColor" />,
  bad: <rect x="1" y="1" width="8" height="8" rx="1" fill="currentColor" />,
  busy: <path d="M5 1a4 4 0 1 1-4 4" fill="none" stroke="currentColor" strokeWidth="2" strokeLinecap="round" />,
  idle: <circle cx="5" cy="5" r="3.2" fill="none" stroke="currentColor" strokeWidth="1.6" />,
};

/** A state as a shape, a colour and a word. */
export function State({ level, children }: { level: Level; children: ReactNode }) {
  return (
    <span className={`state ${level}`}>
      <svg width="10" height="10" viewBox="0 0 10 10" aria-hidden>
        {shapes[level]}
      </svg>
      {children}
    </span>
  );
}

/** A readiness; hover shows why. */
export function Ready({ r }: { r: Readiness }) {
  const state = <State level={r.level}>{r.state}</State>;
  return r.message ? (
    <Tooltip label={r.message}>
      <span>{state}</span>
    </Tooltip>
  ) : (
    state
  );
}

// One clock for all times of a page.
let now = Date.now();
const ticks = new Set<() => void>();
let clock: ReturnType<typeof setInterval> | undefined;
function onTick(f: () => void) {
  ticks.add(f);
  clock ??= setInterval(() => {
    now = Date.now();
    ticks.forEach((t) => t());
  }, 1000);
  return () => {
    ticks.delete(f);
    if (ticks.size === 0) {
      clearInterval(clock);
      clock = undefined;
    }
  };
}

/** The time, in ms, new each second. */
export const useNow = () => useSyncExternalStore(onTick, () => now);

const isTime = (at: string | undefined): at is string => !!at && !at.startsWith("0001-");

/** A time in the browser's zone; hover shows UTC. */
export function Time({ at }: { at?: string }) {
  if (!isTime(at)) return <span className="dim">never</span>;
  const d = new Date(at);
  return (
    <time dateTime={at} title={utc(d)} className="nowrap num">
      {localTime(d)}
    </time>
  );
}

/** How long ago a time is; hover shows it in UTC. */
export function Ago({ at, suffix = " ago" }: { at?: string; suffix?: string }) {
  const t = useNow();
  if (!isTime(at)) return <span className="dim">never</span>;
  const d = new Date(at);
  const s = Math.max(0, Math.floor((t - d.getTime()) / 1000));
  return (
    <time dateTime={at} title={utc(d)} className="nowrap num">
      {s < 2 ? "now" : (s < 90 ? `${s} s` : duration(s * 1e9)) + suffix}
    </time>
  );
}

const noticeIcons = { ok: IconCircleCheck, warn: IconAlertTriangle, bad: IconAlertOctagon, busy: IconInfoCircle };

/** A message that counts. */
export function Notice({ level, children, role }: { level: "ok" | "warn" | "bad" | "busy"; children: ReactNode; role?: "alert" | "status" }) {
  const Icon = noticeIcons[level];
  return (
    <div className={`notice ${level}`} role={role}>
      <Icon size={18} aria-hidden />
      <div className="grow break">{children}</div>
    </div>
  );
}

/** Where in a file or a spec something is wrong. */
function place(p: Problem): string {
  const at = p.line ? `${p.file ? p.file + ":" : "line "}${p.line}${p.column ? ":" + p.column : ""}` : "";
  return [at, p.path].filter(Boolean).join(" ");
}

/** What the API refused: everything that is wrong, with its place and what would be right. */
export function Failure({ error }: { error: unknown }) {
  if (!error) return null;
  const e = asApiError(error);
  return (
    <Notice level="bad" role="alert">
      <strong>{e.message}</strong>
      {e.problems.length > 0 && (
        <ul>
          {e.problems.map((p, i) => (
            <li key={i}>
              {place(p) && <code>{place(p)}</code>} {p.message}
              {p.hint && <span className="dim"> ({p.hint})</span>}
            </li>
          ))}
        </ul>
      )}
    </Notice>
  );
}

/** What a page shows that has nothing yet: what to do first. */
export function Empty({ title, children, action, page }: { title: string; children?: ReactNode; action?: ReactNode; /** It is all of the page. */ page?: boolean }) {
  return (
    <div className="empty">
      {page ? <h1>{title}</h1> : <h2>{title}</h2>}
      {children && <p>{children}</p>}
      {action}
    </div>
  );
}

export function Loading() {
  return (
    <div className="empty" role="status">
      Loading
    </div>
  );
}

/** Copies text; says so. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const t = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(t);
  }, [done]);
  return (
    <Tooltip label={done ? "Copied" : label}>
      <ActionIcon size="sm" aria-label={label} onClick={() => void navigator.clipboard.writeText(text).then(() => setDone(true))}>
        {done ? <IconCheck size={14} /> : <IconCopy size={14} />}
      </ActionIcon>
    </Tooltip>
  );
}

/** A command to copy. */
export function Command({ text }: { text: string }) {
  return (
    <div className="command">
      <pre>{text}</pre>
      <Copy text={text} label="Copy the command" />
    </div>
  );
}

/** The command that does the same as the page. */
export function SameAs({ text, label = "The same from a shell" }: { text: string; label?: string }) {
  return (
    <div className="same">
      <span className="label">{label}</span>
      <Command text={text} />
    </div>
  );
}

/** A share of something, with its numbers. */
export function Meter({ value, of, text, label }: { value: number; of: number; text: string; label: string }) {
  const share = of > 0 ? Math.min(1, value / of) : 0;
  const level = share > 0.95 ? "bad" : share > 0.8 ? "warn" : "";
  return (
    <div className="meter">
      <span className="num nowrap">{text}</span>
      <div className="bar" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={of} aria-valuenow={value} aria-valuetext={text}>
        <i className={level} style={{ width: `${(100 * share).toFixed(1)}%` }} />
      </div>
    </div>
  );
}
