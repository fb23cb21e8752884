import { describe, expect, it } from "vitest";

import { type JoiningNode, joinSteps, newcomers } from "../steps";

const node = (status: string, more: Partial<JoiningNode> = {}): JoiningNode => ({
  id: "n",
  name: "gpu-1",
  kind: "corral",
  status,
  reason: "",
  problems: [],
  fingerprint: "9R2K-D8EX-41MB-QTWZ",
  ...more,
});
const invitation = (state = "open", approve = false) => ({ id: "i", state, approve });
const states = (...steps: Parameters<typeof joinSteps>) => joinSteps(...steps).map((step) => step.state);

describe("the steps of joining", () => {
  it("begin with the code", () => {
    expect(states(null, null, true)).toEqual(["now", "later", "later", "later"]);
    expect(states(invitation(), null, true)).toEqual(["done", "now", "later", "later"]);
  });

  it("wait for a person when the machine is seen, who shall compare its fingerprint", () => {
    const steps = joinSteps(invitation("used"), node("pending"), true);
    expect(steps.map((step) => step.state)).toEqual(["done", "done", "now", "later"]);
    expect(steps[2]?.detail).toContain("fingerprint");
  });

  it("end when the node is healthy, and say what it still lacks", () => {
    expect(states(invitation("used"), node("healthy"), true)).toEqual(["done", "done", "done", "done"]);
    const steps = joinSteps(invitation("used"), node("healthy", { problems: ["nobody reaches its ports"] }), true);
    expect(steps[3]?.detail).toBe("nobody reaches its ports");
  });

  it("show why an approved machine is not healthy", () => {
    const steps = joinSteps(invitation("used"), node("unhealthy", { reason: "silent for 30 s" }), true);
    expect(steps[3]).toMatchObject({ state: "trouble", detail: "silent for 30 s" });
  });

  it("say that a code is over before a machine came with it", () => {
    expect(states(invitation("expired"), null, true)[0]).toBe("trouble");
    expect(states(invitation("used"), null, true)[0]).toBe("done");
  });

  it("need no code for workers of LocalAI's", () => {
    expect(states(null, null, false)).toEqual(["done", "now", "later", "later"]);
  });
});

describe("newcomers", () => {
  it("are nodes of the awaited kind that nobody knew when the wizard began", () => {
    const nodes = [
      node("healthy", { id: "old" }),
      node("pending", { id: "new" }),
      node("pending", { id: "other", kind: "localai" }),
    ];
    expect(newcomers(nodes, new Set(["old"]), "corral").map((each) => each.id)).toEqual(["new"]);
  });
});
