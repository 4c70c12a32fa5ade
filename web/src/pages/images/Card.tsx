// One image: what its functions are like, how they are configured, and a policy with one.
import { Button } from "@mantine/core";
import { IconTrash } from "@tabler/icons-react";
import { useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";
import { deleteImage, type Image } from "../../api/images";
import { useMay } from "../../api/session";
import { Copy, SameAs } from "../../ui/basic";
import { Confirm } from "../../ui/Confirm";
import { command } from "../../ui/format";
import { Named } from "../../ui/Named";
import { AsYaml } from "../../ui/Object";
import { fieldsOf } from "../../ui/schema";
import { About } from "../functions/Create";

export function Users({ names }: { names: string[] }) {
  if (!names.length) return <span className="dim">none</span>;
  return (
    <span className="row">
      {names.slice(0, 5).map((n) => (
        <Named key={n} kind="function" name={n} />
      ))}
      {names.length > 5 && <span className="dim">and {names.length - 5} more</span>}
    </span>
  );
}

export function ImageCard({ image: i, users, onDelete }: { image: Image; users: string[]; onDelete: () => void }) {
  const admin = useMay("admin");
  const fields = fieldsOf(i.config_schema);
  return (
    <div className="stack">
      <About image={i} />
      <dl className="kv">
        <dt>Health</dt>
        <dd>{i.probe ? "frames go through it and are waited for (probe)" : "its process runs"}</dd>
        {i.forwarder && (
          <>
            <dt>Forwarder</dt>
            <dd>{i.forwarder}: a program of the switch forwards in its place</dd>
          </>
        )}
        <dt>A change</dt>
        <dd>{i.recreate ? "takes the place of the former function: never two at once" : "is made beside the former function, then traffic moves"}</dd>
        {i.speaks && (
          <>
            <dt>Frames of its own</dt>
            <dd>it sends some</dd>
          </>
        )}
        <dt>Command</dt>
        <dd className="mono">{i.command?.join(" ")}</dd>
        <dt>Used by</dt>
        <dd>
          <Users names={users} />
        </dd>
        <dt>Hosts</dt>
        <dd className="break">
          {i.hosts?.join(", ")}
          {i.manager && <div className="dim">The manager has it: {i.hosts?.length ? "other hosts" : "hosts"} fetch it from there when a function of theirs needs it.</div>}
        </dd>
        <dt>Digest</dt>
        <dd className="mono">{i.digest}</dd>
      </dl>
      <div>
        <h3>Config</h3>
        {fields ? (
          <dl className="kv" style={{ marginTop: "0.5rem" }}>
            {fields.map((f) => (
              <div key={f.name} style={{ display: "contents" }}>
                <dt className="mono">{f.name}</dt>
                <dd>
                  {f.help} {f.fallback && <span className="dim">(default {f.fallback})</span>}
                </dd>
              </div>
            ))}
          </dl>
        ) : (
          <p className="dim">{i.config_schema ? "" : "It has no schema: any config will do."}</p>
        )}
        {i.config_schema ? (
          <details>
            <summary style={{ cursor: "pointer", padding: "0.5rem 0" }}>The schema</summary>
            <AsYaml value={i.config_schema} label={`schema of ${i.name}`} />
          </details>
        ) : null}
      </div>
      {i.example && <Example image={i} text={i.example} />}
      <div className="row" style={{ justifyContent: "flex-end" }}>
        {i.removable && (
          <Button variant="default" leftSection={<IconTrash size={14} />} disabled={!admin.ok} title={admin.why} onClick={onDelete}>
            Delete
          </Button>
        )}
        <Button component={Link} to={`/functions/new?image=${encodeURIComponent(i.name)}`}>
          New function of it
        </Button>
      </div>
    </div>
  );
}

/** Asks, and takes an image from the manager. */
export function DeleteImage({ image: i, users, onClose }: { image: Image; users: string[]; onClose: () => void }) {
  const queries = useQueryClient();
  return (
    <Confirm
      opened
      dangerous
      onClose={onClose}
      title={`Delete ${i.name}`}
      verb="Delete"
      command={command("weir", "image", "delete", i.name)}
      action={() => deleteImage(i.name)}
      done={`${i.name} is deleted.`}
      onDone={() => void queries.invalidateQueries({ queryKey: ["images"] })}
    >
      The manager forgets it. Hosts that have fetched it keep it, and functions that run go on; one of a deleted image cannot be made anew
      {users.length > 0 && `: ${users.slice(0, 5).join(", ")}${users.length > 5 ? " and others" : ""} ${users.length === 1 ? "runs" : "run"} this image, by this name or another`}.
    </Confirm>
  );
}

/** A policy with the image, as its maker wrote it. */
function Example({ image, text }: { image: Image; text: string }) {
  return (
    <section aria-label="Example" className="stack">
      <h3>Example</h3>
      <p className="dim">A policy between two endpoints, alice and bob: put the names of yours in their place. The editor shows the plan before anything changes.</p>
      <div className="command">
        <pre tabIndex={0} aria-label={`example of ${image.name}`}>
          {text}
        </pre>
        <Copy text={text} label="Copy the example" />
      </div>
      <div className="row">
        <Button variant="default" component={Link} to="/apply" state={{ text }}>
          Open in the editor
        </Button>
      </div>
      <SameAs text={`${command("weir", "image", "inspect", image.name, "-o", "json")} | jq -r .example`} />
    </section>
  );
}
