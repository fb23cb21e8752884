import { describe, expect, it } from "vitest";

import { afterText, applyCommand, changeLines } from "../rule-plan";
import { NEW_RULE } from "../rule-set";

const changes = { added: ["a"], changed: ["b"], removed: ["c"] };

describe("the plan of a change of rules", () => {
  it("names what is added, changed and removed", () => {
    expect(changeLines({ changes })).toEqual(["+ a", "~ b", "- c"]);
  });

  it("says what follows, and what is doubted", () => {
    const applied = { revision: "r", changes, operations: [], doubts: { a: "No gallery has it." } };
    expect(afterText(applied)).toBe("Saved. Nothing is left to do. No gallery has it.");
  });
});

describe("the command that does the same", () => {
  it("applies a file with this rule, whatever is in its texts", () => {
    const draft = { ...NEW_RULE, name: "speech", backend: 'ec"ho: x', labels: "zone=a" };
    expect(applyCommand({ kind: "put", was: "", draft })).toBe(
      [
        "corral backends apply -f - <<'END'",
        "rules:",
        '  - name: "speech"',
        '    backend: "ec\\"ho: x"',
        "    labels:",
        '      "zone": "a"',
        "END",
      ].join("\n"),
    );
  });

  it("deletes a rule", () => {
    expect(applyCommand({ kind: "remove", was: "old one", deletes: false })).toBe(
      "corral backends rules delete 'old one'",
    );
  });
});
