import { Autocomplete, Button, Checkbox, MultiSelect, NumberInput, SegmentedControl, Select, TagsInput, Textarea, TextInput } from "@mantine/core";
import { useMemo, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { parse, stringify } from "yaml";
import { apply } from "../../api/actions";
import { asApiError } from "../../api/client";
import { imageOf, useImages, type Image } from "../../api/images";
import { useList } from "../../api/live";
import { useMay } from "../../api/session";
import type { ApplyResult, FunctionSpec } from "../../api/types";
import { Failure, Notice, PageHead, Panel, SameAs } from "../../ui/basic";
import { Changes } from "../../ui/Changes";
import { plural } from "../../ui/format";
import { fieldsOf, type Config } from "../../ui/schema";
import { SchemaForm } from "../../ui/SchemaForm";
import { commandOf, documentOf, maxCount, namesOf, type Wanted } from "./build";

const runtimes = ["native", "oci", "docker", "lxc", "nspawn", "rkt", "kvm", "bare"];

export default function Create() {
  const [query] = useSearchParams();
  const may = useMay("operator");
  const go = useNavigate();
  const images = useImages();
  const endpoints = useList("endpoint");
  const hosts = useList("host");
  const [name, setName] = useState("");
  const [how, setHow] = useState<Wanted["how"]>("one");
  const [count, setCount] = useState<number | string>(2);
  const [chosen, setChosen] = useState<string[]>([]);
  const [steer, setSteer] = useState(true);
  const [start, setStart] = useState(true);
  const [spec, setSpec] = useState<FunctionSpec>({ image: query.get("image") ?? "" });
  const [config, setConfig] = useState<Config>({});
  const [env, setEnv] = useState("");
  const [more, setMore] = useState(false);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const [planned, setPlanned] = useState<{ of: string; r: ApplyResult }>();

  const set = (change: Partial<FunctionSpec>) => setSpec((s) => Object.fromEntries(Object.entries({ ...s, ...change }).filter(([, v]) => v !== undefined && v !== "" && !(Array.isArray(v) && v.length === 0))) as FunctionSpec);
  const image = imageOf(images.data?.items ?? undefined, spec.image ?? "");
  const wanted: Wanted = useMemo(() => {
    const vars = Object.fromEntries(
      env
        .split("\n")
        .filter((l) => l.includes("="))
        .map((l) => [l.slice(0, l.indexOf("=")).trim(), l.slice(l.indexOf("=") + 1)]),
    );
    const whole: FunctionSpec = { ...spec, image: spec.image ?? "" };
    if (Object.keys(config).length) whole.config = config;
    if (Object.keys(vars).length) whole.env = vars;
    if (!start) whole.state = "created";
    return { name: name.trim(), how, count: Number(count) || 0, endpoints: chosen, steer, spec: whole };
  }, [name, how, count, chosen, steer, start, spec, config, env]);
  const names = namesOf(wanted);
  const text = JSON.stringify(wanted);
  const ready = may.ok && !!wanted.name && !!wanted.spec.image && names.length > 0;

  const run = async (plan: boolean) => {
    setBusy(true);
    setError(undefined);
    try {
      const r = await apply(documentOf(wanted), plan);
      if (plan) setPlanned({ of: text, r });
      else void go(names.length === 1 ? `/functions/${encodeURIComponent(names[0]!)}` : `/functions?q=${encodeURIComponent(wanted.name)}`);
    } catch (e) {
      setError(asApiError(e));
    } finally {
      setBusy(false);
    }
  };
  const current = planned?.of === text ? planned.r : undefined;
  const overwrites = current?.changes?.some((c) => c.action === "update");
  return (
    <div className="stack">
      <PageHead title="New function" crumb={{ to: "/functions", text: "Functions" }} lead="One function, several alike, or one for each of some endpoints. The plan shows what would be made before it is." />
      <form
        className="two"
        onSubmit={(e) => {
          e.preventDefault();
          if (ready && !busy) void run(!current);
        }}
      >
        <div className="stack">
          <Panel title="What">
            <div className="stack">
              <Autocomplete label="Image" description="What runs. Images that a host has are offered; others are pulled where a host may." required data={(images.data?.items ?? []).map((i) => i.name).filter((n, i, all) => all.indexOf(n) === i)} value={spec.image ?? ""} onChange={(v) => set({ image: v })} maxDropdownHeight={300} limit={50} />
              {image && <About image={image} />}
              <SegmentedControl
                size="xs"
                aria-label="How many"
                value={how}
                onChange={(v) => setHow(v as Wanted["how"])}
                data={[
                  { value: "one", label: "One" },
                  { value: "count", label: "Several alike" },
                  { value: "endpoints", label: "One for each endpoint" },
                ]}
              />
              <TextInput label={how === "one" ? "Name" : "Name, before each number or endpoint"} required value={name} onChange={(e) => setName(e.currentTarget.value)} placeholder="fw" spellCheck={false} />
              {how === "count" && <NumberInput label="How many" min={1} max={maxCount} allowDecimal={false} value={count} onChange={setCount} />}
              {how === "endpoints" && (
                <>
                  <MultiSelect label="Endpoints" data={(endpoints ?? []).map((e) => e.name)} value={chosen} onChange={setChosen} searchable placeholder={endpoints?.length ? undefined : "there are none yet"} />
                  <Checkbox size="xs" label="All traffic of each endpoint goes through its function (a chain and an exhaustive policy each)" checked={steer} onChange={(e) => setSteer(e.currentTarget.checked)} />
                </>
              )}
              {names.length > 1 && <p className="dim break">{plural(names.length, "function")}: {names.slice(0, 6).join(", ")}{names.length > 6 && ", ..."}</p>}
            </div>
          </Panel>
          <ConfigPanel key={image?.digest ?? "none"} schema={image?.config_schema} config={config} onChange={setConfig} />
          <Panel
            title="How it runs"
            right={
              <Button variant="default" onClick={() => setMore(!more)} aria-expanded={more}>
                {more ? "Less" : "More"}
              </Button>
            }
          >
            <div className="grid">
              <Select label="When it is down" description="what happens to its traffic" data={[{ value: "drop", label: "drop it (default)" }, { value: "bypass", label: "bypass: go round it" }]} value={spec.on_fail ?? "drop"} onChange={(v) => set({ on_fail: v === "bypass" ? "bypass" : undefined })} allowDeselect={false} />
              <Select label="Host" description="default: the manager chooses" data={(hosts ?? []).map((h) => h.name)} value={spec.host ?? null} onChange={(v) => set({ host: v ?? undefined })} clearable searchable placeholder="any" />
              <TextInput label="Processors" description="cores at most, for example 0.5" value={spec.cpus ?? ""} onChange={(e) => set({ cpus: e.currentTarget.value })} placeholder="the host's default" />
              <TextInput label="Memory" description="at most, for example 64M" value={spec.memory ?? ""} onChange={(e) => set({ memory: e.currentTarget.value })} placeholder="the host's default" />
              {more && (
                <>
                  <Select label="Runtime" description="what runs it" data={runtimes} value={spec.runtime ?? null} onChange={(v) => set({ runtime: v ?? undefined })} clearable placeholder="the host's default" />
                  <TextInput label="On processors" description="for example 0-3,5" value={spec.cpuset ?? ""} onChange={(e) => set({ cpuset: e.currentTarget.value })} placeholder="all" />
                  <TagsInput label="Command" description="in place of the image's; a word each" value={spec.command ?? []} onChange={(v) => set({ command: v })} allowDuplicates />
                  <TagsInput label="Secrets" description="NAME or NAME:/PATH" value={spec.secrets ?? []} onChange={(v) => set({ secrets: v })} />
                  <TagsInput label="Allowed capabilities" description="that the image asks for and need your word" data={image?.capabilities ?? []} value={spec.allow ?? []} onChange={(v) => set({ allow: v })} />
                  <Textarea label="Environment" description="NAME=value, one a line" autosize minRows={2} value={env} onChange={(e) => setEnv(e.currentTarget.value)} className="editor" spellCheck={false} />
                </>
              )}
            </div>
          </Panel>
        </div>
        <div className="stack">
          <Panel title={current ? "The plan" : "Make it"}>
            <div className="stack">
              <Checkbox size="xs" label="Start at once" checked={start} onChange={(e) => setStart(e.currentTarget.checked)} />
              <Failure error={error ?? images.error} />
              {images.data?.warnings?.map((w) => (
                <Notice key={w} level="warn">
                  {w}
                </Notice>
              ))}
              {current && (
                <>
                  {overwrites && <Notice level="warn">Something of this name is there already: it would be changed.</Notice>}
                  {current.warnings?.map((w) => (
                    <Notice key={w} level="warn">
                      {w}
                    </Notice>
                  ))}
                  <Changes changes={current.changes ?? []} brief />
                </>
              )}
              <div className="row">
                <Button type="submit" loading={busy} disabled={!ready}>
                  {current ? (overwrites ? "Apply" : "Create") : "Plan"}
                </Button>
                {may.why && <span className="dim">{may.why}</span>}
              </div>
            </div>
          </Panel>
          {wanted.name && wanted.spec.image && <SameAs text={commandOf(wanted)} />}
        </div>
      </form>
    </div>
  );
}

/** What an image says of itself. */
export function About({ image }: { image: Image }) {
  return (
    <div className="stack" style={{ gap: "0.35rem" }}>
      {image.description && <p className="break">{image.description}</p>}
      <div className="row">
        <span className="tag">{image.tap ? "port tap" : "ports in, out"}</span>
        {image.probe && <span className="tag">probe</span>}
        {image.forwarder && <span className="tag">forwarder {image.forwarder}</span>}
        {image.capabilities?.map((c) => (
          <span key={c} className="tag">
            {c}
          </span>
        ))}
        {image.rewrites?.length ? <span className="tag">rewrites {image.rewrites.join(", ")}</span> : null}
      </div>
    </div>
  );
}

/** A config as a form, where the image has a schema, or as YAML. */
export function ConfigPanel({ schema, config, onChange }: { schema: unknown; config: Config; onChange: (c: Config) => void }) {
  const fields = useMemo(() => fieldsOf(schema), [schema]);
  const [asText, setAsText] = useState(false);
  const yaml = asText || !fields;
  return (
    <Panel
      title="Config"
      right={
        fields && (
          <SegmentedControl
            size="xs"
            aria-label="Config as"
            value={yaml ? "yaml" : "form"}
            onChange={(v) => setAsText(v === "yaml")}
            data={[
              { value: "form", label: "Form" },
              { value: "yaml", label: "YAML" },
            ]}
          />
        )
      }
    >
      {yaml ? <ConfigText config={config} onChange={onChange} /> : <SchemaForm fields={fields} config={config} onChange={onChange} />}
    </Panel>
  );
}

function ConfigText({ config, onChange }: { config: Config; onChange: (c: Config) => void }) {
  const [text, setText] = useState(() => (Object.keys(config).length ? stringify(config) : ""));
  const [error, setError] = useState("");
  return (
    <Textarea
      className="editor"
      aria-label="Config as YAML"
      description="What the function is told. Without a schema of its image any config will do."
      autosize
      minRows={4}
      maxRows={24}
      spellCheck={false}
      value={text}
      error={error || undefined}
      onChange={(e) => {
        const t = e.currentTarget.value;
        setText(t);
        try {
          const v: unknown = parse(t, { maxAliasCount: 100 });
          if (v !== null && v !== undefined && (typeof v !== "object" || Array.isArray(v))) throw new Error("want members such as: allow: [tcp/80]");
          setError("");
          onChange((v ?? {}) as Config);
        } catch (x) {
          setError(x instanceof Error ? x.message : String(x));
        }
      }}
    />
  );
}
