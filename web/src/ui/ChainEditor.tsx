// A chain in one line, with completion and what is wrong underlined at its place.
import { useId, useMemo, useRef, useState } from "react";
import "./chain.css";
import { functionReady } from "../api/ready";
import type { Func } from "../api/types";
import { State } from "./basic";
import { checkChain, parseChain, wordAt, type Mistake } from "./chain";

interface Props {
  value: string;
  onChange: (text: string) => void;
  /** The chain's name: its own functions are free for it. */
  chain: string;
  functions: Func[];
  chainOf: Map<string, string>;
  /** Whether a function has one tap port and so only gets copies; undefined if that is not known. */
  taps: (f: Func) => boolean | undefined;
  label?: string;
  autoFocus?: boolean;
}

const most = 8;

export function ChainEditor({ value, onChange, chain, functions, chainOf, taps, label = "Path", autoFocus }: Props) {
  const id = useId();
  const input = useRef<HTMLInputElement>(null);
  const [cursor, setCursor] = useState(value.length);
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(0);
  const [shift, setShift] = useState(0);
  const names = useMemo(() => functions.map((f) => f.name), [functions]);
  const byName = useMemo(() => new Map(functions.map((f) => [f.name, f])), [functions]);
  const { hops } = useMemo(() => parseChain(value), [value]);
  const mistakes = useMemo(() => {
    const all = checkChain(value, chain, names, chainOf);
    if (all.length) return all;
    return parseChain(value).hops.flatMap((h): Mistake[] => {
      const f = byName.get(h.name);
      const tap = f && taps(f);
      if (tap === undefined || tap === h.tap) return [];
      return [{ from: h.from, to: h.to, message: tap ? `${h.name} (${f!.spec.image}) only gets copies: write tap:${h.name}` : `${h.name} (${f!.spec.image}) forwards: write it without tap:` }];
    });
  }, [value, chain, names, chainOf, byName, taps]);

  const word = wordAt(value, cursor);
  const used = new Set(hops.map((h) => h.name));
  const options = functions
    .filter((f) => f.name.startsWith(word.typed) && f.name !== value.slice(word.from, word.to) && !used.has(f.name) && [undefined, chain].includes(chainOf.get(f.name)))
    .slice(0, most);
  const shown = open && options.length > 0;
  const on = Math.min(at, options.length - 1);
  const take = (f: Func) => {
    const tapped = value.slice(0, word.from).endsWith("tap:");
    const text = taps(f) && !tapped ? `tap:${f.name}` : f.name;
    const before = value.slice(0, word.from).replace(/\|$/, "| ");
    const next = before + text + value.slice(word.to);
    onChange(next);
    setOpen(false);
    const c = before.length + text.length;
    setCursor(c);
    requestAnimationFrame(() => {
      input.current?.focus();
      input.current?.setSelectionRange(c, c);
    });
  };
  // A chain that is still being written has no mistakes yet at its end.
  const last = value.trimEnd().endsWith("|") || !value.trim();
  const told = mistakes.filter((m) => !(last && document.activeElement === input.current && m.to >= value.trimEnd().length));
  return (
    <div className="chain-editor">
      <label className="chain-label" htmlFor={id}>
        {label}
      </label>
      <div className={`chain-box ${told.length ? "wrong" : ""}`}>
        <div className="chain-under" aria-hidden>
          <div style={{ transform: `translateX(${-shift}px)` }}>
            {marked(value, told).map((p, i) => (
              <span key={i} className={p.wrong ? "wrong" : undefined}>
                {p.text}
              </span>
            ))}
          </div>
        </div>
        <input
          id={id}
          ref={input}
          value={value}
          autoFocus={autoFocus}
          spellCheck={false}
          autoComplete="off"
          autoCapitalize="off"
          placeholder="fw | w1 | tap:mon"
          role="combobox"
          aria-expanded={shown}
          aria-controls={`${id}-list`}
          aria-autocomplete="list"
          aria-activedescendant={shown ? `${id}-${on}` : undefined}
          aria-invalid={told.length > 0}
          aria-describedby={`${id}-said`}
          onChange={(e) => {
            onChange(e.currentTarget.value);
            setCursor(e.currentTarget.selectionStart ?? e.currentTarget.value.length);
            setOpen(true);
            setAt(0);
          }}
          onSelect={(e) => setCursor(e.currentTarget.selectionStart ?? 0)}
          onScroll={(e) => setShift(e.currentTarget.scrollLeft)}
          onFocus={() => setOpen(true)}
          onBlur={() => setOpen(false)}
          onKeyDown={(e) => {
            const step = e.key === "ArrowDown" ? 1 : e.key === "ArrowUp" ? -1 : 0;
            if (step) {
              e.preventDefault();
              if (!shown) setOpen(true);
              else setAt((on + step + options.length) % options.length);
            } else if (shown && (e.key === "Enter" || (e.key === "Tab" && word.typed && !e.shiftKey))) {
              e.preventDefault();
              take(options[on]!);
            } else if (e.key === "Escape" && shown) {
              e.stopPropagation();
              setOpen(false);
            }
          }}
        />
        <div className="chain-options" id={`${id}-list`} role="listbox" aria-label="Functions" hidden={!shown}>
          {options.map((f, i) => {
            const r = functionReady(f);
            return (
              <div key={f.name} id={`${id}-${i}`} role="option" aria-selected={i === on} onMouseMove={() => setAt(i)} onMouseDown={(e) => e.preventDefault()} onClick={() => take(f)}>
                <span className="mono">{taps(f) ? `tap:${f.name}` : f.name}</span>
                <span className="dim">{f.spec.image}</span>
                {r.level !== "ok" && <State level={r.level}>{r.state}</State>}
              </div>
            );
          })}
        </div>
      </div>
      <div id={`${id}-said`} className="chain-said" role="status">
        {told.length === 0 ? (
          <span className="dim">Packets go from left to right, replies from right to left. tap: gets a copy.</span>
        ) : (
          told.slice(0, 5).map((m, i) => (
            <button
              type="button"
              key={i}
              onClick={() => {
                input.current?.focus();
                input.current?.setSelectionRange(m.from, Math.max(m.to, m.from));
              }}
            >
              <span className="mono">column {m.from + 1}</span> {m.message}
            </button>
          ))
        )}
      </div>
    </div>
  );
}

function marked(text: string, mistakes: Mistake[]): { text: string; wrong: boolean }[] {
  const out: { text: string; wrong: boolean }[] = [];
  let at = 0;
  for (const m of [...mistakes].sort((a, b) => a.from - b.from)) {
    if (m.from < at) continue;
    if (m.from > at) out.push({ text: text.slice(at, m.from), wrong: false });
    const to = Math.max(m.to, m.from + 1);
    out.push({ text: text.slice(m.from, to) || " ", wrong: true });
    at = to;
  }
  if (at < text.length) out.push({ text: text.slice(at), wrong: false });
  return out;
}

/** A chain as its functions with their states, in order. */
export function ChainPath({ path, functions }: { path: string; functions: Func[] | undefined }) {
  const by = useMemo(() => new Map(functions?.map((f) => [f.name, f])), [functions]);
  return (
    <span className="chain-path">
      {parseChain(path).hops.map((h, i) => {
        const f = by.get(h.name);
        const r = f && functionReady(f);
        return (
          <span key={i} className={h.tap ? "hop tap" : "hop"}>
            {i > 0 && (
              <span className="dim" aria-hidden>
                {h.tap ? "⤷" : "→"}
              </span>
            )}
            <span className="mono">
              {h.tap ? "tap:" : ""}
              {h.name}
            </span>
            {r && r.level !== "ok" && <State level={r.level}>{r.state}</State>}
            {functions && !f && <State level="bad">missing</State>}
          </span>
        );
      })}
    </span>
  );
}
