import { describe, expect, it } from "vitest";

import { sharesOf } from "../bar";

describe("the parts of a memory bar", () => {
  it("shows of what is reserved only what is not used already", () => {
    expect(sharesOf({ total: 100, used: 40, reserved: 40 })).toEqual({ used: 40, reserved: 0 });
    expect(sharesOf({ total: 100, used: 10, reserved: 40 })).toEqual({ used: 10, reserved: 30 });
  });

  it("never leaves the bar", () => {
    expect(sharesOf({ total: 100, used: 150, reserved: 200 })).toEqual({ used: 100, reserved: 0 });
    expect(sharesOf({ total: 100, used: 30, reserved: 200 })).toEqual({ used: 30, reserved: 70 });
  });
});
