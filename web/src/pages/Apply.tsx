import { Button, Checkbox, FileButton, Textarea } from "@mantine/core";
import { IconFileUpload } from "@tabler/icons-react";
import { useState } from "react";
import { useLocation } from "react-router";
import { apply } from "../api/actions";
import { ApiError, asApiError } from "../api/client";
import { useMay } from "../api/session";
import type { ApplyResult } from "../api/types";
import { Failure, Notice, PageHead, Panel, SameAs } from "../ui/basic";
import { Changes } from "../ui/Changes";
import { readDocument, withLines } from "../ui/doc";

const example = `# Two namespaces with a firewall between them. First, as root: ip netns add alice; ip netns add bob
endpoints:
  alice: {netns: alice, interface: eth0, address: 10.9.0.1/24}
  bob:   {netns: bob, interface: eth0, address: 10.9.0.2/24}
functions:
  fw: {image: firewall, config: {allow: [tcp/80, icmp]}}
chains:
  web: fw
policies:
  guests: {from: alice, to: bob, match: [tcp, icmp], chain: web}
`;
const maxText = 8 << 20;

export default function Apply() {
  const may = useMay("operator");
  const given: unknown = (useLocation().state as { text?: unknown } | null)?.text; // an example that another page has
  const [text, setText] = useState(typeof given === "string" ? given : "");
  const [prune, setPrune] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const [result, setResult] = useState<{ plan: boolean; of: string; r: ApplyResult }>();

  const run = async (plan: boolean) => {
    setBusy(true);
    setError(undefined);
    setResult(undefined);
    try {
      const { document, secrets } = readDocument(text);
      if (secrets) throw new ApiError(0, "Secrets", "The section secrets names files on your machine, which this page cannot read: use weir apply for it, and leave it out here.");
      setResult({ plan, of: text + prune, r: await apply(document, plan, prune) });
    } catch (e) {
      const p = asApiError(e);
      setError(new ApiError(p.status, p.title, p.message, withLines(p.problems, text)));
    } finally {
      setBusy(false);
    }
  };
  const planned = result?.plan && result.of === text + prune;
  return (
    <div className="stack">
      <PageHead title="Apply a file" lead="Endpoints, functions, chains and policies in one text, all in one step or, if anything is wrong, not at all. The plan says first what would change." />
      <Panel
        title="File"
        right={
          <>
            <Button variant="default" onClick={() => setText(example)} disabled={text !== ""}>
              An example
            </Button>
            <FileButton onChange={(f) => void (f && f.size <= maxText ? f.text().then(setText) : f && setError(new Error("The file is larger than 8 MiB.")))} accept=".yaml,.yml,.json">
              {(props) => (
                <Button variant="default" leftSection={<IconFileUpload size={14} />} {...props}>
                  Open
                </Button>
              )}
            </FileButton>
          </>
        }
      >
        <div className="stack">
          <Textarea className="editor" aria-label="The file, as YAML" autosize minRows={12} maxRows={32} spellCheck={false} value={text} onChange={(e) => setText(e.currentTarget.value)} placeholder="endpoints: ..." />
          <Checkbox size="xs" label="Also delete what the file does not name (--prune)" checked={prune} onChange={(e) => setPrune(e.currentTarget.checked)} />
          <Failure error={error} />
          <div className="row">
            <Button variant={planned ? "default" : "filled"} onClick={() => void run(true)} loading={busy} disabled={!text.trim() || !may.ok}>
              Plan
            </Button>
            <Button variant={planned ? "filled" : "default"} onClick={() => void run(false)} loading={busy} disabled={!text.trim() || !may.ok || !planned} color={prune ? "red.8" : undefined}>
              Apply
            </Button>
            {may.why && <span className="dim">{may.why}</span>}
          </div>
        </div>
      </Panel>
      {result && (
        <Panel title={result.plan ? "The plan: nothing has changed yet" : "Applied"}>
          <div className="stack">
            {result.r.warnings?.map((w) => (
              <Notice key={w} level="warn">
                {w}
              </Notice>
            ))}
            <Changes changes={result.r.changes ?? []} />
          </div>
        </Panel>
      )}
      <SameAs text={`weir apply -f FILE${prune ? " --prune" : ""}${planned ? "" : " --plan"}`} />
    </div>
  );
}
