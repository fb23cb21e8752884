/** Times that keep up: an age that grows, with the exact time as a hint. */

import { useNow } from "../live/clock";
import { age, duration, moment, secondsSince } from "./format";

/** "12 s ago". */
export function Age({ at }: { at: string | null | undefined }) {
  const now = useNow();
  return (
    <time dateTime={at ?? ""} title={moment(at, now)}>
      {age(at, now)}
    </time>
  );
}

/** "for 3 min 4 s": how long something has been so. */
export function Since({ at }: { at: string | null | undefined }) {
  const now = useNow();
  const seconds = secondsSince(at, now);
  if (seconds === null) return null;
  return (
    <time dateTime={at ?? ""} title={moment(at, now)}>
      {duration(seconds)}
    </time>
  );
}

/** The time of day, with the date when it is not today. */
export function Moment({ at }: { at: string | null | undefined }) {
  const now = useNow();
  return (
    <time dateTime={at ?? ""} title={age(at, now)}>
      {moment(at, now)}
    </time>
  );
}
