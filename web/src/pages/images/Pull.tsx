// Images that the manager fetches from registries.
import { Button, Checkbox, Modal, TextInput } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useAction } from "../../api/actions";
import { endPull, pullImage, usePulls, type ImagePull } from "../../api/images";
import { useMay } from "../../api/session";
import type { Level } from "../../api/ready";
import { Ago, Failure, Panel, SameAs, State } from "../../ui/basic";
import { bytes, command } from "../../ui/format";

const pullCommand = (reference: string, plain: boolean) => command("weir", "image", "pull", plain && "--plain-http", reference || "REGISTRY/NAME:TAG");

export function PullDialog({ onClose }: { onClose: () => void }) {
  const queries = useQueryClient();
  const [reference, setReference] = useState("");
  const [plain, setPlain] = useState(false);
  const ref = reference.trim();
  const run = useAction<void>(() => pullImage(ref, plain), {
    onDone: () => {
      void queries.invalidateQueries({ queryKey: ["image-pulls"] });
      onClose();
    },
  });
  return (
    <Modal opened onClose={onClose} title="Pull an image">
      <form
        className="stack"
        onSubmit={(e) => {
          e.preventDefault();
          if (ref && !run.isPending) run.mutate();
        }}
      >
        <p>The manager fetches it from a registry, with the credentials that root has stored there. What is there already is not fetched again.</p>
        <TextInput label="Reference" description="With its registry, and a tag or a digest" required data-autofocus placeholder="registry.example.org/nf/filter:2" value={reference} onChange={(e) => setReference(e.currentTarget.value)} spellCheck={false} />
        <Checkbox size="xs" label="The registry speaks HTTP, not TLS: only in a network that you trust" checked={plain} onChange={(e) => setPlain(e.currentTarget.checked)} />
        <Failure error={run.error} />
        <SameAs label="The same on the manager's machine" text={pullCommand(ref, plain)} />
        <div className="row" style={{ justifyContent: "flex-end" }}>
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button type="submit" loading={run.isPending} disabled={!ref}>
            Pull
          </Button>
        </div>
      </form>
    </Modal>
  );
}

const levels: Record<string, Level> = { pulling: "busy", pulled: "ok", failed: "bad", cancelled: "idle" };

/** What is being pulled, and what was of late. Nothing where there is nothing. */
export function Pulls() {
  const q = usePulls();
  const queries = useQueryClient();
  const items = q.data?.items ?? [];
  const there = items.filter((p) => p.state === "pulled").length;
  const before = useRef(there);
  useEffect(() => {
    if (there > before.current) void queries.invalidateQueries({ queryKey: ["images"] });
    before.current = there;
  }, [there, queries]);
  if (q.error) return <Failure error={q.error} />;
  if (!items.length) return null;
  return (
    <Panel title="Pulls">
      <ul className="stack" aria-label="Pulls" style={{ listStyle: "none", margin: 0, padding: 0 }}>
        {items.map((p) => (
          <li key={p.name}>
            <One pull={p} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function One({ pull: p }: { pull: ImagePull }) {
  const admin = useMay("admin");
  const queries = useQueryClient();
  const again = () => void queries.invalidateQueries({ queryKey: ["image-pulls"] });
  const end = useAction<void>(() => endPull(p.name), { onDone: again });
  const retry = useAction<void>(() => pullImage(p.reference, !!p.plain_http).then(() => endPull(p.name)), { onDone: again });
  const runs = p.state === "pulling";
  const all = p.size_bytes;
  const done = Math.min(p.done_bytes, all);
  return (
    <div className="stack" style={{ gap: "0.35rem" }}>
      <div className="row">
        <State level={levels[p.state ?? ""] ?? "idle"}>{p.state}</State>
        <span className="mono break grow">{p.reference}</span>
        <span className="dim">
          <Ago at={runs ? p.began : p.ended} suffix={runs ? "" : " ago"} />
        </span>
        {(p.state === "failed" || p.state === "cancelled") && (
          <Button variant="default" size="compact-xs" disabled={!admin.ok} loading={retry.isPending} onClick={() => retry.mutate()} aria-label={`Pull ${p.reference} again`}>
            Again
          </Button>
        )}
        <Button variant="default" size="compact-xs" disabled={!admin.ok} loading={end.isPending} onClick={() => end.mutate()} aria-label={`${runs ? "Cancel the pull of" : "Forget the pull of"} ${p.reference}`}>
          {runs ? "Cancel" : "Forget"}
        </Button>
      </div>
      {runs && (
        <div className="meter" role="progressbar" aria-label={`Pull of ${p.reference}`} aria-valuemin={0} aria-valuemax={all || 1} aria-valuenow={done} aria-valuetext={all ? `${bytes(done)} of ${bytes(all)}` : "asking the registry"}>
          <span className="num">{all ? `${bytes(done)} of ${bytes(all)}` : "asking the registry"}</span>
          <div className="bar">
            <i style={{ width: `${all ? (100 * done) / all : 0}%` }} />
          </div>
        </div>
      )}
      {p.message && <p className="break">{p.message}</p>}
      {p.warnings?.map((w) => (
        <p key={w} className="break dim">
          {w}
        </p>
      ))}
      <Failure error={end.error ?? retry.error} />
    </div>
  );
}
