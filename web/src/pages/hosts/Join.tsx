// Another host joins: a token that works once, and the one command to run there.
import { Button, Checkbox, Modal, Select, TextInput } from "@mantine/core";
import { useState } from "react";
import { api, data } from "../../api/client";
import { useAction } from "../../api/actions";
import type { components } from "../../api/schema";
import { Command, Failure, Notice, SameAs, Time } from "../../ui/basic";
import { command, quote } from "../../ui/format";

type Token = components["schemas"]["Token"];
type Request = components["schemas"]["TokenRequest"];

export function Join({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  return (
    <Modal opened={opened} onClose={onClose} title="Add a host" size="lg">
      <Steps onClose={onClose} />
    </Modal>
  );
}

function Steps({ onClose }: { onClose: () => void }) {
  const [address, setAddress] = useState("");
  const [host, setHost] = useState("");
  const [cpus, setCPUs] = useState("");
  const [memory, setMemory] = useState("");
  const [replace, setReplace] = useState(false);
  const [ttl, setTTL] = useState("1h");
  const [token, setToken] = useState<Token>();
  const request: Request = { ttl, ...(host && { host, ...(cpus && { cpus }), ...(memory && { memory }), ...(replace && { replace }) }) };
  const make = useAction(async () => setToken(await data<Token>(api.POST("/v1/tokens", { body: request }) as Promise<{ data?: Token }>)));
  const at = address.trim() || "ADDRESS:7412";
  return (
    <div className="stack">
      <p className="dim">
        A token lets one agent join, once. This manager has to be one that hosts can join: it was started with <code>--agents ADDRESS:PORT</code>. Give that address here.
      </p>
      <TextInput label="Address of this manager, for the other machine" placeholder="10.0.0.1:7412" value={address} onChange={(e) => setAddress(e.currentTarget.value)} disabled={!!token} spellCheck={false} data-autofocus />
      {!token && (
        <>
          <div className="grid">
            <TextInput label="Name of the host" description="the only one that may join with it" placeholder="any that is new" value={host} onChange={(e) => setHost(e.currentTarget.value)} spellCheck={false} />
            <Select label="Works for" description="then it is worth nothing" data={["10m", "1h", "24h", "168h"]} value={ttl} onChange={(v) => setTTL(v ?? "1h")} allowDeselect={false} />
            {host && (
              <>
                <TextInput label="Cores that count" description="whole; default what its agent claims" value={cpus} onChange={(e) => setCPUs(e.currentTarget.value)} placeholder="8" />
                <TextInput label="Memory that counts" description="for example 16G" value={memory} onChange={(e) => setMemory(e.currentTarget.value)} placeholder="16G" />
              </>
            )}
          </div>
          {host && <Checkbox size="xs" label="It may take the place of a host of this name, whose agent is shut out then" checked={replace} onChange={(e) => setReplace(e.currentTarget.checked)} />}
          <Failure error={make.error} />
          <SameAs text={command("weir", "token", "create", host && "--host", host, "--ttl", ttl, host && cpus && "--cpus", host && cpus, host && memory && "--memory", host && memory, replace && host && "--replace")} />
          <div className="row" style={{ justifyContent: "flex-end" }}>
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button loading={make.isPending} onClick={() => make.mutate()}>
              Make a token
            </Button>
          </div>
        </>
      )}
      {token && (
        <>
          <Notice level="warn">
            The token is shown once and works once, until <Time at={token.expires} />. Keep it as a secret.
          </Notice>
          <div className="same">
            <span className="label">On the other machine, as root, with weir installed</span>
            <Command text={`printf %s ${quote(token.token ?? "")} | weir agent --detach --manager https://${quote(at)} --token-file -${host ? ` --host ${quote(host)}` : ""}`} />
          </div>
          <p className="dim">The host appears in the list as soon as it has joined.</p>
          <div className="row" style={{ justifyContent: "flex-end" }}>
            <Button onClick={onClose}>Done</Button>
          </div>
        </>
      )}
    </div>
  );
}
