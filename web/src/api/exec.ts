// A process in a function over a WebSocket: the frames of api/exec.go, one in each binary message.

export const protocol = "weir-exec";

export enum Frame {
  Stdin,
  StdinClose,
  Resize,
  Stdout,
  Stderr,
  Exit,
  Error,
}

/** One byte type, four bytes length (big endian), then the payload. */
export function encode(type: Frame, payload: Uint8Array = new Uint8Array()): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(5 + payload.length);
  out[0] = type;
  new DataView(out.buffer).setUint32(1, payload.length);
  out.set(payload, 5);
  return out;
}

/** The frame of a message; undefined if it is none. */
export function decode(message: ArrayBuffer): { type: Frame; payload: Uint8Array } | undefined {
  if (message.byteLength < 5) return undefined;
  const view = new DataView(message);
  const n = view.getUint32(1);
  if (view.getUint8(0) > Frame.Error || n !== message.byteLength - 5) return undefined;
  return { type: view.getUint8(0), payload: new Uint8Array(message, 5, n) };
}

/** Columns and rows, two bytes each. */
export function size(columns: number, rows: number): Uint8Array {
  const p = new Uint8Array(4);
  new DataView(p.buffer).setUint16(0, columns);
  new DataView(p.buffer).setUint16(2, rows);
  return p;
}

export function execURL(name: string, args: string[]): string {
  const q = new URLSearchParams([...args.map((a): [string, string] => ["arg", a]), ["env", "TERM=xterm-256color"], ["tty", "true"]]);
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/functions/${encodeURIComponent(name)}/exec?${q}`;
}
