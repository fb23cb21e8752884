import { describe, expect, it } from "vitest";

import { cardName, cardUses, usersText } from "../card-uses";

const GIB = 1024 ** 3;

function replica(model: string, vram: number, cards: string[], node_id = "n1") {
  return { node_id, model, index: 0, vram, cards };
}

function card(id: string, replicas: string[] = []) {
  return { id, total: 24 * GIB, free: 20 * GIB, replicas };
}

describe("what fills a GPU", () => {
  it("is what is used, what is reserved, and for whom", () => {
    const [use] = cardUses("n1", [card("a", ["chat#0"])], [replica("chat", 2 * GIB, ["a"])]);
    expect(use?.share).toEqual({ total: 24 * GIB, used: 4 * GIB, reserved: 2 * GIB });
    expect(use && usersText(use)).toBe("used by chat#0 (2.0 GiB reserved)");
  });

  it("is an equal part of a replica that may use several", () => {
    const uses = cardUses("n1", [card("a", ["big#0"]), card("b", ["big#0"])], [replica("big", 6 * GIB, ["a", "b"])]);
    expect(uses.map((use) => use.share.reserved)).toEqual([3 * GIB, 3 * GIB]);
  });

  it("is nothing of replicas on other nodes, and names those whose part is not known", () => {
    const [use] = cardUses("n1", [card("a", ["chat#0"])], [replica("chat", 2 * GIB, ["a"], "n2")]);
    expect(use?.share.reserved).toBe(0);
    expect(use && usersText(use)).toBe("used by chat#0");
  });

  it("is nobody where no replica may use it", () => {
    const [use] = cardUses("n1", [card("a")], []);
    expect(use && usersText(use)).toBe("no replica may use it now");
  });
});

describe("the name of a GPU", () => {
  it("has its number where the node tells it", () => {
    expect(cardName({ id: "GPU-a", index: 1, name: "L40S" })).toBe("GPU 1 L40S");
    expect(cardName({ id: "GPU-a", index: null, name: "L40S" })).toBe("L40S");
    expect(cardName({ id: "GPU-a", index: null, name: "" })).toBe("GPU-a");
  });
});
