import { describe, expect, it } from "vitest";

import { pageAt } from "../pages";

describe("pageAt", () => {
  it("finds the page that owns an address, however much follows", () => {
    expect(pageAt("/models/llama%203")?.title).toBe("Models");
    expect(pageAt("/nodes/n-1")?.title).toBe("Node");
    expect(pageAt("/fleet")?.title).toBe("Fleet");
  });

  it("takes the first page for the bare address", () => {
    expect(pageAt("")?.title).toBe("Fleet");
    expect(pageAt("/")?.title).toBe("Fleet");
  });

  it("knows no page for an address that leads nowhere", () => {
    expect(pageAt("/nothing/here")).toBeUndefined();
  });
});
