/** What holds for the whole page: the stream is lost, control is away, automatic acts are held back. */

import { silence, useConnection, useSummary } from "../live/live";
import { duration, moment } from "../parts/format";
import { Notice } from "../parts/states";
import styles from "./banners.module.css";
import { useFreshness } from "./connection-dot";

export function Banners() {
  return (
    <div className={styles.banners}>
      <ConnectionBanner />
      <BrakeBanner />
    </div>
  );
}

function ConnectionBanner() {
  const connection = useConnection();
  const freshness = useFreshness();
  if (connection.state === "lost" && connection.controlAwaySince !== null) {
    const since = moment(new Date(connection.controlAwaySince).toISOString(), Date.now());
    return (
      <Notice tone="yellow">
        <strong>Control is away since {since}; models keep serving.</strong> <FromBefore /> Nothing can be changed until
        it is back; this page goes on by itself.
      </Notice>
    );
  }
  if (freshness !== "lost" && freshness !== "stale") return null;
  if (connection.state === "refused") return null;
  return (
    <Notice tone="yellow">
      <strong>The frontend does not answer.</strong> <FromBefore /> This page tries again by itself.
    </Notice>
  );
}

function FromBefore() {
  return <span>What you see is {duration(silence() / 1000)} old.</span>;
}

function BrakeBanner() {
  const brake = useSummary()?.brake ?? "";
  if (brake === "") return null;
  return (
    <Notice tone="red">
      <strong>Automatic acts are held back.</strong> {brake}
    </Notice>
  );
}
