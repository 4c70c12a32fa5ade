// Close, open, drain and deletion of hosts.
import { Button, Menu } from "@mantine/core";
import { IconDots, IconLock, IconLockOpen, IconPlayerEject, IconPlayerPlay, IconTrash } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { deleteHost, drainHost, patchHost, type DrainResult } from "../../api/actions";
import { useMay } from "../../api/session";
import type { Host } from "../../api/types";
import { Failure } from "../../ui/basic";
import { Confirm } from "../../ui/Confirm";
import { command, plural } from "../../ui/format";
import { Named } from "../../ui/Named";

type Verb = "close" | "open" | "drain" | "undrain" | "delete";

const title = (v: Verb) => (v === "undrain" ? "End the drain of" : v[0]!.toUpperCase() + v.slice(1));

export function HostActions({ h, functions, onDeleted }: { h: Host; functions: number; onDeleted: () => void }) {
  const operator = useMay("operator");
  const admin = useMay("admin");
  const [what, setWhat] = useState<Verb>();
  const closed = !!h.spec.unschedulable;
  const drains = !!h.spec.drain;
  const here = functions ? `${plural(functions, "function")} on it` : "nothing on it";
  const text = {
    close: `Nothing new is placed on it. What runs there (${here}) stays. To empty it, drain it.`,
    open: "It may get new functions again.",
    drain: <DrainPlan host={h.name} />,
    undrain: `It may get new functions again${closed ? " once it is opened" : ""}. What has moved stays where it is now.`,
    delete: `The manager forgets it, and its agent's certificate is worth nothing. It has ${here}. To join again it needs a new token.`,
  };
  const act = {
    close: () => patchHost(h.name, { unschedulable: true }),
    open: () => patchHost(h.name, { unschedulable: null, drain: null }),
    drain: () => drainHost(h.name),
    undrain: () => patchHost(h.name, { drain: null }),
    delete: () => deleteHost(h.name),
  };
  return (
    <>
      <Button variant="default" leftSection={closed ? <IconLockOpen size={14} /> : <IconLock size={14} />} disabled={!operator.ok} onClick={() => setWhat(closed ? "open" : "close")}>
        {closed ? "Open" : "Close"}
      </Button>
      <Button variant="default" leftSection={drains ? <IconPlayerPlay size={14} /> : <IconPlayerEject size={14} />} disabled={!operator.ok} onClick={() => setWhat(drains ? "undrain" : "drain")}>
        {drains ? "End the drain" : "Drain"}
      </Button>
      <Menu>
        <Menu.Target>
          <Button variant="default" px="xs" aria-label="More actions" disabled={!admin.ok}>
            <IconDots size={14} />
          </Button>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item leftSection={<IconTrash size={14} />} style={{ color: "var(--bad)" }} onClick={() => setWhat("delete")}>
            Delete
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      {what && (
        <Confirm
          opened
          onClose={() => setWhat(undefined)}
          title={`${title(what)} ${h.name}`}
          verb={what === "undrain" ? "End the drain" : title(what)}
          dangerous={what === "delete"}
          command={what === "delete" ? command("weir", "delete", "host", h.name) : command("weir", "host", what, h.name)}
          action={act[what]}
          done={{ close: `${h.name} is closed`, open: `${h.name} is open`, drain: `${h.name} is being drained`, undrain: `${h.name} is not drained any more`, delete: `${h.name} is deleted` }[what]}
          onDone={what === "delete" ? onDeleted : undefined}
        >
          {text[what]}
        </Confirm>
      )}
    </>
  );
}

/** Who moves where, and who stays, as the manager would decide now. */
function DrainPlan({ host }: { host: string }) {
  const plan = useQuery({ queryKey: ["drain", host], queryFn: () => drainHost(host, true), gcTime: 0, staleTime: 0 });
  const r: DrainResult | undefined = plan.data;
  return (
    <div className="stack">
      <p>
        Nothing new is placed on it, and its functions move to other hosts. Each goes on here until it is up there and frames are steered to it. To take it back, end the drain: what has moved then stays where it is.
      </p>
      <Failure error={plan.error} />
      {plan.isPending && <p className="dim">Looking for room on other hosts</p>}
      {r && (
        <ul>
          {(r.moves ?? []).map((m) => (
            <li key={m.function}>
              <Named kind="function" name={m.function} /> moves to <Named kind="host" name={m.to} />
            </li>
          ))}
          {(r.stays ?? []).map((s) => (
            <li key={`${s.kind}/${s.name}`}>
              <Named kind={s.kind as "function"} name={s.name} /> stays: <span className="dim">{s.reason}</span>
            </li>
          ))}
          {!r.moves?.length && !r.stays?.length && <li>Nothing is placed here.</li>}
        </ul>
      )}
      {!!r?.policies?.length && (
        <p>
          Policies whose functions move:{" "}
          {r.policies.map((p) => (
            <span key={p}>
              <Named kind="policy" name={p} />{" "}
            </span>
          ))}
        </p>
      )}
    </div>
  );
}
