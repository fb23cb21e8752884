/** Reads server-sent events from text that arrives in pieces. Pure: bytes and time are the caller's. */

export interface StreamEvent {
  readonly event: string;
  readonly data: string;
  /** The place in the stream that is reached with this event; empty where it names none. */
  readonly id: string;
}

/** What one piece of text contained: events, and whether a comment was among it, which is a sign of life. */
export interface Heard {
  readonly events: readonly StreamEvent[];
  readonly beats: number;
}

export class EventStreamReader {
  private rest = "";
  private id = "";
  private event = "";
  private data: string[] = [];
  private hadReturn = false;

  feed(text: string): Heard {
    const events: StreamEvent[] = [];
    let beats = 0;
    for (const line of this.lines(text)) {
      if (line.startsWith(":")) beats += 1;
      else if (line === "") this.finish(events);
      else this.field(line);
    }
    return { events, beats };
  }

  /** Whole lines; a line may end with a carriage return whose newline comes in the next piece. */
  private lines(text: string): string[] {
    const joined = this.hadReturn && text.startsWith("\n") ? text.slice(1) : text;
    this.hadReturn = joined.endsWith("\r");
    const lines = (this.rest + joined).split(/\r\n|\n|\r/);
    this.rest = lines.pop() ?? "";
    return lines;
  }

  private field(line: string): void {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.event = value;
    else if (name === "data") this.data.push(value);
    else if (name === "id") this.id = value;
  }

  private finish(events: StreamEvent[]): void {
    if (this.data.length > 0) {
      events.push({ event: this.event || "message", data: this.data.join("\n"), id: this.id });
    }
    this.event = "";
    this.id = "";
    this.data = [];
  }
}
