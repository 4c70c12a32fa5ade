// Filters and files of tables.
import type { Column, Value } from "./DataTable";

/** A filter's words; "quoted text" is one. */
export function words(filter: string): string[] {
  return [...filter.toLowerCase().matchAll(/(-?)"([^"]*)"?|(\S+)/g)].map((m) => (m[3] ?? m[1]! + m[2]!)).filter((w) => w && w !== "-");
}

/** Every word is in some value; one with a minus is in none. */
export function matches(wanted: string[], values: Value[]): boolean {
  const text = values.map((v) => String(v ?? "").toLowerCase()).join("\n");
  return wanted.every((w) => (w.startsWith("-") && w.length > 1 ? !text.includes(w.slice(1)) : text.includes(w)));
}

/** RFC 4180. Text that a spreadsheet would take for a formula gets an apostrophe: names and messages may be hostile. */
export function toCSV<T>(columns: Column<T>[], rows: T[]): string {
  const cell = (v: Value) => {
    let s = String(v ?? "");
    if (typeof v === "string" && /^[=+\-@\t\r]/.test(s)) s = "'" + s;
    return /[",\r\n]/.test(s) ? `"${s.replaceAll('"', '""')}"` : s;
  };
  return [columns.map((c) => cell(c.title)), ...rows.map((r) => columns.map((c) => cell(c.value(r))))].map((l) => l.join(",")).join("\r\n") + "\r\n";
}

export const toJSON = <T,>(rows: T[]) => JSON.stringify(rows, null, 2) + "\n";

/** Hands a text to the browser as a file. */
export function save(name: string, type: string, text: string) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const a = document.createElement("a");
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
