/** How far a machine is that joins: code made → machine seen → approved → healthy. Pure. */

export interface JoiningNode {
  readonly id: string;
  readonly name: string;
  readonly kind: string;
  readonly status: string;
  readonly reason: string;
  readonly problems: readonly string[];
  readonly fingerprint: string;
}

export interface OpenInvitation {
  readonly id: string;
  readonly state: string;
  readonly approve: boolean;
}

export type StepState = "done" | "now" | "later" | "trouble";

export interface JoinStep {
  readonly id: "code" | "seen" | "approved" | "healthy";
  readonly title: string;
  readonly state: StepState;
  /** What is known, or what is missing. */
  readonly detail: string;
}

/** Nodes that are new since the wizard began, and of the kind that it waits for. */
export function newcomers<Node extends JoiningNode>(
  nodes: Iterable<Node>,
  known: ReadonlySet<string>,
  kind: string,
): readonly Node[] {
  return [...nodes].filter((node) => !known.has(node.id) && node.kind === kind);
}

export function joinSteps(
  invitation: OpenInvitation | null,
  node: JoiningNode | null,
  needsCode: boolean,
): readonly JoinStep[] {
  return [
    codeStep(invitation, node, needsCode),
    seenStep(invitation, node, needsCode),
    approvedStep(invitation, node),
    healthyStep(node),
  ];
}

function codeStep(invitation: OpenInvitation | null, node: JoiningNode | null, needsCode: boolean): JoinStep {
  const step = { id: "code", title: needsCode ? "Join code made" : "Command shown" } as const;
  if (!needsCode)
    return { ...step, state: "done", detail: "It uses the registration token, which all workers of LocalAI's share." };
  if (invitation === null) return { ...step, state: "now", detail: "Press “Make and copy the command”." };
  if (node === null && invitation.state !== "open" && invitation.state !== "used") {
    return { ...step, state: "trouble", detail: `The code is ${invitation.state}. Make another one.` };
  }
  return { ...step, state: "done", detail: "It lets one machine in, and is used up by that." };
}

function seenStep(invitation: OpenInvitation | null, node: JoiningNode | null, needsCode: boolean): JoinStep {
  const step = { id: "seen", title: "Machine seen" } as const;
  if (node !== null) return { ...step, state: "done", detail: `${node.name} has registered.` };
  if (needsCode && invitation === null) return { ...step, state: "later", detail: "" };
  return { ...step, state: "now", detail: "Waiting for the machine. It must reach the frontend at the URL above." };
}

function approvedStep(invitation: OpenInvitation | null, node: JoiningNode | null): JoinStep {
  const step = { id: "approved", title: "Approved" } as const;
  if (node === null)
    return { ...step, state: "later", detail: invitation?.approve ? "By its code, without anybody's doing." : "" };
  if (node.status !== "pending") return { ...step, state: "done", detail: "It belongs to the fleet." };
  const compare = node.fingerprint === "" ? "" : " Compare the fingerprint with the one on its screen.";
  return { ...step, state: "now", detail: `It waits for you.${compare}` };
}

function healthyStep(node: JoiningNode | null): JoinStep {
  const step = { id: "healthy", title: "Healthy" } as const;
  if (node === null || node.status === "pending") return { ...step, state: "later", detail: "" };
  const missing = node.problems.join(" ");
  if (node.status === "healthy")
    return { ...step, state: "done", detail: missing || "Its heartbeats arrive, and it takes work." };
  return {
    ...step,
    state: "trouble",
    detail: [node.reason, missing].filter(Boolean).join(" ") || `It is ${node.status}.`,
  };
}
