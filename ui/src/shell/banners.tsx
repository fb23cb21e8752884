/** What holds for the whole page: the stream is lost, control is away, automatic acts are held back. */

import { useConnection, useSummary } from "../live/live";
import { moment } from "../parts/format";
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
        <strong>Control is away since {since}; models keep serving.</strong> What you see is from before. Nothing can be
        changed until it is back; this page goes on by itself.
      </Notice>
    );
  }
  if (freshness !== "lost" && freshness !== "stale") return null;
  if (connection.state === "refused") return null;
  return (
    <Notice tone="yellow">
      <strong>The frontend does not answer.</strong> What you see is from before. Trying again by itself.
    </Notice>
  );
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
