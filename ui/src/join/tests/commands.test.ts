import { describe, expect, it } from "vitest";

import { askingCommand, checkCommand, gpusOf, joinCommand, localAiCommand, setupCommand } from "../commands";
import { joinUrl, natsProblem, natsUrls, urlProblem } from "../urls";

const invitation = { code: "K7QM-2XVD-9PTR-4HBN-0S3C", pin: "mfzwcylbmfqwcylbmfqwcylbmfqwcylb" };
const url = "http://10.0.0.1:8080";

describe("the command for a Corral worker", () => {
  it("joins with one paste, and the code is no word of the worker's command", () => {
    const command = joinCommand(url, invitation);
    expect(command).toBe(
      "echo K7QM-2XVD-9PTR-4HBN-0S3C | corral worker --join 'http://10.0.0.1:8080#mfzwcylbmfqwcylbmfqwcylbmfqwcylb' --code-descriptor 0",
    );
    expect(command.split("|")[1]).not.toContain(invitation.code);
  });

  it("sets Corral up and joins in one paste, and joins only what was set up", () => {
    const lines = setupCommand(url, invitation).split(" && ");
    expect(lines[0]).toBe("python3 tools/bootstrap.py setup");
    expect(lines.at(-1)).toBe(joinCommand(url, invitation));
  });

  it("may ask for the code instead, or only check", () => {
    expect(askingCommand(url, invitation.pin)).not.toContain(invitation.code);
    expect(checkCommand(url, invitation)).toMatch(/--check$/);
  });
});

describe("the command for a worker of LocalAI's", () => {
  const place = { url, nats: ["nats://10.0.0.1:4222"], system: "linux", gpu: "nvidia" } as const;

  it("has real addresses and asks for the token on its last line", () => {
    const lines = localAiCommand(place).split("\n");
    expect(lines).toContain("export LOCALAI_REGISTER_TO=http://10.0.0.1:8080");
    expect(lines).toContain("export LOCALAI_NATS_URL=nats://10.0.0.1:4222");
    expect(lines.at(-1)).toMatch(/read -r LOCALAI_REGISTRATION_TOKEN.*local-ai worker$/);
    expect(lines.slice(0, -1).join()).not.toContain("read");
  });

  it("hands names, not values, to a container, with the image and the devices for the GPU", () => {
    const last =
      localAiCommand({ ...place, system: "container" })
        .split("\n")
        .at(-1) ?? "";
    expect(last).toContain("-e LOCALAI_REGISTRATION_TOKEN -e LOCALAI_REGISTER_TO");
    expect(last).toContain("--gpus all");
    expect(last).toMatch(/latest-gpu-nvidia-cuda-12 worker$/);
  });

  it("offers only GPUs that a system can have", () => {
    expect(gpusOf("macos")).toEqual(["apple", "none"]);
    expect(gpusOf("linux")).toContain("nvidia");
  });
});

describe("where the new machine reaches the frontend", () => {
  it("is what the frontend says, where that means anything elsewhere", () => {
    expect(joinUrl("https://fleet.example/", "http://127.0.0.1:8080")).toEqual({
      url: "https://fleet.example",
      problem: "",
    });
  });

  it("is how this browser reaches it, where the frontend only knows that it listens everywhere", () => {
    expect(joinUrl("http://0.0.0.0:8080", "http://10.0.0.1:8080")).toEqual({
      url: "http://10.0.0.1:8080",
      problem: "",
    });
    expect(joinUrl("http://127.0.0.1:8080", "https://proxy.example").url).toBe("https://proxy.example");
  });

  it("is told to be of no use elsewhere when it is on loopback", () => {
    expect(joinUrl("http://127.0.0.1:8080", "http://localhost:8080").problem).toContain("--host 0.0.0.0");
    expect(joinUrl("http://[::]:8080", "http://localhost:8080").problem).toContain("Replace the host");
  });

  it("must be a URL", () => {
    expect(urlProblem("http://10.0.0.1:8080")).toBe("");
    expect(urlProblem("10.0.0.1:8080")).not.toBe("");
    expect(urlProblem("ftp://10.0.0.1")).not.toBe("");
    expect(urlProblem("http://0.0.0.0:8080")).toContain("every interface");
  });

  it("decides where NATS is, when that is on the frontend's own machine", () => {
    expect(natsUrls(["nats://127.0.0.1:4222", "nats://nats.example:4222"], url)).toEqual([
      "nats://10.0.0.1:4222",
      "nats://nats.example:4222",
    ]);
    expect(natsUrls(["tls://[::1]:4222"], url)).toEqual(["tls://10.0.0.1:4222"]);
    expect(natsProblem([])).toContain("CORRAL_NATS_URL");
    expect(natsProblem(["nats://x:4222"])).toBe("");
  });
});
