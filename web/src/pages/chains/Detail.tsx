// A chain: its path can be changed in place; the plan says who notices.
import { Button, TextInput } from "@mantine/core";
import { IconTrash } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { useNavigate, useParams } from "react-router";
import { useList, useObject } from "../../api/live";
import { functionReady, readyOf } from "../../api/ready";
import { useMay } from "../../api/session";
import type { Chain } from "../../api/types";
import { Empty, Loading, Notice, PageHead, Panel, Ready, SameAs } from "../../ui/basic";
import { chainFunctions, chainsOf, checkChain, isName } from "../../ui/chain";
import { ChainEditor } from "../../ui/ChainEditor";
import { Conditions } from "../../ui/Conditions";
import { DataTable } from "../../ui/DataTable";
import { command } from "../../ui/format";
import { Delete, Gone } from "../../ui/Gone";
import { Named } from "../../ui/Named";
import { LinkButton, PlanPanel, UndoButton, usePlan } from "../../ui/Plan";
import { useTaps } from "../policies/Edit";
import { Match } from "../policies/List";

export default function ChainDetail() {
  const { name } = useParams();
  const c = useObject("chain", name ?? "");
  const chains = useList("chain");
  const functions = useList("function");
  if (!chains || !functions) return <Loading />;
  if (!name) return <ChainPage key="new" />;
  if (!c) return <Gone kind="chain" name={name} />;
  return <ChainPage key={name} c={c} />;
}

function ChainPage({ c }: { c?: Chain }) {
  const functions = useList("function") ?? [];
  const chains = useList("chain") ?? [];
  const policies = useList("policy") ?? [];
  const taps = useTaps();
  const may = useMay("operator");
  const go = useNavigate();
  const [made, setMade] = useState("");
  const [text, setText] = useState<string>();
  const [deleting, setDeleting] = useState(false);
  const name = c?.name ?? made;
  const path = text ?? c?.spec.path ?? "";
  const of = useMemo(() => chainsOf(chains), [chains]);
  const taken = !c && chains.some((x) => x.name === made);
  const changed = text !== undefined && text.trim() !== c?.spec.path;
  const wrong = checkChain(path, name, functions.map((f) => f.name), of).length > 0;
  const document = changed && !wrong && isName(name) && !taken ? { chains: { [name]: { path: path.trim() } } } : undefined;
  const planned = usePlan(document);
  const users = policies.filter((p) => p.spec.chain === c?.name);
  const inIt = chainFunctions(c?.spec.path ?? "").map((n) => ({ n, f: functions.find((f) => f.name === n) }));
  const r = c && readyOf("chain", c);
  return (
    <div className="stack">
      <PageHead
        title={c?.name ?? "New chain"}
        crumb={{ to: "/chains", text: "Chains" }}
        lead={r ? <Ready r={r} /> : "Functions in the order in which packets meet them."}
        actions={
          c && (
            <>
              <UndoButton />
              <Button variant="default" leftSection={<IconTrash size={14} />} disabled={!may.ok} onClick={() => setDeleting(true)}>
                Delete
              </Button>
              <LinkButton to={`/policies/new?chain=${encodeURIComponent(c.name)}`}>New policy through it</LinkButton>
            </>
          )
        }
      />
      {r && !r.ready && r.message && (
        <Notice level={r.level === "busy" ? "busy" : "warn"} role="status">
          {r.message}
        </Notice>
      )}
      <div className={changed || !c ? "plan-beside" : "stack"}>
        <Panel title={c ? "Path" : "Name and path"}>
          <div className="form">
            {!c && <TextInput label="Name" autoFocus placeholder="web" value={made} onChange={(e) => setMade(e.currentTarget.value.trim())} error={taken ? `there is a chain ${made} already` : made && !isName(made) ? "1 to 42 characters of a-z, 0-9 and inner -" : undefined} />}
            <ChainEditor value={path} onChange={setText} chain={name} functions={functions} chainOf={of} taps={taps} label={c ? "Functions" : "Path"} />
            {functions.length === 0 && <LinkButton to="/functions/new">Make a function first</LinkButton>}
            {c && changed && (
              <div>
                <Button variant="default" onClick={() => setText(undefined)}>
                  As it is now: {c.spec.path}
                </Button>
              </div>
            )}
          </div>
        </Panel>
        {(changed || !c) && (
          <div className="beside">
            <PlanPanel
              document={document}
              planned={planned}
              missing={!name ? "Give the chain a name, and write its path." : wrong ? "The path is not complete or not right yet." : undefined}
              done={c ? `chain/${name} is changed.` : `chain/${name} is made.`}
              onDone={() => (c ? setText(undefined) : void go(`/chains/${name}`))}
            />
          </div>
        )}
      </div>
      {c && (
        <>
          <Panel title="Functions, in their order" flush>
            <DataTable
              name="chain-functions"
              noFilter
              rows={inIt}
              rowKey={(x) => x.n}
              sort={{ key: "place" }}
              empty={null}
              columns={[
                { key: "place", title: "Place", value: (x) => inIt.indexOf(x) + 1 },
                { key: "name", title: "Function", value: (x) => x.n, render: (x) => <Named kind="function" name={x.n} /> },
                { key: "state", title: "State", value: (x) => (x.f ? functionReady(x.f).state : "missing"), render: (x) => (x.f ? <Ready r={functionReady(x.f)} /> : "missing") },
                { key: "image", title: "Image", value: (x) => x.f?.spec.image ?? "", render: (x) => <span className="mono">{x.f?.spec.image}</span> },
                { key: "fail", title: "When it is down", value: (x) => x.f?.spec.on_fail || "drop" },
                { key: "host", title: "Host", wide: true, value: (x) => x.f?.placement?.host ?? "", render: (x) => (x.f?.placement?.host ? <Named kind="host" name={x.f.placement.host} /> : "") },
              ]}
            />
          </Panel>
          <Panel title="Policies that go through it" flush>
            <DataTable
              name="chain-policies"
              noFilter
              rows={users}
              rowKey={(p) => p.name}
              empty={<Empty title="No policy goes through it">Until one does, it carries nothing.</Empty>}
              columns={[
                { key: "name", title: "Policy", value: (p) => p.name, render: (p) => <Named kind="policy" name={p.name} /> },
                { key: "state", title: "State", value: (p) => readyOf("policy", p).state, render: (p) => <Ready r={readyOf("policy", p)} /> },
                { key: "ends", title: "From and to", value: (p) => `${p.spec.from || "any"} to ${p.spec.to || "any"}` },
                { key: "match", title: "Match", value: (p) => (p.spec.match ?? ["all"]).join(", "), render: (p) => <Match policy={p} /> },
                { key: "mode", title: "Mode", wide: true, value: (p) => p.spec.mode || "selective" },
              ]}
            />
          </Panel>
          {!!c.status.conditions?.length && (
            <Panel title="Conditions" flush>
              <Conditions conditions={c.status.conditions} none="" />
            </Panel>
          )}
          <SameAs text={command("weir", "describe", "chain", c.name)} />
          {deleting && (
            <Delete kind="chain" name={c.name} onClose={() => setDeleting(false)}>
              {users.length ? `Policies use it (${users.map((p) => p.name).join(", ")}): delete or change these first.` : "Its functions stay. It can be undone."}
            </Delete>
          )}
        </>
      )}
    </div>
  );
}
