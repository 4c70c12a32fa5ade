// JSON Schema of functions' config, as far as a form can show it. A schema comes with an image and may be hostile: it is bounded, and what is not
// understood is a field of YAML. What is right the manager decides.

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  minimum?: number;
  maximum?: number;
  pattern?: string;
  properties?: Record<string, Schema | boolean>;
  required?: string[];
  items?: Schema | boolean;
  anyOf?: (Schema | boolean)[];
  $ref?: string;
  $defs?: Record<string, Schema>;
  definitions?: Record<string, Schema>;
}

export type Field = { name: string; path: string[]; label: string; help: string; required: boolean; fallback: string } & (
  | { kind: "text"; pattern?: string }
  | { kind: "number"; whole: boolean; min?: number; max?: number }
  | { kind: "choice"; options: string[] }
  | { kind: "boolean" }
  | { kind: "list"; options?: string[]; mixed?: boolean } // mixed: an entry may be more than a text
  | { kind: "group"; fields: Field[] }
  | { kind: "yaml" }
);

const maxFields = 200;
const maxDepth = 5;

/** The fields of an object's schema; undefined if it has none that a form can show. */
export function fieldsOf(root: unknown): Field[] | undefined {
  if (!isSchema(root)) return undefined;
  let left = maxFields;
  const walk = (schema: Schema, path: string[]): Field[] => {
    const out: Field[] = [];
    for (const [name, raw] of Object.entries(schema.properties ?? {})) {
      if (left-- <= 0) break;
      const s = resolve(root, raw);
      const at = [...path, name];
      const base = { name, path: at, label: name, help: text(s?.description) || text(isSchema(raw) ? raw.description : ""), required: !!schema.required?.includes?.(name), fallback: s?.default === undefined ? "" : shown(s.default) };
      out.push(s ? { ...base, ...kindOf(root, s, at, walk) } : { ...base, kind: "yaml" });
    }
    return out;
  };
  const top = resolve(root, root);
  return top?.properties && Object.keys(top.properties).length ? walk(top, []) : undefined;
}

type Kinded = Field extends infer F ? (F extends Field ? Omit<F, "name" | "path" | "label" | "help" | "required" | "fallback"> : never) : never;

function kindOf(root: Schema, s: Schema, path: string[], walk: (s: Schema, path: string[]) => Field[]): Kinded {
  const words = strings(s.enum);
  if (words) return { kind: "choice", options: words };
  switch (s.type) {
    case "string":
      return { kind: "text", pattern: typeof s.pattern === "string" ? s.pattern : undefined };
    case "boolean":
      return { kind: "boolean" };
    case "integer":
    case "number":
      return { kind: "number", whole: s.type === "integer", min: num(s.minimum), max: num(s.maximum) };
    case "array": {
      const item = s.items === undefined ? undefined : resolve(root, s.items);
      if (item && (item.type === "string" || strings(item.enum))) return { kind: "list", options: strings(item.enum) };
      if (Array.isArray(item?.anyOf) && item.anyOf.slice(0, 8).some((x) => resolve(root, x)?.type === "string")) return { kind: "list", mixed: true };
      return { kind: "yaml" };
    }
    case "object":
      if (s.properties && path.length < maxDepth) return { kind: "group", fields: walk(s, path) };
  }
  return { kind: "yaml" };
}

const isSchema = (v: unknown): v is Schema => typeof v === "object" && v !== null && !Array.isArray(v);
const text = (v: unknown) => (typeof v === "string" ? v.slice(0, 600) : "");
const num = (v: unknown) => (typeof v === "number" ? v : undefined);
const strings = (v: unknown): string[] | undefined => (Array.isArray(v) && v.length > 0 && v.every((x) => typeof x === "string") ? [...new Set(v as string[])].slice(0, 500) : undefined);
const shown = (v: unknown) => (typeof v === "string" ? v : JSON.stringify(v) ?? "").slice(0, 200);

/** Follows references within the document, a few of them. */
function resolve(root: Schema, raw: unknown): Schema | undefined {
  let s: unknown = raw;
  for (let i = 0; i < 8; i++) {
    if (!isSchema(s)) return undefined;
    if (typeof s.$ref !== "string") return s;
    if (!s.$ref.startsWith("#/")) return undefined;
    const { $ref, ...beside } = s;
    let at: unknown = root;
    for (const step of $ref.slice(2).split("/")) at = isSchema(at) && Object.hasOwn(at, unescape(step)) ? (at as Record<string, unknown>)[unescape(step)] : undefined;
    s = isSchema(at) ? { ...at, ...beside } : undefined;
  }
  return undefined;
}

const unescape = (s: string) => s.replaceAll("~1", "/").replaceAll("~0", "~");

export type Config = Record<string, unknown>;

/** What stands at a path. */
export function valueAt(config: Config, path: string[]): unknown {
  let v: unknown = config;
  for (const step of path) v = isSchema(v) && Object.hasOwn(v, step) ? (v as Record<string, unknown>)[step] : undefined;
  return v;
}

/** A config with another value at a path; undefined takes it out, and groups that are empty then. */
export function withValue(config: Config, path: string[], value: unknown): Config {
  const [step, ...rest] = path as [string, ...string[]];
  const old = Object.hasOwn(config, step) ? config[step] : undefined;
  let next = value;
  if (rest.length) {
    next = withValue(isSchema(old) ? (old as Config) : {}, rest, value);
    if (Object.keys(next as Config).length === 0) next = undefined;
  }
  const out = Object.fromEntries(Object.entries(config).filter(([k]) => k !== step || next !== undefined)); // fromEntries defines: __proto__ is a name like others
  if (next !== undefined) Object.defineProperty(out, step, { value: next, enumerable: true, writable: true, configurable: true });
  return out;
}
