// An object as the API has it, to read and to copy.
import { stringify } from "yaml";
import { Copy } from "./basic";

export function AsYaml({ value, label }: { value: unknown; label: string }) {
  const text = stringify(value, { lineWidth: 0 });
  return (
    <div className="command" style={{ border: 0, borderRadius: "0 0 6px 6px" }}>
      <pre tabIndex={0} aria-label={label}>{text}</pre>
      <Copy text={text} />
    </div>
  );
}
