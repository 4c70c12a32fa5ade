// Numbers and times as people read them.

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Octets in powers of 1024: "1.5 GiB". */
export function bytes(n: number): string {
  let i = 0;
  while (n >= 1024 && i < units.length - 1) [n, i] = [n / 1024, i + 1];
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

/** A count or rate with a prefix of powers of 1000: "12.3k". */
export function count(n: number): string {
  const steps = ["", "k", "M", "G", "T"];
  let i = 0;
  while (Math.abs(n) >= 1000 && i < steps.length - 1) [n, i] = [n / 1000, i + 1];
  return (i === 0 ? (Number.isInteger(n) ? String(n) : n.toFixed(1)) : n >= 100 ? n.toFixed(0) : n.toFixed(1)) + steps[i];
}

/** Bits a second of octets a second: "9.4 Gbit/s". */
export function bits(bytesPerS: number): string {
  const steps = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
  let n = bytesPerS * 8;
  let i = 0;
  while (n >= 1000 && i < steps.length - 1) [n, i] = [n / 1000, i + 1];
  return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${steps[i]}`;
}

/** A share of a processor: "3.2 %". */
export const percent = (cores: number) => `${(100 * cores).toFixed(cores < 0.1 ? 1 : 0)} %`;

/** A duration in ns, short: "84 µs", "3.2 s", "2 h 5 min". */
export function duration(ns: number): string {
  const s = ns / 1e9;
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(ns < 1e4 ? 1 : 0)} µs`;
  if (s < 1) return `${(ns / 1e6).toFixed(ns < 1e7 ? 1 : 0)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  const h = Math.floor(s / 3600);
  if (h < 48) return `${h} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(h / 24)} d ${h % 24} h`;
}

const sameDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const otherDay = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** A time in the browser's zone; of another day with the date. */
export function localTime(at: Date, now = new Date()): string {
  return (at.toDateString() === now.toDateString() ? sameDay : otherDay).format(at);
}

/** What a hover over a time shows: UTC, whole. */
export const utc = (at: Date) => at.toISOString().replace("T", " ").replace(/\.?0*Z$/, " UTC");

/** Text as one word of a POSIX shell. */
export function quote(s: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(s) ? s : `'${s.replaceAll("'", `'\\''`)}'`;
}

/** A command line of words; empty ones and false are left out. */
export const command = (...words: (string | false | undefined | null)[]) => words.filter((w): w is string => !!w).map(quote).join(" ");

export const plural = (n: number, one: string, many = one + "s") => `${n} ${n === 1 ? one : many}`;
