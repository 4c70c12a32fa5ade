import { useMemo } from "react";
import { useList } from "../../api/live";
import { readyOf } from "../../api/ready";
import type { Chain } from "../../api/types";
import { Empty, Loading, PageHead, Panel, Ready, SameAs } from "../../ui/basic";
import { ChainPath } from "../../ui/ChainEditor";
import { DataTable, type Column } from "../../ui/DataTable";
import { Named } from "../../ui/Named";
import { LinkButton, UndoButton } from "../../ui/Plan";

export default function Chains() {
  const chains = useList("chain");
  const functions = useList("function");
  const policies = useList("policy");
  const columns = useMemo<Column<Chain>[]>(() => {
    const users = new Map<string, string[]>();
    for (const p of policies ?? []) users.set(p.spec.chain, [...(users.get(p.spec.chain) ?? []), p.name]);
    return [
      { key: "name", title: "Name", value: (c) => c.name, render: (c) => <Named kind="chain" name={c.name} /> },
      { key: "state", title: "State", value: (c) => readyOf("chain", c).state, render: (c) => <Ready r={readyOf("chain", c)} /> },
      { key: "path", title: "Path", value: (c) => c.spec.path, render: (c) => <ChainPath path={c.spec.path} functions={functions} /> },
      {
        key: "policies",
        title: "Policies",
        value: (c) => (users.get(c.name) ?? []).join(", "),
        render: (c) => {
          const all = users.get(c.name) ?? [];
          return all.length ? (
            <span className="row">
              {all.slice(0, 5).map((p) => (
                <Named key={p} kind="policy" name={p} />
              ))}
              {all.length > 5 && <span className="dim">and {all.length - 5} more</span>}
            </span>
          ) : (
            <span className="dim">none</span>
          );
        },
      },
    ];
  }, [functions, policies]);
  if (!chains) return <Loading />;
  return (
    <div className="stack">
      <PageHead
        title="Chains"
        lead="Functions in the order in which packets meet them. Policies say which packets."
        actions={
          <>
            <UndoButton />
            <LinkButton to="/chains/new" primary>
              New chain
            </LinkButton>
          </>
        }
      />
      <Panel flush>
        <DataTable
          name="chains"
          rows={chains}
          columns={columns}
          rowKey={(c) => c.name}
          empty={
            <Empty title="No chain yet" action={<LinkButton to="/start">From nothing to a chain, step by step</LinkButton>}>
              A chain is functions in a row, in one line: fw | w1 | tap:mon.
            </Empty>
          }
        />
      </Panel>
      <SameAs text="weir get chains" />
    </div>
  );
}
