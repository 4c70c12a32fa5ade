import "./topology.css";
import { Button, Checkbox, Select, TextInput } from "@mantine/core";
import { IconSearch, IconX } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link, useNavigate, useSearchParams } from "react-router";
import { api, data } from "../../api/client";
import { useList } from "../../api/live";
import { usePolicyWay } from "../../api/path";
import { useSwitchPorts } from "../../api/switches";
import { readyOf, type Level } from "../../api/ready";
import type { components } from "../../api/schema";
import type { Policy } from "../../api/types";
import { pathOf } from "../../shell/pages";
import { Empty, Failure, Loading, PageHead, SameAs, State } from "../../ui/basic";
import { words } from "../../ui/export";
import { bits, command, count, plural } from "../../ui/format";
import { Named } from "../../ui/Named";
import { Canvas, type CanvasHandle } from "./Canvas";
import { graphOf, worst, type Graph, type Item } from "./graph";
import { layoutOf } from "./layout";
import type { Lit } from "./paint";
import { legsOf, lossesOf } from "./way";
import { Way } from "./Way";

type SwitchPort = components["schemas"]["SwitchPort"];

const tunnelsUpTo = 40; // more are hidden at first

/** Pairs of hosts with a tunnel: the router gives them to hosts, and no list that this page follows has them. */
function useTunnels(hosts: number): [string, string][] | undefined {
  return useQuery({
    queryKey: ["tunnels", hosts],
    enabled: hosts > 1,
    refetchInterval: 10_000,
    queryFn: async ({ signal }) => {
      const g = await data(api.GET("/v1/graph", { params: { query: { underlay: true } }, signal }) as Promise<{ data?: components["schemas"]["Graph"] }>);
      const name = (id: string) => id.slice(id.indexOf("/") + 1);
      return (g.edges ?? []).filter((e) => e.kind === "tunnel").map((e): [string, string] => [name(e.from), name(e.to)]);
    },
  }).data;
}

export default function Topology() {
  const endpoints = useList("endpoint");
  const functions = useList("function");
  const chains = useList("chain");
  const policies = useList("policy");
  const hosts = useList("host");
  const switches = useList("switch");
  const [query, setQuery] = useSearchParams();
  const go = useNavigate();
  const handle = useRef<CanvasHandle>(null);
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const [aspect, setAspect] = useState(1.6);
  const [wanted, setWanted] = useState<boolean>();
  const pairs = useTunnels(hosts?.length ?? 0);
  const policy = query.get("policy") ?? "";
  const selected = query.get("node") ?? undefined;
  const search = query.get("q") ?? "";
  const put = (key: string, value: string | undefined) =>
    setQuery(
      (q) => {
        if (value) q.set(key, value);
        else q.delete(key);
        return q;
      },
      { replace: true },
    );

  const graph = useMemo(
    () => graphOf({ endpoints: endpoints ?? [], functions: functions ?? [], chains: chains ?? [], policies: policies ?? [], hosts: hosts ?? [], switches: switches ?? [], tunnels: pairs }),
    [endpoints, functions, chains, policies, hosts, switches, pairs],
  );
  const items = useMemo(() => new Map(graph.boxes.flatMap((b) => b.items.map((i) => [i.id, i] as const))), [graph]);
  const boxes = useMemo(() => new Map(graph.boxes.map((b) => [b.id, b])), [graph]);
  // States change often and move nothing: the layout is made anew when what is there changes.
  const shape = Math.round(Math.min(3, Math.max(0.5, aspect)) * 4) / 4;
  const structure = useMemo(() => JSON.stringify([graph.boxes.map((b) => [b.id, b.items.map((i) => [i.id, i.chain, i.place, i.tap, i.end])]), graph.edges.map((e) => [e.kind, e.from, e.to])]), [graph]);
  const layout = useMemo(() => layoutOf(graph, { collapsed: folded, aspect: shape }), [structure, folded, shape]); // eslint-disable-line
  const tunnelCount = useMemo(() => graph.edges.filter((e) => e.kind === "tunnel").length, [graph]);
  const tunnels = wanted ?? tunnelCount <= tunnelsUpTo;
  const found = useMemo(() => {
    const w = words(search);
    if (!w.length) return undefined;
    const hit = new Set<string>();
    const test = (text: string) => w.every((x) => (x.startsWith("-") && x.length > 1 ? !text.includes(x.slice(1)) : text.includes(x)));
    for (const b of graph.boxes) {
      if (test(`${b.id} ${b.r.state} ${b.detail}`.toLowerCase())) hit.add(b.id);
      for (const i of b.items) if (test(`${i.id} ${i.detail} ${i.chain ?? ""} ${i.r.state}`.toLowerCase())) hit.add(i.id);
    }
    return hit;
  }, [search, graph]);
  const chosen = policies?.find((p) => p.name === policy);
  const { ways, error } = usePolicyWay(chosen && policy);
  const lit = useMemo<Lit | undefined>(() => {
    if (!chosen) return undefined;
    if (ways?.forward.length) {
      const [forward, reverse] = [legsOf(ways.forward), legsOf(ways.reverse)];
      const nodes = new Set([...ways.forward, ...ways.reverse].flatMap((s) => (s.node ? [s.node] : [])));
      const losses = lossesOf(ways.forward);
      for (const [id, n] of lossesOf(ways.reverse)) losses.set(id, Math.max(n, losses.get(id) ?? 0));
      return { policy, forward, reverse, nodes, losses, wanted: false };
    }
    const edges = graph.edges.filter((e) => e.policies.includes(policy));
    return { policy, forward: edges.map((e) => ({ from: e.from, to: e.to, copy: e.kind === "copies" })), reverse: [], nodes: new Set(edges.flatMap((e) => [e.from, e.to])), losses: new Map(), wanted: true };
  }, [chosen, ways, graph, policy]);
  const shown = useRef("");
  const many = items.size > 60;
  useEffect(() => {
    if (!lit || shown.current === policy) return;
    if (!many || handle.current?.show([...lit.nodes])) shown.current = policy;
  }, [lit, policy, many, shape]);

  const open = useCallback(
    (id: string) => {
      const to = pathOf(id.slice(0, id.indexOf("/")), id.slice(id.indexOf("/") + 1));
      if (to && !id.startsWith("switch/")) void go(to); // a switch is shown here
    },
    [go],
  );
  const fold = useCallback((id: string) => {
    setFolded((was) => {
      const next = new Set(was);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  }, []);
  const tip = (id: string) => {
    const x = items.get(id) ?? boxes.get(id);
    if (!x) return undefined;
    return [`${x.name}: ${x.r.state}`, x.detail, x.r.message].filter(Boolean).join("\n");
  };
  if (!endpoints || !functions || !chains || !policies || !hosts) return <Loading />;
  if (hosts.length + endpoints.length + functions.length + (switches?.length ?? 0) === 0)
    return (
      <>
        <PageHead title="Topology" />
        <Empty title="No host has joined yet">Hosts, switches, functions and endpoints are drawn here when they are there.</Empty>
      </>
    );
  const foldable = graph.boxes.filter((b) => b.items.length > 0).map((b) => b.id);
  const allFolded = foldable.length > 0 && foldable.every((id) => folded.has(id));
  const node = selected ? (items.get(selected) ?? boxes.get(selected)) : undefined;
  const summary = `Topology: ${plural(hosts.length, "host")}, ${switches?.length ? plural(switches.length, "switch", "switches") + ", " : ""}${plural(functions.length, "function")}, ${plural(endpoints.length, "endpoint")}`;
  return (
    <div className="topology">
      <PageHead
        title="Topology"
        actions={
          <div className="topology-tools">
            <Select
              size="xs"
              w={200}
              aria-label="Policy whose way is lit"
              placeholder="Light a policy's way"
              searchable
              clearable
              limit={100}
              nothingFoundMessage="No policy has this name"
              data={policies.map((p) => p.name)}
              value={chosen ? policy : null}
              onChange={(v) => put("policy", v ?? undefined)}
              comboboxProps={{ withinPortal: true }}
            />
            <TextInput
              size="xs"
              w={200}
              data-filter
              aria-label="Search the picture"
              placeholder="Find by name, image, state"
              leftSection={<IconSearch size={14} />}
              value={search}
              onChange={(e) => put("q", e.currentTarget.value || undefined)}
              onKeyDown={(e) => {
                if (e.key === "Enter" && found?.size) handle.current?.show([...found]);
                if (e.key === "Escape") put("q", undefined);
              }}
              rightSection={found && <span className="label">{found.size}</span>}
            />
            {foldable.length > 1 && (
              <Button variant="default" onClick={() => setFolded(allFolded ? new Set() : new Set(foldable))}>
                {allFolded ? "Unfold all" : "Fold all"}
              </Button>
            )}
            {tunnelCount > 0 && <Checkbox size="xs" label={`Tunnels (${tunnelCount})`} checked={tunnels} onChange={(e) => setWanted(e.currentTarget.checked)} />}
          </div>
        }
      />
      <div className="topology-main">
        <Canvas
          handle={handle}
          graph={graph}
          layout={layout}
          items={items}
          lit={lit}
          selected={selected}
          found={found}
          tunnels={tunnels}
          onSelect={(id) => put("node", id)}
          onOpen={open}
          onFold={fold}
          onShape={setAspect}
          label={summary}
          tip={tip}
        />
        <aside className="topology-side" aria-label="About the picture">
          <p className="sr" role="status">
            {node ? `${selected}: ${node.r.state}. ${node.r.message}` : ""}
          </p>
          {node && selected && <NodeInfo id={selected} graph={graph} items={items} onClose={() => put("node", undefined)} onPolicy={(p) => put("policy", p)} />}
          {node?.kind === "switch" && <SwitchPorts key={node.name} name={node.name} ports={switches?.find((s) => s.name === node.name)?.status.ports ?? []} />}
          {chosen && <PolicyInfo policy={chosen} lit={lit} ways={ways} error={error} />}
          {!chosen && !node && <Totals graph={graph} />}
          <Legend />
          <section>
            <SameAs text={chosen ? command("weir", "describe", "policy", policy) : "weir graph"} />
          </section>
        </aside>
      </div>
    </div>
  );
}

function PolicyInfo({ policy, lit, ways, error }: { policy: Policy; lit?: Lit; ways: ReturnType<typeof usePolicyWay>["ways"]; error: unknown }) {
  const r = readyOf("policy", policy);
  return (
    <section aria-label={`Policy ${policy.name}`}>
      <h2>
        <Named kind="policy" name={policy.name} /> <State level={r.level}>{r.state}</State>
      </h2>
      {r.message && <p className="break">{r.message}</p>}
      <Failure error={error} />
      {lit?.wanted && !error && <p className="dim">It has no way in force. Dashed is what it asks for.</p>}
      {ways && ways.forward.length > 0 && (
        <>
          <h3>Packets, {policy.spec.from || "any"} to {policy.spec.to || "any"}</h3>
          <Way stops={ways.forward} direction="forward" label="Way of packets" />
          {ways.reverse.length > 0 && (
            <>
              <h3>Replies</h3>
              <Way stops={ways.reverse} direction="reverse" label="Way of replies" />
            </>
          )}
          <p className="label">Counters are the ports' own: an endpoint's have all of its traffic, a function's all of its chain's.</p>
        </>
      )}
    </section>
  );
}

function NodeInfo({ id, graph, items, onClose, onPolicy }: { id: string; graph: Graph; items: ReadonlyMap<string, Item>; onClose: () => void; onPolicy: (name: string) => void }) {
  const item = items.get(id);
  const box = graph.boxes.find((b) => b.id === id || b.items.some((i) => i.id === id))!;
  const x = item ?? box;
  const policies = [...new Set(graph.edges.filter((e) => e.from === id || e.to === id).flatMap((e) => e.policies))].sort();
  const joined = graph.edges.filter((e) => (e.kind === "link" || e.kind === "tunnel") && (e.from === id || e.to === id));
  return (
    <section aria-label={id}>
      <h2>
        {x.kind === "nowhere" ? x.name : <Named kind={x.kind} name={x.name} withKind />}
        <Button variant="subtle" color="gray" ml="auto" px={6} onClick={onClose} aria-label="Close">
          <IconX size={14} />
        </Button>
      </h2>
      <div>
        <State level={x.r.level}>{x.r.state}</State>
      </div>
      {x.r.message && <p className="break">{x.r.message}</p>}
      <dl className="kv">
        {x.detail && (
          <>
            <dt>{x.kind === "function" ? "image" : x.kind === "switch" ? "product" : "address"}</dt>
            <dd className="mono">{x.detail}</dd>
          </>
        )}
        {item && box.kind !== "nowhere" && (
          <>
            <dt>{box.kind}</dt>
            <dd>
              <Named kind={box.kind} name={box.name} />
            </dd>
          </>
        )}
        {item?.chain && (
          <>
            <dt>chain</dt>
            <dd>
              <Named kind="chain" name={item.chain} />
            </dd>
          </>
        )}
        {!item && (
          <>
            <dt>in it</dt>
            <dd>
              {plural(box.items.filter((i) => i.kind === "function").length, "function")}, {plural(box.items.filter((i) => i.kind === "endpoint").length, "endpoint")}
            </dd>
          </>
        )}
        {joined.length > 0 && (
          <>
            <dt>joined to</dt>
            <dd className="mono">{joined.slice(0, 20).map((e) => `${e.from === id ? e.to : e.from}${e.kind === "tunnel" ? " (tunnel)" : ""}`).join(", ")}{joined.length > 20 && ` and ${joined.length - 20} more`}</dd>
          </>
        )}
      </dl>
      {policies.length > 0 && (
        <div className="row">
          <span className="label">Light:</span>
          {policies.slice(0, 12).map((p) => (
            <Button key={p} variant="default" size="compact-xs" onClick={() => onPolicy(p)}>
              {p}
            </Button>
          ))}
          {policies.length > 12 && <Link to={`/policies?q=${encodeURIComponent(x.name)}`}>{policies.length - 12} more</Link>}
        </div>
      )}
    </section>
  );
}

const shownPorts = 64;

/** What passes at the ports of a fabric switch now, as it counts itself. */
function SwitchPorts({ name, ports }: { name: string; ports: SwitchPort[] }) {
  const q = useSwitchPorts(name);
  const known = new Map(ports.map((p) => [p.number, p]));
  const rates = q.data ?? [];
  return (
    <section aria-label={`Ports of ${name}`}>
      <h3>Ports</h3>
      <Failure error={q.error} />
      {q.isPending && <p className="dim">Reading the counters</p>}
      {q.data && rates.length === 0 && <p className="dim">It has none.</p>}
      {rates.length > 0 && (
        <ul className="switch-ports">
          {rates.slice(0, shownPorts).map((r) => {
            const p = known.get(r.counters.number);
            return (
              <li key={r.counters.number}>
                <span className="break">
                  <span className="mono">{p?.name || r.counters.number}</span> <span className="dim">{p?.peer ? `to ${p.peer}` : p?.kind}</span>
                  {p?.state === "down" && <State level="bad">down</State>}
                </span>
                <span className="figures">
                  in {r.rx ? `${count(Math.round(r.rx.packets))}/s, ${bits(r.rx.bytes)}` : "…"}
                  <br />
                  out {r.tx ? `${count(Math.round(r.tx.packets))}/s, ${bits(r.tx.bytes)}` : "…"}
                </span>
                {(r.counters.dropped_packets > 0 || r.counters.error_packets > 0) && (
                  <span className="sub">
                    {count(r.counters.dropped_packets)} dropped, {count(r.counters.error_packets)} with errors so far
                  </span>
                )}
              </li>
            );
          })}
        </ul>
      )}
      {rates.length > shownPorts && <p className="dim">and {rates.length - shownPorts} more</p>}
      <SameAs text={command("weir", "describe", "switch", name)} />
    </section>
  );
}

function Totals({ graph }: { graph: Graph }) {
  const counts = new Map<Level, number>();
  let bad: Item[] = [];
  for (const b of graph.boxes)
    for (const i of b.items) {
      counts.set(i.r.level, (counts.get(i.r.level) ?? 0) + 1);
      if (i.r.level === "bad" || i.r.level === "warn") bad.push(i);
    }
  bad = bad.sort((a, b) => (a.r.level === b.r.level ? 0 : a.r.level === "bad" ? -1 : 1));
  const lost = graph.boxes.filter((b) => worst(b) === "bad" && b.r.level === "bad");
  return (
    <section aria-label="What is there">
      <h2>What is not well</h2>
      {bad.length + lost.length === 0 && <State level="ok">nothing: all is well</State>}
      <ul style={{ listStyle: "none", margin: 0, padding: 0, display: "grid", gap: "0.2rem" }}>
        {[...lost, ...bad].slice(0, 12).map((x) => (
          <li key={x.id} className="row" title={x.r.message}>
            <Named kind={x.kind} name={x.name} /> <State level={x.r.level}>{x.r.state}</State>
          </li>
        ))}
      </ul>
      {lost.length + bad.length > 12 && <p className="dim">and {lost.length + bad.length - 12} more</p>}
      <p className="dim">Choose a policy to light its way, or a node to see what it is.</p>
    </section>
  );
}

function Legend() {
  const line = (d: string, dash?: string, colour = "var(--dim)") => (
    <svg width="28" height="10" aria-hidden>
      <path d={d} stroke={colour} strokeWidth="1.5" fill="none" strokeDasharray={dash} />
    </svg>
  );
  return (
    <section aria-label="Legend">
      <h3>Legend</h3>
      <dl className="legend">
        <dt>
          <svg width="28" height="12" aria-hidden>
            <rect x="1" y="1" width="26" height="10" rx="2" fill="none" stroke="var(--dim)" />
          </svg>
        </dt>
        <dd>function</dd>
        <dt>
          <svg width="28" height="12" aria-hidden>
            <rect x="1" y="1" width="26" height="10" rx="5" fill="none" stroke="var(--dim)" />
          </svg>
        </dt>
        <dd>endpoint</dd>
        <dt>{line("M0 5h28")}</dt>
        <dd>steered by a policy, or a cable</dd>
        <dt>{line("M0 5h28", "3 3")}</dt>
        <dd>a copy</dd>
        <dt>{line("M0 5h28", "7 4")}</dt>
        <dd>a tunnel</dd>
        <dt>{line("M0 5h28", undefined, "var(--accent)")}</dt>
        <dd>lit: packets, figures above</dd>
        <dt>{line("M0 5h28", undefined, "var(--busy)")}</dt>
        <dd>lit: replies, figures below</dd>
      </dl>
      <div className="row" style={{ gap: "0.25rem 0.9rem", fontSize: "0.75rem" }}>
        <State level="ok">well</State>
        <State level="busy">on the way</State>
        <State level="warn">warning</State>
        <State level="bad">not well</State>
        <State level="idle">stopped</State>
      </div>
    </section>
  );
}
