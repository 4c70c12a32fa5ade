// A terminal in a function.
import "@xterm/xterm/css/xterm.css";
import { Button, TextInput } from "@mantine/core";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { useEffect, useRef, useState } from "react";
import { decode, encode, execURL, Frame, protocol, size } from "../../api/exec";
import { useMay } from "../../api/session";
import { Empty, SameAs } from "../../ui/basic";

const maxInput = 32 << 10; // bytes of a frame

/** Elements that xterm makes for its styles get the page's nonce; without it the page's policy refuses them. */
function withNonce<T>(make: () => T): T {
  const nonce = document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce;
  const original = document.createElement;
  if (!nonce) return make();
  document.createElement = function (this: Document, ...args: Parameters<Document["createElement"]>) {
    const e = original.apply(this, args);
    if (e instanceof HTMLStyleElement) e.nonce = nonce;
    return e;
  } as typeof original;
  try {
    return make();
  } finally {
    document.createElement = original;
  }
}

// For coloured cells xterm sets the attribute style, which the page's policy refuses; the property says the same and is fine.
HTMLSpanElement.prototype.setAttribute = function (name: string, value: string) {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
};

export default function Shell({ name, running }: { name: string; running: boolean }) {
  const may = useMay("operator");
  const [program, setProgram] = useState("sh");
  const [run, setRun] = useState<{ args: string[]; n: number }>();
  const [end, setEnd] = useState("");
  const at = useRef<HTMLDivElement>(null);

  useEffect(() => {
    if (!run || !at.current) return;
    const css = (v: string) => getComputedStyle(document.documentElement).getPropertyValue(v).trim();
    const term = new Terminal({
      fontFamily: '"JetBrains Mono Variable", monospace',
      fontSize: 13,
      scrollback: 5_000,
      screenReaderMode: true,
      theme: { background: "#0b0f12", foreground: "#e6ebee", cursor: css("--accent") || "#4fd3c4" },
    });
    const fit = new FitAddon();
    term.loadAddon(fit);
    withNonce(() => term.open(at.current!));
    fit.fit();
    term.focus();
    const ws = new WebSocket(execURL(name, run.args), protocol);
    ws.binaryType = "arraybuffer";
    const send = (type: Frame, payload?: Uint8Array) => ws.readyState === WebSocket.OPEN && ws.send(encode(type, payload));
    let over = "";
    ws.onopen = () => send(Frame.Resize, size(term.cols, term.rows));
    ws.onmessage = (e: MessageEvent<ArrayBuffer>) => {
      const f = decode(e.data);
      if (f?.type === Frame.Stdout || f?.type === Frame.Stderr) term.write(f.payload);
      else if (f?.type === Frame.Exit) over = `The process ended with code ${new DataView(f.payload.buffer, f.payload.byteOffset).getInt32(0)}.`;
      else if (f?.type === Frame.Error) over = new TextDecoder().decode(f.payload);
    };
    ws.onclose = (e) => setEnd(over || e.reason || "The connection ended. Does the function run, and does its image have this program?");
    const input = term.onData((d) => {
      const bytes = new TextEncoder().encode(d);
      for (let i = 0; i < bytes.length; i += maxInput) send(Frame.Stdin, bytes.subarray(i, i + maxInput));
    });
    const sized = term.onResize(({ cols, rows }) => send(Frame.Resize, size(cols, rows)));
    const watch = new ResizeObserver(() => fit.fit());
    watch.observe(at.current);
    return () => {
      watch.disconnect();
      input.dispose();
      sized.dispose();
      ws.onclose = null;
      ws.close();
      term.dispose();
    };
  }, [run, name]);

  if (!may.ok) return <Empty title="A shell is not for this role">{may.why}</Empty>;
  if (!running) return <Empty title="The function does not run">A shell runs in it: start it first.</Empty>;
  const args = program.trim().split(/\s+/).filter(Boolean);
  return (
    <div className="stack" style={{ padding: "0.75rem 1rem 1rem" }}>
      <form
        className="row"
        onSubmit={(e) => {
          e.preventDefault();
          setEnd("");
          setRun({ args, n: (run?.n ?? 0) + 1 });
        }}
      >
        <TextInput size="xs" aria-label="Program and its arguments" value={program} onChange={(e) => setProgram(e.currentTarget.value)} className="editor" style={{ flex: "1 1 12rem", maxWidth: "26rem" }} spellCheck={false} />
        <Button type="submit" disabled={args.length === 0}>
          {run && !end ? "Start anew" : "Start"}
        </Button>
        <span className="dim">The program must be in the image.</span>
      </form>
      {run && <div ref={at} key={run.n} className="terminal" />}
      {end && (
        <p role="status" className="break">
          {end}
        </p>
      )}
      <SameAs text={`weir function exec -it ${name} -- ${args.join(" ") || "sh"}`} />
    </div>
  );
}
