// Images of an archive on the user's machine.
import { Button, FileInput, Modal, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { importImage, maxArchive } from "../../api/images";
import { Failure, Notice, SameAs } from "../../ui/basic";
import { bytes, command } from "../../ui/format";

export function ImportDialog({ onClose }: { onClose: () => void }) {
  const queries = useQueryClient();
  const [file, setFile] = useState<File | null>(null);
  const [as, setAs] = useState("");
  const [sent, setSent] = useState<number>();
  const [error, setError] = useState<unknown>();
  const upload = useRef<AbortController>(undefined);
  useEffect(() => () => upload.current?.abort(), []);
  const large = !!file && file.size > maxArchive;
  const busy = sent !== undefined;
  const run = async () => {
    if (!file) return;
    setError(undefined);
    setSent(0);
    upload.current = new AbortController();
    try {
      const got = await importImage(file, as.trim(), setSent, upload.current.signal);
      notifications.show({ message: `Imported: ${(got.items ?? []).map((i) => i.name).join(", ")}`, autoClose: 4000 });
      void queries.invalidateQueries({ queryKey: ["images"] });
      onClose();
    } catch (e) {
      setError(e);
    } finally {
      setSent(undefined);
    }
  };
  const text = busy && file ? (sent < file.size ? `${bytes(sent)} of ${bytes(file.size)} sent` : "The manager reads it") : "";
  return (
    <Modal opened onClose={onClose} title="Import images" closeOnClickOutside={!busy}>
      <form
        className="stack"
        onSubmit={(e) => {
          e.preventDefault();
          if (file && !large && !busy) void run();
        }}
      >
        <p>
          An archive, not compressed, as <code>docker save</code>, <code>podman save</code>, <code>skopeo copy ... oci-archive:FILE</code> and <code>weir image export</code> write it; at most {bytes(maxArchive)}.
        </p>
        <FileInput label="Archive" description="On this machine, a .tar file" required placeholder="Choose a file" value={file} onChange={setFile} accept=".tar,application/x-tar" disabled={busy} />
        <TextInput label="Name" description="Of the only image; without it images keep the names that they have in the archive" placeholder="filter:2" value={as} onChange={(e) => setAs(e.currentTarget.value)} spellCheck={false} disabled={busy} />
        {large && (
          <Notice level="warn" role="status">
            The archive has {bytes(file.size)}. Copy it to the manager&apos;s machine: the command below takes larger ones.
          </Notice>
        )}
        {busy && file && (
          <div className="meter" role="progressbar" aria-label="Upload" aria-valuemin={0} aria-valuemax={file.size || 1} aria-valuenow={Math.min(sent, file.size)} aria-valuetext={text}>
            <span className="num">{text}</span>
            <div className="bar">
              <i style={{ width: `${file.size ? Math.min(100, (100 * sent) / file.size) : 0}%` }} />
            </div>
          </div>
        )}
        <Failure error={error} />
        <SameAs label="The same on the manager's machine" text={command("weir", "image", "import", file?.name ?? "FILE", as.trim() && "--as", as.trim())} />
        <div className="row" style={{ justifyContent: "flex-end" }}>
          <Button variant="default" onClick={onClose}>
            Cancel
          </Button>
          <Button type="submit" loading={busy} disabled={!file || large}>
            Import
          </Button>
        </div>
      </form>
    </Modal>
  );
}
