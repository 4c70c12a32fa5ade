// A policy's form: new, or another spec for one that is there. The plan beside it says what would change.
import { Autocomplete, Button, NumberInput, SegmentedControl, Select, Switch, TagsInput, TextInput } from "@mantine/core";
import { IconArrowsExchange } from "@tabler/icons-react";
import { useCallback, useMemo, useState } from "react";
import { useNavigate, useParams, useSearchParams } from "react-router";
import { imageOf, useImages } from "../../api/images";
import { useList, useObject } from "../../api/live";
import type { Func, Policy } from "../../api/types";
import { Empty, Loading, PageHead, Panel } from "../../ui/basic";
import { chainFunctions, chainsOf, isName } from "../../ui/chain";
import { ChainEditor, ChainPath } from "../../ui/ChainEditor";
import { LinkButton, PlanPanel, problemsAt, usePlan } from "../../ui/Plan";
import { documentOf, draft, draftOf, missingIn, protocols, type Draft, type Mode } from "./spec";

export default function EditPolicy() {
  const { name } = useParams();
  const p = useObject("policy", name ?? "");
  const endpoints = useList("endpoint");
  const [query] = useSearchParams();
  if (!name) return endpoints ? <Form key="new" start={draft({ chain: query.get("chain") ?? "", from: query.get("from") ?? "", to: query.get("to") ?? "" })} /> : <Loading />;
  if (p === undefined) return <Loading />;
  if (p === null) return <Empty title={`There is no policy ${name}`} action={<LinkButton to="/policies">All policies</LinkButton>} />;
  return <Form key={name} start={draftOf(p)} policy={p} />;
}

const modes: Record<Mode, string> = {
  selective: "The matched traffic is diverted through the chain; the rest is bridged normally.",
  exhaustive: "All traffic from and to one endpoint, layer 2 included. Name one endpoint; leave the other and the match out.",
  replica: "A copy of the matched traffic goes through the chain and ends there; the original takes its ordinary way.",
};

/** Tells whether an image only gets copies. */
export function useTaps() {
  const images = useImages();
  return useCallback((f: Func) => (images.data ? imageOf(images.data.items ?? undefined, f.spec.image)?.tap : undefined), [images.data]);
}

function Form({ start, policy }: { start: Draft; policy?: Policy }) {
  const functions = useList("function") ?? [];
  const chains = useList("chain") ?? [];
  const endpoints = useList("endpoint") ?? [];
  const policies = useList("policy") ?? [];
  const taps = useTaps();
  const go = useNavigate();
  const [d, setD] = useState<Draft>(() => (start.chain || policy || chains.length ? start : { ...start, newChain: { name: "", path: "" } }));
  const set = (change: Partial<Draft>) => setD((was) => ({ ...was, ...change }));
  const of = useMemo(() => chainsOf(chains), [chains]);
  const taken = !policy && policies.some((p) => p.name === d.name);
  const document = useMemo(() => (taken || !isName(d.name) ? undefined : documentOf(d, functions)), [d, functions, taken]);
  const planned = usePlan(document);
  const problem = (field: string) => problemsAt(planned, `policies.${d.name}.${field}`);
  const path = d.newChain?.path ?? chains.find((c) => c.name === d.chain)?.spec.path ?? "";
  const inChain = [...new Set(chainFunctions(path))].map((n) => functions.find((f) => f.name === n)).filter((f): f is Func => !!f);
  const names = endpoints.map((e) => e.name);
  const missing = taken ? `There is a policy ${d.name} already.` : d.name && !isName(d.name) ? "The name is 1 to 42 characters of a-z, 0-9 and inner -." : missingIn(d);
  return (
    <div className="stack">
      <PageHead title={policy ? `Change ${policy.name}` : "New policy"} crumb={policy ? { to: `/policies/${policy.name}`, text: policy.name } : { to: "/policies", text: "Policies" }} lead="Nothing changes before you apply the plan. The policy's traffic is dropped until its chain works, unless all functions say bypass." />
      <div className="plan-beside">
        <div className="stack">
          <Panel title="Which traffic">
            <div className="form">
              {!policy && <TextInput label="Name" value={d.name} onChange={(e) => set({ name: e.currentTarget.value.trim() })} error={taken || (d.name && !isName(d.name)) ? missing : undefined} placeholder="guests" data-autofocus autoFocus />}
              <div className="ends">
                <Autocomplete label="From" placeholder="any" value={d.from} onChange={(from) => set({ from })} data={["any", ...names]} error={problem("from")} limit={100} />
                <Button variant="default" px={8} aria-label="Swap from and to" onClick={() => set({ from: d.to, to: d.from })}>
                  <IconArrowsExchange size={14} />
                </Button>
                <Autocomplete label="To" placeholder="any" value={d.to} onChange={(to) => set({ to })} data={["any", ...names]} error={problem("to")} limit={100} />
              </div>
              <p className="label">An endpoint's name, an address or CIDR such as 10.9.0.0/24, a MAC, or any.</p>
              <TagsInput
                label="Match"
                description="Services at “to”: a protocol, perhaps with a port or a range"
                placeholder={d.match.length ? "" : "all, or tcp/80, udp/5000-5100, icmp"}
                value={d.match}
                onChange={(match) => set({ match: match.map((m) => m.trim()).filter(Boolean) })}
                data={protocols}
                splitChars={[",", " "]}
                acceptValueOnBlur
                error={problem("match")}
                disabled={d.mode === "exhaustive"}
              />
              <div className="modes">
                <span className="chain-label" id="mode">
                  Mode
                </span>
                <SegmentedControl size="xs" aria-labelledby="mode" value={d.mode} onChange={(v) => set({ mode: v as Mode, ...(v === "exhaustive" && { match: [] }) })} data={["selective", "exhaustive", "replica"]} />
                <span className="label">{problem("mode") ?? modes[d.mode]}</span>
              </div>
              <div className="pair">
                <NumberInput label="Priority" description="1 to 1000; the highest is taken" min={1} max={1000} value={d.priority} onChange={(v) => set({ priority: Number(v) || 100 })} error={problem("priority")} />
                <Select
                  label="Recognised by"
                  description="In the fabric's switches"
                  value={d.matchBy || "auto"}
                  allowDeselect={false}
                  onChange={(v) => set({ matchBy: v === "auto" ? "" : (v as "ip" | "mac") })}
                  data={[
                    { value: "auto", label: "address, MAC if unknown" },
                    { value: "ip", label: "IP address" },
                    { value: "mac", label: "MAC address" },
                  ]}
                  error={problem("match_by")}
                />
              </div>
              <Switch label="Replies go through the chain, too, in reverse order" checked={d.symmetric} onChange={(e) => set({ symmetric: e.currentTarget.checked })} error={problem("symmetric")} />
            </div>
          </Panel>
          <Panel
            title="Through which chain"
            right={
              !policy || d.newChain || chains.length ? (
                <SegmentedControl
                  size="xs"
                  aria-label="Which chain"
                  value={d.newChain ? "new" : "old"}
                  onChange={(v) => set({ newChain: v === "new" ? { name: "", path: "" } : undefined })}
                  data={[
                    { value: "old", label: "One that is there", disabled: !chains.length },
                    { value: "new", label: "A new one" },
                  ]}
                />
              ) : undefined
            }
          >
            <div className="form">
              {d.newChain ? (
                <>
                  <TextInput
                    label="Name of the chain"
                    value={d.newChain.name}
                    onChange={(e) => set({ newChain: { ...d.newChain!, name: e.currentTarget.value.trim() } })}
                    error={chains.some((c) => c.name === d.newChain!.name) ? `there is a chain ${d.newChain.name} already: its path would change` : d.newChain.name && !isName(d.newChain.name) ? "1 to 42 characters of a-z, 0-9 and inner -" : problemsAt(planned, `chains.${d.newChain.name}`)}
                    placeholder="web"
                  />
                  <ChainEditor value={d.newChain.path} onChange={(p) => set({ newChain: { ...d.newChain!, path: p } })} chain={d.newChain.name} functions={functions} chainOf={of} taps={taps} />
                  {functions.length === 0 && <LinkButton to="/functions/new">Make a function first</LinkButton>}
                </>
              ) : (
                <>
                  <Select label="Chain" searchable placeholder="Choose" data={chains.map((c) => c.name)} value={d.chain || null} onChange={(v) => set({ chain: v ?? "" })} error={problem("chain")} limit={100} nothingFoundMessage="No chain has this name" />
                  {path && <ChainPath path={path} functions={functions} />}
                </>
              )}
              {inChain.length > 0 && (
                <div className="form">
                  <span className="chain-label">When a function is down</span>
                  {inChain.map((f) => (
                    <div key={f.name} className="row">
                      <span className="mono grow">{f.name}</span>
                      <SegmentedControl size="xs" aria-label={`When ${f.name} is down`} value={d.onFail[f.name] ?? (f.spec.on_fail || "drop")} onChange={(v) => set({ onFail: { ...d.onFail, [f.name]: v as "drop" | "bypass" } })} data={["drop", "bypass"]} />
                    </div>
                  ))}
                  <span className="label">drop: nothing gets past it. bypass: frames go on as if it were a wire.</span>
                </div>
              )}
            </div>
          </Panel>
        </div>
        <div className="beside">
          <PlanPanel document={document} planned={planned} missing={missing} done={policy ? `policy/${d.name} is changed.` : `policy/${d.name} is made.`} onDone={() => void go(`/policies/${d.name}`)} onPriority={(priority) => set({ priority })} />
        </div>
      </div>
    </div>
  );
}
