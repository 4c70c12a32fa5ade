// A chain's path, "fw | w1 | tap:mon": the same grammar as api.ParsePath, with the columns of what is wrong.

export interface ChainHop {
  name: string;
  tap: boolean;
  /** Where the name stands in the text. */
  from: number;
  to: number;
}

/** What is wrong with the text from one column to another, both from 0. */
export interface Mistake {
  from: number;
  to: number;
  message: string;
}

export const maxHops = 256;
export const maxTaps = 4;
const guesses = 5; // names that are looked for among all functions: it happens at each key
const namePattern = /^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$/;

export const isName = (s: string) => namePattern.test(s);

export function parseChain(text: string): { hops: ChainHop[]; mistakes: Mistake[] } {
  const hops: ChainHop[] = [];
  const mistakes: Mistake[] = [];
  if (!text.trim()) return { hops, mistakes: [{ from: 0, to: text.length, message: "empty: write functions with | between them, tap: before one that gets a copy" }] };
  const parts = text.split("|");
  const places = new Map<string, number>();
  let at = 0;
  let taps = 0;
  parts.forEach((part, i) => {
    const start = at + (part.length - part.trimStart().length);
    at += part.length + 1;
    const whole = part.trim();
    const tap = whole.startsWith("tap:");
    const name = tap ? whole.slice(4).trim() : whole;
    const from = whole.length ? start + whole.length - name.length : Math.min(start, text.length);
    const to = from + name.length;
    const say = (message: string) => mistakes.push({ from: whole ? start : Math.max(0, at - 1 - part.length), to: whole ? start + whole.length : at - 1, message });
    taps = tap ? taps + 1 : 0;
    if (!name) say(tap ? "name a function after tap:" : parts.length === 1 ? "name a function" : "a function's name is missing here");
    else if (!isName(name)) say(`“${name}” is no function's name: 1 to 42 characters of a-z, 0-9 and inner -`);
    else if (places.has(name)) say(`${name} stands at place ${places.get(name)} already: make a second function of the same image`);
    else if (taps > maxTaps) say(`at most ${maxTaps} taps one after another`);
    if (i === maxHops) say(`at most ${maxHops} functions in one chain`);
    if (name) {
      if (!places.has(name)) places.set(name, i + 1);
      hops.push({ name, tap, from, to });
    }
  });
  return { hops, mistakes };
}

/** What of a chain other objects forbid: functions that do not exist, or that another chain has. */
export function checkChain(text: string, chain: string, functions: string[], chainOf: Map<string, string>): Mistake[] {
  const { hops, mistakes } = parseChain(text);
  if (mistakes.length) return mistakes;
  const known = new Set(functions);
  for (const h of hops) {
    const other = chainOf.get(h.name);
    if (!known.has(h.name)) mistakes.push({ from: h.from, to: h.to, message: `there is no function ${h.name}${mistakes.length < guesses ? near(h.name, functions) : ""}` });
    else if (other && other !== chain) mistakes.push({ from: h.from, to: h.to, message: `${h.name} is in chain ${other}: a function stands in one chain` });
  }
  return mistakes;
}

/** The names of a path's functions. */
export const chainFunctions = (path: string) => parseChain(path).hops.map((h) => h.name);

/** Which chain each function is in. */
export function chainsOf(chains: { name: string; spec: { path: string } }[] | undefined): Map<string, string> {
  const of = new Map<string, string>();
  for (const c of chains ?? []) for (const name of chainFunctions(c.spec.path)) of.set(name, c.name);
  return of;
}

/** The word under the cursor, to complete: where it stands, and its text up to the cursor. */
export function wordAt(text: string, cursor: number): { from: number; to: number; typed: string } {
  let from = text.lastIndexOf("|", cursor - 1) + 1;
  let to = text.indexOf("|", cursor);
  if (to < 0) to = text.length;
  while (from < cursor && text[from] === " ") from++;
  while (to > cursor && text[to - 1] === " ") to--;
  if (text.startsWith("tap:", from) && cursor >= from + 4) from += 4;
  while (from < cursor && text[from] === " ") from++;
  return { from, to, typed: text.slice(from, cursor) };
}

function near(name: string, names: string[]): string {
  let best = "";
  let least = Math.min(3, Math.ceil(name.length / 2) + 1);
  for (const n of names) {
    const d = distance(name, n, least);
    if (d < least) [best, least] = [n, d];
  }
  return best && `; is it ${best}?`;
}

/** The edit distance, or most if it is not less. */
function distance(a: string, b: string, most: number): number {
  if (Math.abs(a.length - b.length) >= most) return most;
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) next[j] = Math.min(next[j - 1]! + 1, row[j]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1));
    row = next;
  }
  return Math.min(most, row[b.length]!);
}
