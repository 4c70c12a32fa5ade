// A function's spec: its config as a form, the rest as YAML; the plan says who would notice a change.
import { Button, Textarea } from "@mantine/core";
import { useEffect, useMemo, useState } from "react";
import { parse, stringify } from "yaml";
import { apply } from "../../api/actions";
import { asApiError } from "../../api/client";
import { imageOf, useImages } from "../../api/images";
import { useMay } from "../../api/session";
import type { ApplyResult, Func, FunctionSpec } from "../../api/types";
import { Failure, Notice, Panel, SameAs } from "../../ui/basic";
import { Changes } from "../../ui/Changes";
import type { Config } from "../../ui/schema";
import { applyCommand } from "./build";
import { ConfigPanel } from "./Create";

const restOf = ({ config: _, restart: __, state: ___, ...rest }: FunctionSpec) => stringify(rest, { lineWidth: 0 });

export default function Edit({ f }: { f: Func }) {
  const may = useMay("operator");
  const images = useImages();
  const [config, setConfig] = useState<Config>(f.spec.config ?? {});
  const [rest, setRest] = useState(() => restOf(f.spec));
  const [base, setBase] = useState(f.generation);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [planned, setPlanned] = useState<{ of: string; r: ApplyResult }>();
  const [form, setForm] = useState(0);
  const text = JSON.stringify([config, rest, f.generation]);
  const changed = rest !== restOf(f.spec) || JSON.stringify(config) !== JSON.stringify(f.spec.config ?? {});
  const reset = () => {
    setConfig(f.spec.config ?? {});
    setRest(restOf(f.spec));
    setBase(f.generation);
    setForm((n) => n + 1);
    setError(undefined);
  };
  useEffect(() => {
    if (base !== f.generation && !busy && !changed) setBase(f.generation);
  }, [base, f.generation, busy, changed]);
  const doc = useMemo(() => {
    try {
      const spec = { ...(parse(rest) as FunctionSpec) };
      if (Object.keys(config).length) spec.config = config;
      if (f.spec.state) spec.state = f.spec.state;
      return { functions: { [f.name]: spec } };
    } catch {
      return undefined;
    }
  }, [rest, config, f]);
  const run = async (plan: boolean) => {
    if (!doc) return;
    setBusy(true);
    setError(undefined);
    try {
      const r = await apply(doc, plan);
      setPlanned(plan ? { of: text, r } : undefined);
    } catch (e) {
      setError(asApiError(e));
    } finally {
      setBusy(false);
    }
  };
  const current = planned?.of === text ? planned.r : undefined;
  return (
    <div className="two">
      <div className="stack">
        <ConfigPanel key={`${form} ${imageOf(images.data?.items ?? undefined, f.spec.image)?.digest}`} schema={imageOf(images.data?.items ?? undefined, f.spec.image)?.config_schema} config={config} onChange={setConfig} />
        <Panel title="The rest of the spec">
          <Textarea className="editor" aria-label="The rest of the spec as YAML" autosize minRows={4} maxRows={30} spellCheck={false} value={rest} error={doc ? undefined : "This is no YAML."} onChange={(e) => setRest(e.currentTarget.value)} />
        </Panel>
      </div>
      <div className="stack">
        <Panel title={current ? "The plan" : "Change it"}>
          <div className="stack">
            {base !== f.generation && changed && <Notice level="warn">Somebody else has changed it meanwhile: your change would replace theirs.</Notice>}
            <p className="dim">A change makes the function anew beside the former one; traffic moves when the new one works.</p>
            <Failure error={error} />
            {current && <Changes changes={current.changes ?? []} />}
            <div className="row">
              <Button loading={busy} disabled={!may.ok || !changed || !doc} onClick={() => void run(!current)}>
                {current ? "Apply" : "Plan"}
              </Button>
              <Button variant="default" disabled={!changed} onClick={reset}>
                Take back
              </Button>
            </div>
            {may.why && <span className="dim">{may.why}</span>}
          </div>
        </Panel>
        {doc && changed && <SameAs text={applyCommand(doc)} />}
      </div>
    </div>
  );
}
