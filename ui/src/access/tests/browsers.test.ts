import { describe, expect, it } from "vitest";

import { browserOf } from "../browsers";

describe("the browser of a session", () => {
  it.each([
    [
      "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0 Safari/537.36",
      "Chrome on Linux",
    ],
    ["Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/141.0 Safari/537.36 Edg/141.0", "Edge on Windows"],
    ["Mozilla/5.0 (Macintosh; Intel Mac OS X 15.0; rv:144.0) Gecko/20100101 Firefox/144.0", "Firefox on macOS"],
    ["Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Version/19.0 Mobile/15E148 Safari/604.1", "Safari on iOS"],
    ["curl/8.11.0", "curl/8.11.0"],
    ["", ""],
  ])("is told of %j", (agent, told) => expect(browserOf(agent)).toBe(told));
});
