// Start, stop, restart and deletion of functions.
import { Button, Menu } from "@mantine/core";
import { IconDots, IconPlayerPlay, IconPlayerStop, IconRefresh, IconTrash } from "@tabler/icons-react";
import { useState } from "react";
import { functionVerb, type Verb } from "../../api/actions";
import { useMay } from "../../api/session";
import type { Func } from "../../api/types";
import { Confirm } from "../../ui/Confirm";
import { command } from "../../ui/format";
import { Delete } from "../../ui/Gone";

const said: Record<Verb, string> = { start: "Starting", stop: "Stopping", restart: "Restarting" };

export function FunctionActions({ f, chain }: { f: Func; chain: string }) {
  const may = useMay("operator");
  const [verb, setVerb] = useState<Verb | "delete">();
  const runs = (f.spec.state || "started") === "started";
  const last = f.spec.on_fail === "bypass" ? "its traffic goes round it" : "its traffic is dropped";
  const text = {
    start: "It is started; its chain is in force when it works.",
    stop: chain ? `It ends; its ports stay. Meanwhile ${last}.` : "It ends; its ports stay.",
    restart: chain ? `It ends and is started anew. Meanwhile ${last}.` : "It ends and is started anew.",
    delete: chain ? `The chain ${chain} uses it: take it out of the chain, or delete the chain, first.` : "It ends and is removed, with its ports.",
  };
  const disabled = !may.ok || !!f.deleting;
  return (
    <>
      {runs ? (
        <Button variant="default" leftSection={<IconRefresh size={14} />} disabled={disabled} onClick={() => setVerb("restart")}>
          Restart
        </Button>
      ) : (
        <Button leftSection={<IconPlayerPlay size={14} />} disabled={disabled} onClick={() => setVerb("start")}>
          Start
        </Button>
      )}
      <Menu>
        <Menu.Target>
          <Button variant="default" px="xs" aria-label="More actions" disabled={disabled}>
            <IconDots size={14} />
          </Button>
        </Menu.Target>
        <Menu.Dropdown>
          {runs && (
            <Menu.Item leftSection={<IconPlayerStop size={14} />} onClick={() => setVerb("stop")}>
              Stop
            </Menu.Item>
          )}
          <Menu.Item leftSection={<IconTrash size={14} />} style={{ color: "var(--bad)" }} onClick={() => setVerb("delete")}>
            Delete
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      {verb === "delete" && (
        <Delete kind="function" name={f.name} onClose={() => setVerb(undefined)}>
          {text.delete}
        </Delete>
      )}
      {verb && verb !== "delete" && (
        <Confirm
          opened
          onClose={() => setVerb(undefined)}
          title={`${verb[0]!.toUpperCase()}${verb.slice(1)} ${f.name}`}
          verb={verb[0]!.toUpperCase() + verb.slice(1)}
          dangerous={verb === "stop" && !!chain}
          command={command("weir", "function", verb, f.name)}
          action={() => functionVerb(f.name, verb)}
          done={`${said[verb]} ${f.name}`}
        >
          {text[verb]}
        </Confirm>
      )}
    </>
  );
}
