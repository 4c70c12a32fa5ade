// What a function writes, as it comes, with search.
import { Button, Checkbox, TextInput } from "@mantine/core";
import { IconDownload, IconSearch } from "@tabler/icons-react";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { fetchOK } from "../../api/client";
import { liveOf, useConnection } from "../../api/live";
import { useMay } from "../../api/session";
import { Empty, Failure, SameAs } from "../../ui/basic";
import { save } from "../../ui/export";
import { command } from "../../ui/format";

const tail = 1_000;
const maxLines = 5_000;
const maxLine = 4_000; // characters that are shown
const together = 100; // ms

interface Line {
  id: number;
  text: string;
}

/** Lines of a stream of text; colours of terminals are taken out. */
export class LineReader {
  private rest = "";
  private next = 0;

  push(chunk: string): Line[] {
    const parts = (this.rest + chunk).split("\n");
    this.rest = parts.pop()!.slice(0, maxLine);
    return parts.map((p) => ({ id: this.next++, text: plain(p) }));
  }

  end(): Line[] {
    const rest = this.rest;
    this.rest = "";
    return rest ? [{ id: this.next++, text: plain(rest) }] : [];
  }
}

// eslint-disable-next-line no-control-regex
const controls = /\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]/g;
const plain = (s: string) => (s.length > maxLine ? s.slice(0, maxLine) + " ..." : s).replace(controls, "");

export default function Logs({ name, life }: { name: string; life: string }) {
  const may = useMay("operator");
  const [lines, setLines] = useState<Line[]>([]);
  const [error, setError] = useState<unknown>();
  const [state, setState] = useState<"open" | "ended">("open");
  const [again, setAgain] = useState(0);
  const [search, setSearch] = useState("");
  const [only, setOnly] = useState(false);
  const [follow, setFollow] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  const ended = useRef(false);
  const { phase } = useConnection(liveOf(useQueryClient()));

  // A manager that starts again ends the log, but not the function.
  useEffect(() => {
    if (phase === "live" && ended.current) setAgain((n) => n + 1);
  }, [phase]);
  useEffect(() => {
    if (!may.ok) return;
    const stop = new AbortController();
    const reader = new LineReader();
    let pending: Line[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      timer = undefined;
      const fresh = pending;
      pending = [];
      if (!stop.signal.aborted) setLines((l) => [...l, ...fresh].slice(-maxLines));
    };
    const add = (fresh: Line[]) => {
      pending.push(...fresh);
      if (pending.length > maxLines) pending = pending.slice(-maxLines);
      timer ??= setTimeout(flush, together);
    };
    setLines([]);
    setError(undefined);
    setState("open");
    ended.current = false;
    void (async () => {
      try {
        const r = await fetchOK(`/v1/functions/${encodeURIComponent(name)}/logs?tail=${tail}&follow=true`, { signal: stop.signal });
        const chunks = r.body!.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
        for (;;) {
          const { done, value } = await chunks.read();
          if (done) break;
          add(reader.push(value));
        }
        add(reader.end());
        setState("ended");
        ended.current = true;
      } catch (e) {
        if (stop.signal.aborted) return;
        setState("ended");
        ended.current = true;
        setError(e);
      }
    })();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [name, life, again, may.ok]);

  const needle = search.toLowerCase();
  const shown = useMemo(() => (needle && only ? lines.filter((l) => l.text.toLowerCase().includes(needle)) : lines), [lines, needle, only]);
  const hits = useMemo(() => (needle ? lines.filter((l) => l.text.toLowerCase().includes(needle)).length : 0), [lines, needle]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown, follow]);
  if (!may.ok) return <Empty title="Logs are not for this role">{may.why}</Empty>;
  return (
    <>
      <div className="table-tools">
        <TextInput className="filter" size="xs" aria-label="Search the log" placeholder="Search" leftSection={<IconSearch size={14} />} value={search} onChange={(e) => setSearch(e.currentTarget.value)} data-filter />
        {needle && <span className="dim num">{hits} lines</span>}
        <Checkbox size="xs" label="Only these" checked={only} onChange={(e) => setOnly(e.currentTarget.checked)} />
        <Checkbox size="xs" label="Follow" checked={follow} onChange={(e) => setFollow(e.currentTarget.checked)} />
        <Button variant="default" style={{ marginLeft: "auto" }} leftSection={<IconDownload size={14} />} onClick={() => save(`${name}.log`, "text/plain", lines.map((l) => l.text + "\n").join(""))}>
          Save
        </Button>
      </div>
      <div
        className="log"
        ref={box}
        tabIndex={0}
        role="log"
        aria-label={`Log of ${name}`}
        aria-live="off"
        onScroll={(e) => {
          const b = e.currentTarget;
          setFollow(b.scrollHeight - b.scrollTop - b.clientHeight < 30);
        }}
      >
        {shown.map((l) => (
          <div key={l.id}>{needle ? <Marked text={l.text} needle={needle} /> : l.text || " "}</div>
        ))}
        {shown.length === 0 && <div className="dim">{needle && only ? "No line has this text." : "Nothing was written yet."}</div>}
      </div>
      {state === "ended" && (
        <div className="table-foot">
          {error ? <Failure error={error} /> : "The log ended: the function stopped."}
          <Button variant="default" onClick={() => setAgain(again + 1)}>
            Follow again
          </Button>
        </div>
      )}
      <div className="body" style={{ padding: "0.75rem 1rem", borderTop: "1px solid var(--line)" }}>
        <SameAs text={command("weir", "function", "logs", "-f", name)} />
      </div>
    </>
  );
}

function Marked({ text, needle }: { text: string; needle: string }) {
  const parts: React.ReactNode[] = [];
  const low = text.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(needle); at >= 0 && parts.length < 200; at = low.indexOf(needle, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + needle.length)}</mark>);
    from = at + needle.length;
  }
  return (
    <>
      {parts}
      {text.slice(from)}
    </>
  );
}
