// A dialog that says what an action will do, and the command that does the same, before it happens.
import { Button, Modal } from "@mantine/core";
import type { ReactNode } from "react";
import { useAction } from "../api/actions";
import { Failure, SameAs } from "./basic";

interface Props {
  title: string;
  opened: boolean;
  onClose: () => void;
  /** What happens, in a sentence or two. */
  children: ReactNode;
  /** The same from a shell. */
  command: string;
  verb: string;
  dangerous?: boolean;
  action: () => Promise<unknown>;
  done: string;
  onDone?: () => void;
}

export function Confirm({ title, opened, onClose, children, command, verb, dangerous, action, done, onDone }: Props) {
  const run = useAction<void>(action, {
    done: () => done,
    onDone: () => {
      onClose();
      onDone?.();
    },
  });
  const close = () => {
    run.reset();
    onClose();
  };
  return (
    <Modal opened={opened} onClose={close} title={title}>
      <div className="stack">
        <div className="break">{children}</div>
        <Failure error={run.error} />
        <SameAs text={command} />
        <div className="row" style={{ justifyContent: "flex-end" }}>
          <Button variant="default" onClick={close}>
            Cancel
          </Button>
          <Button color={dangerous ? "red.8" : undefined} loading={run.isPending} onClick={() => run.mutate()} data-autofocus={!dangerous || undefined}>
            {verb}
          </Button>
        </div>
      </div>
    </Modal>
  );
}
