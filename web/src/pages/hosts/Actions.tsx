// Close, open and deletion of hosts.
import { Button, Menu } from "@mantine/core";
import { IconDots, IconLock, IconLockOpen, IconTrash } from "@tabler/icons-react";
import { useState } from "react";
import { deleteHost, patchHost } from "../../api/actions";
import { useMay } from "../../api/session";
import type { Host } from "../../api/types";
import { Confirm } from "../../ui/Confirm";
import { command, plural } from "../../ui/format";

export function HostActions({ h, functions, onDeleted }: { h: Host; functions: number; onDeleted: () => void }) {
  const operator = useMay("operator");
  const admin = useMay("admin");
  const [what, setWhat] = useState<"close" | "open" | "delete">();
  const closed = !!h.spec.unschedulable;
  const here = functions ? `${plural(functions, "function")} on it` : "nothing on it";
  const text = {
    close: `Nothing new is placed on it. What runs there (${here}) stays. To empty it, delete its functions or pin them to other hosts.`,
    open: "It may get new functions again.",
    delete: `The manager forgets it, and its agent's certificate is worth nothing. It has ${here}. To join again it needs a new token.`,
  };
  return (
    <>
      <Button variant="default" leftSection={closed ? <IconLockOpen size={14} /> : <IconLock size={14} />} disabled={!operator.ok} onClick={() => setWhat(closed ? "open" : "close")}>
        {closed ? "Open" : "Close"}
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
          title={`${what[0]!.toUpperCase()}${what.slice(1)} ${h.name}`}
          verb={what[0]!.toUpperCase() + what.slice(1)}
          dangerous={what === "delete"}
          command={what === "delete" ? command("weir", "delete", "host", h.name) : command("weir", "host", what, h.name)}
          action={() => (what === "delete" ? deleteHost(h.name) : patchHost(h.name, { unschedulable: what === "close" ? true : null }))}
          done={{ close: `${h.name} is closed`, open: `${h.name} is open`, delete: `${h.name} is deleted` }[what]}
          onDone={what === "delete" ? onDeleted : undefined}
        >
          {text[what]}
        </Confirm>
      )}
    </>
  );
}
