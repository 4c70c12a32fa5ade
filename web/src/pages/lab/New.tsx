import { Button, Checkbox, Fieldset, NumberInput, Select } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { useAction } from "../../api/actions";
import { startLab, useLabDoctor, useLabRuns, useLabStudies, type LabDoctor, type LabPart, type LabStudy } from "../../api/lab";
import { useMay } from "../../api/session";
import { Failure, Loading, Notice, PageHead, Panel, SameAs, State, Time } from "../../ui/basic";
import { command, duration, plural } from "../../ui/format";
import { factorsOf, onlyOf, takes, type Choice } from "./choice";

export default function New() {
  const studies = useLabStudies();
  const runs = useLabRuns();
  const admin = useMay("admin");
  const doctor = useLabDoctor(admin.ok);
  const [query, setQuery] = useSearchParams();
  if (studies.isPending) return <Loading />;
  const head = <PageHead title="New run" crumb={{ to: "/lab", text: "Lab" }} lead="A quick run of a study: few and short trials, enough to see large differences." />;
  if (!studies.data)
    return (
      <div className="stack">
        {head}
        <Failure error={studies.error} />
      </div>
    );
  const items = studies.data.items;
  const study = items.find((s) => s.name === query.get("study")) ?? items.find((s) => s.name === "wires") ?? items[0]!;
  return (
    <div className="stack">
      {head}
      <Notice level="warn">
        <strong>A run takes the processors of this machine.</strong> Traffic through its functions is slower meanwhile, and disturbs what is measured. The run makes network namespaces and containers of its own,
        and removes them at the end. Functions come before it where both want a processor; packets in the kernel do not.
      </Notice>
      {!admin.ok && <Notice level="warn">{admin.why}</Notice>}
      {runs.data?.refused && <Notice level="bad">No run can be started now: {runs.data.refused}.</Notice>}
      <Machine doctor={doctor.data} pending={doctor.isLoading} error={doctor.error} />
      <Panel title="Study">
        <div className="stack">
          <Select label="Study" data={items.map((s) => ({ value: s.name, label: `${s.name}: ${s.title}` }))} value={study.name} onChange={(v) => setQuery(v ? { study: v } : {}, { replace: true })} allowDeselect={false} />
          {study.about && <p className="dim">{study.about}</p>}
        </div>
      </Panel>
      <Form key={study.name} study={study} doctor={doctor.data} blocked={!admin.ok || !!runs.data?.refused} />
    </div>
  );
}

/** What makes figures noisy here. */
function Machine({ doctor, pending, error }: { doctor?: LabDoctor; pending: boolean; error: unknown }) {
  if (pending) return <Notice level="busy">Looking at what this machine can measure: that takes some seconds.</Notice>;
  if (error) return <Failure error={error} />;
  if (!doctor) return null;
  const noisy = ["cpus", "memory", "steal", "quiet", "canary", "leftovers", "root"];
  const notes = doctor.findings.filter((f) => !f.ok && noisy.includes(f.topic));
  return (
    <Panel title="This machine" right={<span className="dim">looked at <Time at={doctor.time} /></span>}>
      {notes.length ? (
        <dl className="kv">
          {notes.map((f, i) => (
            <div key={i} style={{ display: "contents" }}>
              <dt>
                <State level="warn">{f.topic}</State>
              </dt>
              <dd>{f.detail}</dd>
            </div>
          ))}
        </dl>
      ) : (
        <State level="ok">It is quiet and large enough.</State>
      )}
    </Panel>
  );
}

function Form({ study, doctor, blocked }: { study: LabStudy; doctor?: LabDoctor; blocked: boolean }) {
  const go = useNavigate();
  const queries = useQueryClient();
  const first = study.parts[0]!.name;
  const [choice, setChoice] = useState<Choice>({ parts: [first], without: {} });
  const [seed, setSeed] = useState<number | "">("");
  const here = doctor?.studies.find((s) => s.study === study.name);
  const parts = study.parts.filter((p) => choice.parts.includes(p.name));
  const only = onlyOf(study, choice);
  const ns = takes(parts);
  const words = ["weir", "lab", "run", study.name, "--quick", ...(only ? ["--only", only] : []), ...(seed ? ["--seed", String(seed)] : [])];
  const begin = useAction(async () => {
    const run = await startLab({ study: study.name, only: only || undefined, seed: seed || undefined });
    await queries.invalidateQueries({ queryKey: ["lab", "runs"] });
    void go(`/lab/runs/${encodeURIComponent(run.name)}`);
  });
  const toggle = (list: string[], x: string) => (list.includes(x) ? list.filter((y) => y !== x) : [...list, x]);
  return (
    <>
      <Panel title="Parts" right={<span className="dim">each answers one question</span>} flush>
        {study.parts.map((p) => (
          <div key={p.name} className="cond">
            <Checkbox
              checked={choice.parts.includes(p.name)}
              onChange={() => setChoice({ ...choice, parts: toggle(choice.parts, p.name) })}
              label={
                <>
                  <span className="mono">{p.name}</span> {p.question}
                </>
              }
              description={`${plural(p.trials, "trial")}, ${p.takes_ns ? "about " + duration(p.takes_ns) : "time not known"}; ${p.metrics.join("; ")}`}
            />
            <Levels part={p} here={here?.parts.find((x) => x.part === p.name)} />
          </div>
        ))}
      </Panel>
      {parts.length > 0 && (
        <Panel title="Levels" right={<span className="dim">fewer make a shorter run</span>}>
          <div className="grid">
            {factorsOf(parts).map((f) => (
              <Fieldset key={f.name} legend={f.name}>
                <div className="row" style={{ gap: "0.4rem 1rem" }}>
                  {f.levels.map((l) => (
                    <Checkbox
                      key={l}
                      label={
                        <span className="mono">
                          {l}
                          {f.fixed.includes(l) && <span className="dim"> baseline</span>}
                        </span>
                      }
                      checked={f.fixed.includes(l) || !(choice.without[f.name] ?? []).includes(l)}
                      disabled={f.fixed.includes(l)}
                      onChange={() => setChoice({ ...choice, without: { ...choice.without, [f.name]: toggle(choice.without[f.name] ?? [], l) } })}
                    />
                  ))}
                </div>
              </Fieldset>
            ))}
          </div>
        </Panel>
      )}
      <Panel>
        <div className="stack">
          <NumberInput
            label="Seed"
            description="of the order of trials; none: a random one"
            value={seed}
            onChange={(v) => setSeed(typeof v === "number" ? v : "")}
            min={1}
            max={2 ** 32}
            allowDecimal={false}
            allowNegative={false}
            style={{ maxWidth: "16rem" }}
          />
          <p>
            {parts.length === 0
              ? "Choose a part."
              : ns === undefined
                ? "How long it takes is not known: the page says it as it goes, and the run can be cancelled and continued."
                : `It takes about ${duration(ns)} with all levels, as measured on a machine of 2 CPUs. It can be cancelled and continued.`}
          </p>
          <Failure error={begin.error} />
          <SameAs text={command(...words)} />
          <div className="row">
            <Button disabled={blocked || parts.length === 0} loading={begin.isPending} onClick={() => begin.mutate()}>
              Start
            </Button>
          </div>
        </div>
      </Panel>
    </>
  );
}

/** Which levels of a part can be measured here, and why the others cannot. */
function Levels({ part, here }: { part: LabPart; here?: { ok: string[]; skipped: { level: string; reason: string }[] } }) {
  if (!here) return null;
  return (
    <div style={{ paddingLeft: "2rem" }}>
      <span className="row" style={{ gap: "0.35rem" }}>
        <span className="label">{part.compare}</span>
        {here.ok.map((l) => (
          <span key={l} className="tag">
            {l}
          </span>
        ))}
        {here.ok.length === 0 && <State level="bad">nothing of it can be measured here</State>}
      </span>
      {here.skipped.length > 0 && (
        <details>
          <summary className="dim" style={{ cursor: "pointer", padding: "0.25rem 0" }}>
            {plural(here.skipped.length, "level")} cannot be measured here
          </summary>
          <dl className="kv">
            {here.skipped.map((s) => (
              <div key={s.level} style={{ display: "contents" }}>
                <dt className="mono">{s.level}</dt>
                <dd>{s.reason}</dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </div>
  );
}
