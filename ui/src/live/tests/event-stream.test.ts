import { describe, expect, it } from "vitest";

import { EventStreamReader } from "../event-stream";

const TEXT = 'id: a.1\nevent: snapshot\ndata: {"topic":\ndata: "nodes"}\n\n: beat\n\nid: a.2\ndata: 2\n\n';

describe("the reader of server-sent events", () => {
  it("joins the lines of one event's data", () => {
    const { events, beats } = new EventStreamReader().feed(TEXT);

    expect(events).toEqual([
      { event: "snapshot", data: '{"topic":\n"nodes"}', id: "a.1" },
      { event: "message", data: "2", id: "a.2" },
    ]);
    expect(beats).toBe(1);
  });

  it.each([1, 2, 3, 7])("reads the same when text comes in pieces of %i characters", (size) => {
    const text = TEXT.replaceAll("\n", "\r\n");
    const reader = new EventStreamReader();
    const events = [];
    for (let at = 0; at < text.length; at += size) events.push(...reader.feed(text.slice(at, at + size)).events);

    expect(events).toEqual(new EventStreamReader().feed(TEXT).events);
  });

  it("says nothing of an event whose end has not come", () => {
    expect(new EventStreamReader().feed("data: 1\n").events).toEqual([]);
  });
});
