// A form for a function's config, made from its image's schema.
import { Fieldset, NumberInput, Select, TagsInput, Textarea, TextInput } from "@mantine/core";
import { useState } from "react";
import { parse, stringify } from "yaml";
import { valueAt, withValue, type Config, type Field } from "./schema";

interface Props {
  fields: Field[];
  config: Config;
  onChange: (c: Config) => void;
}

export function SchemaForm({ fields, config, onChange }: Props) {
  return (
    <div className="stack">
      {fields.map((f) => (
        <Input key={f.path.join(".")} f={f} config={config} onChange={onChange} />
      ))}
    </div>
  );
}

function Input({ f, config, onChange }: { f: Field; config: Config; onChange: (c: Config) => void }) {
  const value = valueAt(config, f.path);
  const set = (v: unknown) => onChange(withValue(config, f.path, v));
  const common = { label: f.label, description: [f.help, f.kind === "list" && f.mixed && "entries that are more than a text: as YAML"].filter(Boolean).join("; ") || undefined, required: f.required, placeholder: f.fallback ? `default ${f.fallback}` : undefined };
  switch (f.kind) {
    case "text":
      return <TextInput {...common} value={typeof value === "string" ? value : ""} onChange={(e) => set(e.currentTarget.value || undefined)} />;
    case "number":
      return <NumberInput {...common} value={typeof value === "number" ? value : ""} min={f.min} max={f.max} allowDecimal={!f.whole} clampBehavior="none" onChange={(v) => set(typeof v === "number" ? v : undefined)} />;
    case "choice":
      return <Select {...common} data={f.options} value={typeof value === "string" ? value : null} onChange={(v) => set(v ?? undefined)} clearable={!f.required} />;
    case "boolean":
      return (
        <Select
          {...common}
          data={[
            { value: "true", label: "yes" },
            { value: "false", label: "no" },
          ]}
          placeholder={f.fallback ? `default ${f.fallback === "true" ? "yes" : "no"}` : undefined}
          value={typeof value === "boolean" ? String(value) : null}
          onChange={(v) => set(v === null ? undefined : v === "true")}
          clearable
        />
      );
    case "list": {
      if (f.mixed && Array.isArray(value) && value.some((v) => typeof v !== "string")) return <Yaml f={f} value={value} set={set} />;
      const list = Array.isArray(value) ? value.filter((v): v is string => typeof v === "string") : [];
      return <TagsInput {...common} placeholder={list.length ? undefined : (common.placeholder ?? "type a value, then Enter")} data={f.options ?? []} value={list} acceptValueOnBlur splitChars={[","]} onChange={(v) => set(v.length ? v : undefined)} />;
    }
    case "group":
      return (
        <Fieldset legend={f.label}>
          {f.help && <p className="dim" style={{ marginBottom: "0.75rem" }}>{f.help}</p>}
          <SchemaForm fields={f.fields} config={config} onChange={onChange} />
        </Fieldset>
      );
    case "yaml":
      return <Yaml f={f} value={value} set={set} />;
  }
}

function Yaml({ f, value, set }: { f: Field; value: unknown; set: (v: unknown) => void }) {
  const [text, setText] = useState(() => (value === undefined ? "" : stringify(value)));
  const [error, setError] = useState("");
  return (
    <Textarea
      className="editor"
      label={f.label}
      description={f.help || "as YAML"}
      required={f.required}
      autosize
      minRows={2}
      maxRows={12}
      spellCheck={false}
      value={text}
      error={error || undefined}
      onChange={(e) => {
        setText(e.currentTarget.value);
        try {
          const v: unknown = parse(e.currentTarget.value, { maxAliasCount: 100 });
          setError("");
          set(v ?? undefined);
        } catch (e) {
          setError(e instanceof Error ? e.message : String(e));
        }
      }}
    />
  );
}
