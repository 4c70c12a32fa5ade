// Search: pages and objects by name.
import { Modal, TextInput } from "@mantine/core";
import { IconSearch } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { useNavigate } from "react-router";
import { readyOf, type Level } from "../api/ready";
import { useList } from "../api/live";
import { State } from "../ui/basic";
import { pages, pathOf } from "./pages";

const most = 40;
interface Hit {
  key: string;
  kind: string;
  name: string;
  to: string;
  level?: Level;
  state?: string;
}

export function Palette({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  return (
    <Modal opened={opened} onClose={onClose} title="Search" withCloseButton={false} yOffset="12vh" padding="sm">
      <Search onClose={onClose} />
    </Modal>
  );
}

function Search({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const go = useNavigate();
  const functions = useList("function");
  const chains = useList("chain");
  const policies = useList("policy");
  const endpoints = useList("endpoint");
  const hosts = useList("host");
  const switches = useList("switch");
  const hits = useMemo(() => {
    const all: Hit[] = pages.filter((p) => !p.path.includes(":")).map((p) => ({ key: p.path, kind: "page", name: p.title, to: p.path }));
    const add = <K extends Parameters<typeof readyOf>[0]>(kind: K, items: Parameters<typeof readyOf<K>>[1][] | undefined) => {
      for (const o of items ?? []) {
        const to = pathOf(kind, o.name);
        const r = readyOf(kind, o);
        if (to) all.push({ key: `${kind}/${o.name}`, kind, name: o.name, to, level: r.level, state: r.state });
      }
    };
    add("function", functions);
    add("chain", chains);
    add("policy", policies);
    add("endpoint", endpoints);
    add("host", hosts);
    add("switch", switches);
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    const begins = (h: Hit) => (wanted[0] && h.name.toLowerCase().startsWith(wanted[0]) ? 0 : 1);
    return all
      .filter((h) => wanted.every((w) => `${h.kind}/${h.name}`.toLowerCase().includes(w)))
      .sort((a, b) => begins(a) - begins(b))
      .slice(0, most);
  }, [text, functions, chains, policies, endpoints, hosts, switches]);
  const open = (h: Hit | undefined) => {
    if (!h) return;
    onClose();
    void go(h.to);
  };
  const on = Math.min(at, hits.length - 1);
  return (
    <>
      <TextInput
        data-autofocus
        size="md"
        leftSection={<IconSearch size={16} />}
        placeholder="A page, function, chain, policy, endpoint or host"
        aria-label="Search"
        role="combobox"
        aria-expanded
        aria-controls="palette"
        aria-activedescendant={hits[on] ? `hit-${on}` : undefined}
        value={text}
        onChange={(e) => {
          setText(e.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(e) => {
          const step = e.key === "ArrowDown" ? 1 : e.key === "ArrowUp" ? -1 : 0;
          if (step) {
            e.preventDefault();
            const next = Math.max(0, Math.min(hits.length - 1, on + step));
            setAt(next);
            document.getElementById(`hit-${next}`)?.scrollIntoView({ block: "nearest" });
          }
          if (e.key === "Enter") open(hits[on]);
        }}
      />
      <div className="palette-list" id="palette" role="listbox" aria-label="Found">
        {hits.map((h, i) => (
          <div key={h.key} id={`hit-${i}`} role="option" aria-selected={i === on} onMouseMove={() => setAt(i)} onClick={() => open(h)}>
            <span className={h.kind === "page" ? "" : "mono"}>{h.name}</span>
            {h.level && h.level !== "ok" && <State level={h.level}>{h.state}</State>}
            <span className="hint">{h.kind}</span>
          </div>
        ))}
      </div>
      {hits.length === 0 && <p className="dim">Nothing has this name.</p>}
    </>
  );
}
