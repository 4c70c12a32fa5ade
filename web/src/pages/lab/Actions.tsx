// End, continue and delete a run.
import { Button, Tooltip } from "@mantine/core";
import { IconPlayerPlay, IconPlayerStop, IconTrash } from "@tabler/icons-react";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { cancelLab, deleteLab, resumeLab, type LabRun } from "../../api/lab";
import { useMay } from "../../api/session";
import { Confirm } from "../../ui/Confirm";
import { command } from "../../ui/format";

export function RunActions({ run, refused, onDeleted }: { run: LabRun; refused?: string; onDeleted: () => void }) {
  const queries = useQueryClient();
  const admin = useMay("admin");
  const [what, setWhat] = useState<"cancel" | "continue" | "delete">();
  const again = () => {
    void queries.invalidateQueries({ queryKey: ["lab", "runs"] });
    if (what !== "delete") void queries.invalidateQueries({ queryKey: ["lab", "run", run.name] });
  };
  const ends = run.state === "running" && !!run.message;
  return (
    <>
      {run.state === "running" && (
        <Button variant="default" leftSection={<IconPlayerStop size={14} />} disabled={!admin.ok || ends} onClick={() => setWhat("cancel")}>
          {ends ? "It ends" : "Cancel"}
        </Button>
      )}
      {run.state === "partial" && (
        <Tooltip label={refused || admin.why} disabled={!refused && admin.ok}>
          <span>
            <Button variant="default" leftSection={<IconPlayerPlay size={14} />} disabled={!admin.ok || !!refused} onClick={() => setWhat("continue")}>
              Continue
            </Button>
          </span>
        </Tooltip>
      )}
      {run.state !== "running" && (
        <Button variant="default" leftSection={<IconTrash size={14} />} disabled={!admin.ok} onClick={() => setWhat("delete")}>
          Delete
        </Button>
      )}
      {what === "cancel" && (
        <Confirm opened onClose={() => setWhat(undefined)} title={`Cancel ${run.name}`} verb="Cancel the run" command={command("weir", "lab", "runs")} action={() => cancelLab(run.name)} done="The run ends" onDone={again}>
          It takes down what it made, which takes a moment. The trials that were made stay and count, and the run can be continued. From a shell: Ctrl-C where it runs.
        </Confirm>
      )}
      {what === "continue" && (
        <Confirm
          opened
          onClose={() => setWhat(undefined)}
          title={`Continue ${run.name}`}
          verb="Continue"
          command={command("weir", "lab", "resume", run.directory)}
          action={() => resumeLab(run.name)}
          done={`${run.name} goes on`}
          onDone={again}
        >
          It makes the {run.left} trials that are left, in their planned order. It takes the processors of this machine while it runs.
        </Confirm>
      )}
      {what === "delete" && (
        <Confirm
          opened
          dangerous
          onClose={() => setWhat(undefined)}
          title={`Delete ${run.name}`}
          verb="Delete"
          command={command("rm", "-r", run.directory)}
          action={() => deleteLab(run.name)}
          done={`${run.name} is deleted`}
          onDone={() => {
            onDeleted();
            again();
          }}
        >
          Its trials and its report go. There is no undo: to keep them, copy <code>{run.directory}</code> first.
        </Confirm>
      )}
    </>
  );
}
