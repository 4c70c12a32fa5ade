import { Button, Modal } from "@mantine/core";
import { useMemo, useState } from "react";
import { Link } from "react-router";
import { useImages, type Image } from "../api/images";
import { useList } from "../api/live";
import { Empty, Failure, Loading, Notice, PageHead, Panel, SameAs } from "../ui/basic";
import { DataTable, type Column } from "../ui/DataTable";
import { bytes } from "../ui/format";
import { Named } from "../ui/Named";
import { AsYaml } from "../ui/Object";
import { fieldsOf } from "../ui/schema";
import { About } from "./functions/Create";

export default function Images() {
  const q = useImages();
  const functions = useList("function");
  const [shown, setShown] = useState<Image>();
  const users = useMemo(() => {
    const by = new Map<string, string[]>();
    for (const f of functions ?? []) {
      const digest = f.status.image;
      if (digest) by.set(digest, [...(by.get(digest) ?? []), f.name]);
    }
    return by;
  }, [functions]);
  const columns = useMemo<Column<Image>[]>(
    () => [
      {
        key: "name",
        title: "Image",
        value: (i) => i.name,
        render: (i) => (
          <Button variant="transparent" p={0} h="auto" className="mono" onClick={() => setShown(i)}>
            {i.name}
          </Button>
        ),
      },
      { key: "description", title: "What it does", value: (i) => i.description ?? "", render: (i) => <span className="break">{i.description}</span> },
      { key: "ports", title: "Ports", value: (i) => (i.tap ? "tap" : "in, out"), render: (i) => <span className="mono">{i.tap ? "tap" : "in, out"}</span> },
      { key: "users", title: "Used by", value: (i) => (users.get(i.digest) ?? []).join(" "), render: (i) => <Users names={users.get(i.digest) ?? []} /> },
      { key: "size", title: "Size", align: "right", wide: true, value: (i) => i.size_bytes ?? 0, render: (i) => bytes(i.size_bytes ?? 0) },
      { key: "hosts", title: "Hosts", align: "right", wide: true, value: (i) => i.hosts?.length ?? 0 },
      { key: "digest", title: "Digest", wide: true, value: (i) => i.digest, render: (i) => <span className="mono dim">{i.digest.slice(7, 19)}</span> },
    ],
    [users],
  );
  if (q.isPending) return <Loading />;
  const items = q.data?.items ?? [];
  return (
    <div className="stack">
      <PageHead title="Images" lead="What functions are made of: the catalogue that comes with Weir, and what hosts have pulled, imported or built." />
      <Failure error={q.error} />
      {q.data?.warnings?.map((w) => (
        <Notice key={w} level="warn">
          {w}
        </Notice>
      ))}
      <Panel flush>
        <DataTable
          name="images"
          rows={items}
          columns={columns}
          rowKey={(i) => i.name + i.digest}
          empty={<Empty title="No host has an image">weir image pull, import or build brings one to a host.</Empty>}
        />
      </Panel>
      <SameAs text="weir image list" />
      <Modal opened={!!shown} onClose={() => setShown(undefined)} title={<span className="mono">{shown?.name}</span>}>
        {shown && <ImageCard image={shown} users={users.get(shown.digest) ?? []} />}
      </Modal>
    </div>
  );
}

function Users({ names }: { names: string[] }) {
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

function ImageCard({ image: i, users }: { image: Image; users: string[] }) {
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
        <dd>{i.hosts?.join(", ")}</dd>
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
      <div className="row" style={{ justifyContent: "flex-end" }}>
        <Button component={Link} to={`/functions/new?image=${encodeURIComponent(i.name)}`}>
          New function of it
        </Button>
      </div>
    </div>
  );
}
