// What to do about an object that is not well: by its kind and its condition's reason. The message says what happened.
import type { Readiness } from "../api/ready";
import type { Kind } from "../api/types";

export function advice(kind: Exclude<Kind, "event">, name: string, r: Readiness): string {
  if (r.state === "deleting") return "Wait: its host is taking it down.";
  switch (kind) {
    case "host":
      if (r.state === "lost") return "Look whether the machine and its agent run (weir agent) and reach the manager. Its functions are moved; what it forwards goes on.";
      return r.state === "starting" ? "Wait: its agent is looking at what is there." : "Look at the host's features.";
    case "function":
      if (r.state === "not healthy" || r.state === "failed") return `Look at its logs: weir function logs ${name} --tail 20`;
      return r.level === "warn" ? "Look at its conditions." : "Wait, or look at its conditions and its host's events.";
    case "endpoint":
      return r.state === "error" ? "Make what the message names; its host tries again by itself." : "Wait: its host makes the port.";
    case "chain":
      return "Look at its functions: a chain is ready when all of them are.";
    case "policy":
      return r.state === "error" ? "Mend what the message names, or change the policy." : "Look at its chain: a policy is in force when its functions work.";
    default:
      return "Look whether the switch runs and reaches the manager.";
  }
}
