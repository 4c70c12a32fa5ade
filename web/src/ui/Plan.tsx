// Plan, then apply: what a document would change is asked while it is being written, and only what is shown can be applied.
import { Button, Modal } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { Link } from "react-router";
import { apply } from "../api/actions";
import { ApiError, asApiError } from "../api/client";
import { useMay } from "../api/session";
import type { ApplyResult, Document, Problem } from "../api/types";
import { carryOut, deletionPatience, deletionPause, remember, specIn, undoOf, useUndo, type Undo } from "../api/undo";
import { applyCommand } from "../pages/functions/build";
import { Failure, Notice, Panel, SameAs } from "./basic";
import { Changes } from "./Changes";
import { command } from "./format";
import { Named } from "./Named";

const settle = 350; // ms without typing

export interface Planned {
  text: string;
  /** Of exactly this document. */
  result?: ApplyResult;
  error?: ApiError;
  /** An object of it is still being deleted: the plan is asked for until that is gone. */
  waits?: string;
  busy: boolean;
}

const goes = (e: unknown) => e instanceof ApiError && e.deleting;

/** What the document would change. Undefined is a document that is not complete yet. An undo may come before the end of the deletion that it undoes: it is patient. */
export function usePlan(document: Document | undefined, patient = false): Planned {
  const may = useMay("operator");
  const text = document ? JSON.stringify(document) : "";
  const [settled] = useDebouncedValue(text, settle);
  const q = useQuery<ApplyResult>({
    queryKey: ["plan", settled],
    enabled: !!settled && may.ok,
    gcTime: 0,
    staleTime: 0,
    ...(patient && { retry: (n: number, e: Error) => goes(e) && n < deletionPatience / deletionPause, retryDelay: deletionPause }),
    queryFn: () => apply(JSON.parse(settled) as Document, true),
  });
  const current = settled === text && !!text;
  const waits = current && q.isFetching && goes(q.failureReason) ? asApiError(q.failureReason).message : undefined;
  return { text, result: current && !q.isFetching ? q.data : undefined, error: current && q.error ? asApiError(q.error) : undefined, waits, busy: !!text && (!current || q.isFetching) };
}

/** What the API says about a field of the document: "policies.guests.match" with what is below it. */
export function problemsAt(p: Planned, path: string): string | undefined {
  return p.error?.problems
    .filter((x) => at(x, path))
    .map((x) => x.message + (x.hint ? ` (${x.hint})` : ""))
    .join("; ") || undefined;
}

const bare = (p: Problem) => (p.path ?? "").replace(/^document\./, "");
const at = (p: Problem, path: string) => bare(p) === path || bare(p).startsWith(path + ".") || bare(p).startsWith(path + "[");

interface Props {
  document: Document | undefined;
  planned: Planned;
  /** What is missing before there is anything to plan. */
  missing?: string;
  verb?: string;
  done: string;
  onDone: () => void;
  /** For conflicts: what one can do about them here. */
  onPriority?: (n: number) => void;
}

export function PlanPanel({ document, planned, missing, verb = "Apply", done, onDone, onPriority }: Props) {
  const may = useMay("operator");
  const queries = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const changes = planned.result?.changes?.filter((c) => c.action !== "unchanged") ?? [];
  const run = async () => {
    if (!document || !planned.result) return;
    setBusy(true);
    setError(undefined);
    const undo = undoOf(planned.result.changes ?? [], specIn(queries));
    try {
      await apply(document);
      remember(undo);
      notifications.show({ message: done, autoClose: 4000 });
      onDone();
    } catch (e) {
      setError(e);
    } finally {
      setBusy(false);
    }
  };
  const shown = error ?? planned.error;
  return (
    <Panel title="Plan" right={<span className="label" role="status">{planned.busy ? "asking" : planned.result ? "nothing has changed yet" : ""}</span>}>
      <div className="stack">
        {!document && <p className="dim">{missing ?? "What would change, and who notices, is shown here before anything does."}</p>}
        {may.why && <Notice level="warn">{may.why}</Notice>}
        {shown ? <Refused error={shown} onPriority={onPriority} /> : null}
        {planned.result?.warnings?.map((w) => (
          <Notice key={w} level="warn">
            {w}
          </Notice>
        ))}
        {planned.result && <Changes changes={planned.result.changes ?? []} />}
        <div className="row">
          <Button onClick={() => void run()} loading={busy} disabled={!may.ok || !planned.result || changes.length === 0}>
            {verb}
          </Button>
          {planned.result && changes.length === 0 && <span className="dim">There is nothing to apply.</span>}
        </div>
        {document && <SameAs text={applyCommand(document)} />}
      </div>
    </Panel>
  );
}

const conflict = /^conflicts with policy "([^"]+)": both have the priority (\d+) and select this packet: ((?:[^,]|,(?! entering))+), (.*)$/;

/** What the API refuses; of two policies that contradict each other, the packet that both want. */
export function Refused({ error, onPriority }: { error: unknown; onPriority?: (n: number) => void }) {
  const e = asApiError(error);
  const all = e.problems.map((p) => ({ p, m: conflict.exec(p.message) }));
  const conflicts = all.filter((x) => x.m);
  if (!conflicts.length) return <Failure error={error} />;
  const others = all.filter((x) => !x.m).map((x) => x.p);
  return (
    <>
      {conflicts.map(({ p, m }, i) => (
        <Notice key={i} level="bad" role="alert">
          <strong>
            Conflict with policy <Named kind="policy" name={m![1]!} />
          </strong>
          <p>
            Both have the priority {m![2]} and select this packet, {m![4]}:
          </p>
          <pre className="witness">{m![3]}</pre>
          <p className="dim">{p.hint}</p>
          {onPriority && Number(m![2]) < 1000 && (
            <div className="row" style={{ marginTop: "0.5rem" }}>
              <Button variant="default" onClick={() => onPriority(Number(m![2]) + 1)}>
                Outrank it: priority {Number(m![2]) + 1}
              </Button>
              {Number(m![2]) > 1 && (
                <Button variant="default" onClick={() => onPriority(Number(m![2]) - 1)}>
                  Give way: priority {Number(m![2]) - 1}
                </Button>
              )}
            </div>
          )}
        </Notice>
      ))}
      {others.length > 0 && <Failure error={new ApiError(e.status, e.title, "Also:", others)} />}
    </>
  );
}

/** Offers to take back the last change that was made here. */
export function UndoButton() {
  const undo = useUndo();
  const [opened, setOpened] = useState(false);
  if (!undo) return null;
  return (
    <>
      <Button variant="default" onClick={() => setOpened(true)}>
        Undo
      </Button>
      <Modal opened={opened} onClose={() => setOpened(false)} title="Undo the last change" size="xl">
        <UndoPlan undo={undo} onClose={() => setOpened(false)} />
      </Modal>
    </>
  );
}

function UndoPlan({ undo, onClose }: { undo: Undo; onClose: () => void }) {
  const back = Object.keys(undo.former).length > 0;
  const plan = usePlan(back ? undo.former : undefined, true);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const made = Object.entries(undo.made).flatMap(([section, names]) => names.map((n) => ({ kind: section === "policies" ? "policy" : section.slice(0, -1), name: n })));
  return (
    <div className="stack">
      <p>
        What was done: <span className="mono break">{undo.what}</span>. This puts the former specs back{made.length > 0 && ", then deletes what was made"}.
      </p>
      {plan.waits && (
        <Notice level="busy" role="status">
          The deletion still goes on. The plan comes when it has ended. <span className="dim">{plan.waits}</span>
        </Notice>
      )}
      <Failure error={error ?? plan.error} />
      {goes(error ?? plan.error) && (
        <p className="dim">
          The deletion has not ended within {deletionPatience / 1000}&nbsp;s. Is the object&apos;s host there? Its page says what it waits for. Close this dialog and undo again when the object is gone: the change is still remembered.
        </p>
      )}
      {plan.result && <Changes changes={plan.result.changes ?? []} />}
      {made.length > 0 && <Changes changes={made.map((m) => ({ ...m, action: "delete" }))} />}
      <SameAs text={[back && applyCommand(undo.former), ...deletions(undo.made)].filter(Boolean).join("\n")} />
      <div className="row" style={{ justifyContent: "flex-end" }}>
        <Button variant="default" onClick={onClose}>
          Cancel
        </Button>
        <Button
          loading={busy}
          disabled={back && !plan.result}
          onClick={() => {
            setBusy(true);
            setError(undefined);
            void carryOut(undo)
              .then(() => {
                notifications.show({ message: "The last change is undone.", autoClose: 4000 });
                onClose();
              })
              .catch(setError)
              .finally(() => setBusy(false));
          }}
        >
          Undo it
        </Button>
      </div>
    </div>
  );
}

/** Users before what they use. */
const deletions = (made: Undo["made"]) => (["policies", "chains", "functions", "endpoints"] as const).flatMap((s) => (made[s]?.length ? [command("weir", "delete", s === "policies" ? "policy" : s.slice(0, -1), ...made[s])] : []));

/** A link that looks like a button of a page's head. */
export const LinkButton = ({ to, children, primary }: { to: string; children: ReactNode; primary?: boolean }) => (
  <Button component={Link} to={to} variant={primary ? "filled" : "default"}>
    {children}
  </Button>
);
