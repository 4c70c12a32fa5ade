import { Button, Modal } from "@mantine/core";
import { IconDownload, IconEraser, IconFileUpload } from "@tabler/icons-react";
import { useMemo, useState } from "react";
import { useImages, type Image } from "../../api/images";
import { useList } from "../../api/live";
import { useMay } from "../../api/session";
import { Empty, Failure, Loading, Notice, PageHead, Panel, SameAs } from "../../ui/basic";
import { DataTable, type Column } from "../../ui/DataTable";
import { bytes } from "../../ui/format";
import { DeleteImage, ImageCard, Users } from "./Card";
import { CollectDialog } from "./Collect";
import { ImportDialog } from "./Import";
import { PullDialog, Pulls } from "./Pull";

export default function Images() {
  const q = useImages();
  const functions = useList("function");
  const admin = useMay("admin");
  const [shown, setShown] = useState<Image>();
  const [deleting, setDeleting] = useState<Image>();
  const [dialog, setDialog] = useState<"pull" | "import" | "collect">();
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
      { key: "ports", title: "Ports", value: (i) => (i.tap ? "tap" : "in, out"), render: (i) => <span className="mono nowrap">{i.tap ? "tap" : "in, out"}</span> },
      { key: "users", title: "Used by", value: (i) => (users.get(i.digest) ?? []).join(" "), render: (i) => <Users names={users.get(i.digest) ?? []} /> },
      { key: "size", title: "Size", align: "right", wide: true, value: (i) => i.size_bytes ?? 0, render: (i) => <span className="nowrap">{bytes(i.size_bytes ?? 0)}</span> },
      { key: "hosts", title: "Hosts", align: "right", wide: true, value: (i) => i.hosts?.length ?? 0, render: (i) => (i.hosts?.length ? i.hosts.length : <span className="dim">manager</span>) },
      { key: "digest", title: "Digest", wide: true, value: (i) => i.digest, render: (i) => <span className="mono dim">{i.digest.slice(7, 19)}</span> },
    ],
    [users],
  );
  if (q.isPending) return <Loading />;
  const items = q.data?.items ?? [];
  return (
    <div className="stack">
      <PageHead
        title="Images"
        lead="What functions are made of: the catalogue that comes with Weir, and what was pulled, imported or built. Hosts that lack an image of the manager fetch it from there."
        actions={
          <>
            <Button variant="default" leftSection={<IconEraser size={14} />} disabled={!admin.ok} title={admin.why} onClick={() => setDialog("collect")}>
              Clean up
            </Button>
            <Button variant="default" leftSection={<IconFileUpload size={14} />} disabled={!admin.ok} title={admin.why} onClick={() => setDialog("import")}>
              Import
            </Button>
            <Button leftSection={<IconDownload size={14} />} disabled={!admin.ok} title={admin.why} onClick={() => setDialog("pull")}>
              Pull
            </Button>
          </>
        }
      />
      <Failure error={q.error} />
      {q.data?.warnings?.map((w) => (
        <Notice key={w} level="warn">
          {w}
        </Notice>
      ))}
      <Pulls />
      <Panel flush>
        <DataTable
          name="images"
          rows={items}
          columns={columns}
          rowKey={(i) => i.name + i.digest}
          empty={<Empty title="No host has an image">Pull one from a registry, import an archive, or build one: weir image build.</Empty>}
        />
      </Panel>
      <SameAs text="weir image list" />
      {dialog === "pull" && <PullDialog onClose={() => setDialog(undefined)} />}
      {dialog === "collect" && <CollectDialog onClose={() => setDialog(undefined)} />}
      {dialog === "import" && <ImportDialog onClose={() => setDialog(undefined)} />}
      {deleting && <DeleteImage image={deleting} users={users.get(deleting.digest) ?? []} onClose={() => setDeleting(undefined)} />}
      <Modal opened={!!shown} onClose={() => setShown(undefined)} title={<span className="mono">{shown?.name}</span>}>
        {shown && (
          <ImageCard
            image={shown}
            users={users.get(shown.digest) ?? []}
            onDelete={() => {
              setDeleting(shown);
              setShown(undefined);
            }}
          />
        )}
      </Modal>
    </div>
  );
}
