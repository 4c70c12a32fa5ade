import { describe, expect, it } from "vitest";
import { Lists, maxEvents, readEvents } from "./live";

const stream = (...chunks: string[]) =>
  new ReadableStream<Uint8Array>({
    start(c) {
      for (const s of chunks) c.enqueue(new TextEncoder().encode(s));
      c.close();
    },
  });

describe("server-sent events", () => {
  it("are whole, wherever the network cuts them", async () => {
    const text = 'event: put\ndata: {"kind":"chain","object":{"name":"ä"}}\n\n: still here\n\nid: 7\n\r\nevent: delete\ndata: {}\n\n';
    const bytes = new TextEncoder().encode(text);
    for (const size of [1, 2, 3, 7, bytes.length]) {
      const seen: string[][] = [];
      const body = new ReadableStream<Uint8Array>({
        start(c) {
          for (let i = 0; i < bytes.length; i += size) c.enqueue(bytes.slice(i, i + size));
          c.close();
        },
      });
      await readEvents(body, (...e) => seen.push(e));
      expect(seen).toEqual([
        ["put", '{"kind":"chain","object":{"name":"ä"}}', ""],
        ["", "", "7"],
        ["delete", "{}", ""],
      ]);
    }
  });
  it("that are cut short are not told", async () => {
    const seen: unknown[] = [];
    await readEvents(stream("event: put\ndata: {"), (...e) => seen.push(e));
    expect(seen).toEqual([]);
  });
});

describe("lists", () => {
  const put = (name: string, revision: number) => ({ type: "put" as const, kind: "chain" as const, object: { name, revision } });
  it("take each change once, and none that is older than what is there", () => {
    const l = new Lists();
    l.reset("chain", [{ name: "a", revision: 5 }]);
    expect(l.apply(put("a", 4))).toBe(false);
    expect(l.apply({ ...put("a", 4), type: "delete" })).toBe(false);
    expect(l.apply(put("b", 6))).toBe(true);
    expect(l.apply({ ...put("a", 7), type: "delete" })).toBe(true);
    expect(l.sorted("chain")).toEqual([{ name: "b", revision: 6 }]);
  });
  it("keep a bounded number of events, the newest", () => {
    const l = new Lists();
    for (let i = 0; i < maxEvents + 10; i++) l.apply({ type: "put", kind: "event", object: { name: String(i).padStart(6, "0"), revision: i } });
    expect(l.sorted("event")).toHaveLength(maxEvents);
    expect(l.sorted("event")[0]!.name).toBe("000010");
  });
});
