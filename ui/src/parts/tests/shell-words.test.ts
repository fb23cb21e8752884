import { describe, expect, it } from "vitest";

import { shellCommand, shellQuote } from "../shell-words";

describe("words of a command", () => {
  it("are left alone where a shell would", () => {
    expect(shellCommand(["corral", "backends", "install", "llama-cpp", "--label", "zone=a"])).toBe(
      "corral backends install llama-cpp --label zone=a",
    );
  });

  it("are quoted where a shell would change them", () => {
    expect(shellQuote("http://10.0.0.1:8080#pin")).toBe("'http://10.0.0.1:8080#pin'");
    expect(shellQuote("it's $HOME")).toBe(`'it'"'"'s $HOME'`);
    expect(shellQuote("")).toBe("''");
  });
});
