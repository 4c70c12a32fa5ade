// From nothing to a chain that carries traffic: the next step is open, what is done is a line.
import { Button, Select, TextInput } from "@mantine/core";
import { useMemo, useState, type ReactNode } from "react";
import { imageOf, useImages } from "../api/images";
import { useList } from "../api/live";
import { usePolicyWay } from "../api/path";
import { functionReady, readyOf } from "../api/ready";
import type { Document, FunctionSpec } from "../api/types";
import { Command, Failure, Loading, Notice, PageHead, Panel, State } from "../ui/basic";
import "../ui/chain.css";
import { chainsOf, isName } from "../ui/chain";
import { command, count } from "../ui/format";
import { Named } from "../ui/Named";
import { LinkButton, PlanPanel, UndoButton, usePlan } from "../ui/Plan";
import { EndpointForm } from "./endpoints/Form";
import { Way } from "./topology/Way";

export default function Start() {
  const endpoints = useList("endpoint");
  const functions = useList("function");
  const chains = useList("chain");
  const policies = useList("policy");
  const hosts = useList("host");
  const [open, setOpen] = useState<number>();
  const active = policies?.find((p) => readyOf("policy", p).ready) ?? policies?.[0];
  const { ways, error } = usePolicyWay(active?.name);
  if (!endpoints || !functions || !chains || !policies || !hosts) return <Loading />;
  const up = endpoints.filter((e) => readyOf("endpoint", e).ready).length;
  const passed = Math.max(0, ...(ways?.forward ?? []).filter((s) => s.node?.startsWith("function/")).map((s) => s.packets));
  const done = [endpoints.length >= 2, functions.length >= 1, policies.length >= 1, passed > 0];
  const first = done.indexOf(false);
  const next = first < 0 ? 3 : first;
  const at = open ?? next;
  const inForce = !!active && readyOf("policy", active).ready;
  const from = endpoints.find((e) => e.name === active?.spec.from) ?? endpoints[0];
  const to = endpoints.find((e) => e.name === active?.spec.to) ?? endpoints.find((e) => e !== from);
  const ping = from?.spec.netns && to?.spec.address ? command("ip", "netns", "exec", from.spec.netns, "ping", "-c", "3", to.spec.address.split("/")[0]!) : undefined;
  const step = (n: number, title: string, state: ReactNode, body: ReactNode) => (
    <section className="panel" aria-label={title}>
      <header>
        <span className={`step ${done[n] ? "done" : n === next ? "now" : ""}`} aria-hidden>
          {n + 1}
        </span>
        <h2>{title}</h2>
        <span className="right">
          {state}
          <Button variant="default" onClick={() => setOpen(at === n ? -1 : n)} aria-expanded={at === n}>
            {at === n ? "Close" : done[n] ? "More" : "Open"}
          </Button>
        </span>
      </header>
      {at === n && <div className="body stack">{body}</div>}
    </section>
  );
  return (
    <div className="stack">
      <PageHead title="From nothing to a chain" lead="Traffic enters at endpoints. A policy says which of it goes through which chain of functions. Four steps; each shows its plan first." actions={<UndoButton />} />
      {step(
        0,
        "Two endpoints",
        <State level={done[0] ? (up === endpoints.length ? "ok" : "busy") : "idle"}>{endpoints.length === 0 ? "none yet" : `${up} of ${endpoints.length} up`}</State>,
        <>
          {endpoints.length > 0 && (
            <div className="row">
              {endpoints.slice(0, 20).map((e) => {
                const r = readyOf("endpoint", e);
                return (
                  <span key={e.name} className="row">
                    <Named kind="endpoint" name={e.name} /> <State level={r.level}>{r.state}</State>
                  </span>
                );
              })}
            </div>
          )}
          {endpoints.filter((e) => !readyOf("endpoint", e).ready && e.status.message).map((e) => (
            <Notice key={e.name} level="warn">
              <span className="mono">{e.name}</span>: {e.status.message}
            </Notice>
          ))}
          <EndpointForm again onDone={() => setOpen(endpoints.length >= 1 ? undefined : 0)} />
        </>,
      )}
      {step(
        1,
        "A function",
        <State level={done[1] ? (functions.every((f) => functionReady(f).ready) ? "ok" : "busy") : "idle"}>{functions.length === 0 ? "none yet" : `${functions.filter((f) => functionReady(f).ready).length} of ${functions.length} ready`}</State>,
        <QuickFunction onDone={() => setOpen(undefined)} />,
      )}
      {step(
        2,
        "A policy through a chain of it",
        active ? (
          <>
            <Named kind="policy" name={active.name} /> <State level={readyOf("policy", active).level}>{readyOf("policy", active).state}</State>
          </>
        ) : (
          <State level="idle">none yet</State>
        ),
        <>
          <p>
            Say which traffic, and write the chain in one line: <code>{freeNames(functions, chains).slice(0, 3).join(" | ") || functions[0]?.name || "fw"}</code>
          </p>
          <div className="row">
            <LinkButton to={`/policies/new?${new URLSearchParams({ ...(endpoints[0] && { from: endpoints[0].name }), ...(endpoints[1] && { to: endpoints[1].name }) })}`} primary>
              New policy
            </LinkButton>
            {chains.length > 0 && <LinkButton to="/chains">Chains</LinkButton>}
          </div>
        </>,
      )}
      {step(
        3,
        "Traffic",
        passed > 0 ? <State level="ok">{count(passed)} packets through it</State> : <State level={inForce ? "busy" : "idle"}>{inForce ? "waiting for packets" : "after the policy"}</State>,
        active ? (
          <>
            {ping && (
              <div className="same">
                <span className="label">Send some, on the host, as root:</span>
                <Command text={ping} />
              </div>
            )}
            <Failure error={error} />
            {ways && ways.forward.length > 0 && (
              <div style={{ maxWidth: "34rem" }}>
                <Way stops={ways.forward} direction="forward" label="Way of packets" />
              </div>
            )}
            <div className="row">
              <LinkButton to={`/topology?policy=${encodeURIComponent(active.name)}`} primary={passed > 0}>
                See its way lit
              </LinkButton>
              {from && to && <LinkButton to={`/trace?from=${encodeURIComponent(from.name)}&to=${encodeURIComponent(to.name)}`}>Trace a packet</LinkButton>}
            </div>
          </>
        ) : (
          <p className="dim">There is no policy yet.</p>
        ),
      )}
    </div>
  );
}

/** Functions that no chain has. */
function freeNames(functions: { name: string }[], chains: { name: string; spec: { path: string } }[]): string[] {
  const of = chainsOf(chains);
  return functions.filter((f) => !of.has(f.name)).map((f) => f.name);
}

/** A function by name and image; everything else has its form elsewhere. */
function QuickFunction({ onDone }: { onDone: () => void }) {
  const images = useImages();
  const functions = useList("function") ?? [];
  const [name, setName] = useState("");
  const [image, setImage] = useState<string | null>(null);
  const [onFail, setOnFail] = useState<"drop" | "bypass">("drop");
  const taken = functions.some((f) => f.name === name);
  const names = [...new Set((images.data?.items ?? []).map((i) => i.name.split(":")[0]!))].sort();
  const about = imageOf(images.data?.items ?? undefined, image ?? "");
  const document = useMemo<Document | undefined>(() => {
    if (!isName(name) || !image || taken) return undefined;
    const spec: FunctionSpec = { image };
    if (onFail === "bypass") spec.on_fail = "bypass";
    return { functions: { [name]: spec } };
  }, [name, image, onFail, taken]);
  const planned = usePlan(document);
  return (
    <div className="plan-beside">
      <Panel title="A running instance of an image">
        <div className="form">
          <Select label="Image" searchable data={names} value={image} onChange={setImage} placeholder="wire, firewall, monitor" description={about?.description} nothingFoundMessage="No host has this image" />
          <TextInput label="Name" placeholder="fw" value={name} onChange={(e) => setName(e.currentTarget.value.trim())} error={taken ? `There is a function ${name} already.` : name && !isName(name) ? "1 to 42 characters of a-z, 0-9 and inner -" : undefined} />
          <Select label="When it is down" allowDeselect={false} value={onFail} onChange={(v) => setOnFail(v as "drop" | "bypass")} data={[{ value: "drop", label: "drop: nothing gets past it" }, { value: "bypass", label: "bypass: frames go on as if it were a wire" }]} />
          <Failure error={images.error} />
          <div>
            <LinkButton to={`/functions/new${image ? `?image=${encodeURIComponent(image)}` : ""}`}>With settings, limits, secrets</LinkButton>
          </div>
        </div>
      </Panel>
      <div className="beside">
        <PlanPanel document={document} planned={planned} missing="Choose an image and a name." done={`function/${name} is made.`} onDone={onDone} />
      </div>
    </div>
  );
}
