/** One backend of a gallery: what it is, which nodes could have it and why others cannot, and what to do with it. */

import { Button } from "../parts/button";
import { SidePanel } from "../parts/dialog";
import { plural } from "../parts/format";
import { Fact, Facts } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { useMay } from "../shell/session";
import { type Choice, choiceOf } from "./acts";
import styles from "./backends.module.css";
import { fitText, type OfferRow, obstacles } from "./offers";

interface OfferPanelProps {
  readonly row: OfferRow;
  readonly onAct: (choice: Choice) => void;
  readonly onClose: () => void;
}

export function OfferPanel({ row, onAct, onClose }: OfferPanelProps) {
  const { offer } = row;
  const may = useMay("backends.act");
  return (
    <SidePanel title={offer.name} onClose={onClose}>
      {offer.description !== "" && <p className={styles.description}>{offer.description}</p>}
      {may && (
        <div className={styles.acts}>
          <Button look="primary" onPress={() => onAct(choiceOf("install", offer.name))}>
            Install…
          </Button>
          {row.installed > 0 && <Button onPress={() => onAct(choiceOf("upgrade", offer.name))}>Upgrade…</Button>}
          {row.installed > 0 && <Button onPress={() => onAct(choiceOf("delete", offer.name))}>Delete…</Button>}
        </div>
      )}
      <Facts>
        <Fact name="Fits">{fitText(row)}</Fact>
        <Fact name="Installed on">
          {row.installed === 0 ? (
            "no node"
          ) : (
            <PageLink href={`/backends/installed?backend=${encodeURIComponent(offer.name)}`}>
              {plural(row.installed, "node")}
            </PageLink>
          )}
        </Fact>
        <Fact name="Version">{offer.version || "not said"}</Fact>
        <Fact name="Licence">{offer.license || "not said"}</Fact>
        <Fact name="Tags">{offer.tags.join(", ") || "none"}</Fact>
        {row.builds.length > 0 && <Fact name="Stands for">{row.builds.join(", ")}</Fact>}
        <Fact name="Gallery">{offer.gallery}</Fact>
        {offer.uri !== "" && (
          <Fact name="From">
            <code>{offer.uri}</code>
          </Fact>
        )}
        <Links urls={offer.urls} />
      </Facts>
      <Obstacles row={row} />
    </SidePanel>
  );
}

/** Only addresses of the web become links: what a gallery says is a stranger's word. */
function Links({ urls }: { urls: readonly string[] }) {
  const safe = urls.filter((url) => /^https?:\/\//.test(url));
  if (safe.length === 0) return null;
  return (
    <Fact name="Links">
      {safe.map((url) => (
        <a key={url} href={url} target="_blank" rel="noreferrer noopener" className={styles.outside}>
          {url}
        </a>
      ))}
    </Fact>
  );
}

function Obstacles({ row }: { row: OfferRow }) {
  const groups = obstacles(row.offer);
  if (groups.length === 0) return null;
  return (
    <div>
      <h3 className={styles.panelHead}>Why not everywhere</h3>
      <ul className={styles.obstacles}>
        {groups.map((group) => (
          <li key={group.reason}>
            <span>
              {group.nodes.length} × {group.reason}
            </span>
            <span className={styles.quiet}>{group.nodes.slice(0, 6).join(", ")}</span>
            {group.nodes.length > 6 && <span className={styles.quiet}> and {group.nodes.length - 6} more</span>}
          </li>
        ))}
      </ul>
    </div>
  );
}
