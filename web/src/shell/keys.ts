// Keys: one, or two in a row ("g f"). None counts while somebody types or a dialog is open.
import { useEffect, useRef } from "react";

export type Keys = Record<string, () => void>;

export function useKeys(keys: Keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    let first = "";
    let at = 0;
    const on = (e: KeyboardEvent) => {
      const t = e.target as HTMLElement;
      if (e.ctrlKey || e.metaKey || e.altKey || t.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(t.tagName) || t.closest?.(".xterm") || document.querySelector("[role=dialog]")) return;
      const pair = Date.now() - at < 1200 ? `${first} ${e.key}` : "";
      const f = (pair && latest.current[pair]) || latest.current[e.key];
      [first, at] = [e.key, Date.now()];
      if (!f) return;
      e.preventDefault();
      first = "";
      f();
    };
    document.addEventListener("keydown", on);
    return () => document.removeEventListener("keydown", on);
  }, []);
}
