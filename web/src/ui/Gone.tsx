// The page of an object that is not there, and the dialog that makes it so.
import { useQueryClient } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { useNavigate } from "react-router";
import { deleteObjects } from "../api/actions";
import { remember, sections, specIn, undoOf } from "../api/undo";
import { Empty } from "./basic";
import { Confirm } from "./Confirm";
import { command } from "./format";
import { LinkButton, UndoButton } from "./Plan";

type Kind = keyof typeof sections;

/** Instead of an object's page. */
export function Gone({ kind, name }: { kind: Kind; name: string }) {
  return (
    <>
      <Empty page title={`There is no ${kind} ${name}`} action={<LinkButton to={`/${sections[kind]}`}>All {sections[kind]}</LinkButton>}>
        It was deleted, or never made.
      </Empty>
      <div className="row" style={{ justifyContent: "center" }}>
        <UndoButton />
      </div>
    </>
  );
}

/** Asks, deletes, and goes to the list of the kind. It can be undone. The children say what else happens. */
export function Delete({ kind, name, onClose, children }: { kind: Kind; name: string; onClose: () => void; children: ReactNode }) {
  const queries = useQueryClient();
  const go = useNavigate();
  return (
    <Confirm
      opened
      onClose={onClose}
      title={`Delete ${name}`}
      verb="Delete"
      dangerous
      command={command("weir", "delete", kind, name)}
      action={async () => {
        const undo = undoOf([{ kind, name, action: "delete" }], specIn(queries));
        await deleteObjects({ [sections[kind]]: [name] });
        remember(undo);
      }}
      done={kind === "chain" ? `chain/${name} is deleted.` : `${kind}/${name} goes.`}
      onDone={() => void go(`/${sections[kind]}`)}
    >
      {children}
    </Confirm>
  );
}
