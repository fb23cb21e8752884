/** Why a model is where it is: what one replica needs, and what every node says to one more. Never empty. */

import { bytes, count } from "../parts/format";
import { Section } from "../parts/page";
import { addressOf, PageLink } from "../parts/page-link";
import { Failure, Loading } from "../parts/states";
import { Glyph } from "../parts/status-pill";
import type { Model } from "./queries";
import { useWhy } from "./queries";
import {
  type GroupedVerdicts,
  groupVerdicts,
  needsSentence,
  type ReasonGroup,
  scoreSentence,
  type Verdict,
} from "./why-groups";
import styles from "./why-tab.module.css";

export function WhyTab({ model }: { model: Model }) {
  const why = useWhy(model.name);
  if (why.error !== null) return <Failure error={why.error} onRetry={() => void why.refetch()} />;
  if (why.data === undefined) return <Loading label="Asking every node's verdict" lines={4} />;
  const grouped = groupVerdicts(why.data.verdicts);
  return (
    <>
      <Section>
        <p className={styles.summary}>{sentence(why.data.summary)}</p>
        {why.data.asked !== why.data.model && <p className={styles.quiet}>{why.data.asked} is an alias of it.</p>}
        <p className={styles.quiet}>One replica needs {lowered(needsSentence(why.data.needs))}</p>
      </Section>
      <Fitting grouped={grouped} />
      <Section
        title={`Nodes that cannot take one more (${count(why.data.verdicts.length - grouped.fitting.length)})`}
        isBare
      >
        {grouped.groups.length === 0 ? (
          <p className={styles.none}>
            {why.data.verdicts.length === 0 ? "No node has joined yet." : "Every node could take one more."}
          </p>
        ) : (
          grouped.groups.map((group) => (
            <Group key={group.key} group={group} isOpen={grouped.groups.length <= MOST_OPEN} />
          ))
        )}
      </Section>
    </>
  );
}

const MOST_OPEN = 3;
/** Nodes of one group that are listed; thousands would stall the page, and say the same. */
const MOST_LISTED = 200;

/** The groups alone, for the first tab of a model that is not loaded. */
export function WhyInShort({ name }: { name: string }) {
  const why = useWhy(name);
  if (why.error !== null) return <Failure error={why.error} onRetry={() => void why.refetch()} />;
  if (why.data === undefined) return <Loading label="Asking every node's verdict" lines={2} />;
  const { fitting, groups } = groupVerdicts(why.data.verdicts);
  return (
    <div className={styles.short}>
      <p>{sentence(why.data.summary)}</p>
      <ul className={styles.lines}>
        {fitting.length > 0 && <Line mark={FITS} text={`${count(fitting.length)} × can take it`} />}
        {groups.map((group) => (
          <Line key={group.key} mark={AGAINST} text={`${count(group.verdicts.length)} × ${group.reason}`} />
        ))}
      </ul>
      <PageLink href={`/models/${encodeURIComponent(name)}?tab=why`}>Every node's verdict</PageLink>
    </div>
  );
}

const FITS = { label: "fits", tone: "green", glyph: "●", tooltip: "" } as const;
const AGAINST = { label: "does not fit", tone: "purple", glyph: "⊘", tooltip: "" } as const;

function Line({ mark, text }: { mark: typeof FITS | typeof AGAINST; text: string }) {
  return (
    <li className={styles.line}>
      <Glyph word={mark} />
      <span>{text}</span>
    </li>
  );
}

/** Nodes that could take one more, the one that would be chosen first. */
function Fitting({ grouped }: { grouped: GroupedVerdicts }) {
  if (grouped.fitting.length === 0) return null;
  return (
    <Section title={`Nodes that can take one more (${count(grouped.fitting.length)})`} isBare>
      <ol>
        {grouped.fitting.slice(0, MOST_LISTED).map((verdict, index) => (
          <li key={verdict.node_id} className={styles.node}>
            <Glyph word={FITS} />
            <NodeLink verdict={verdict} />
            <span className={styles.reason}>
              {index === 0 && <strong>would be chosen · </strong>}
              {Math.round(verdict.points * 10) / 10} points:{" "}
              {scoreSentence(verdict) || "nothing speaks for or against it"}
            </span>
            <span className={styles.numbers}>{verdict.free ? `${bytes(verdict.free)} free` : ""}</span>
          </li>
        ))}
      </ol>
      <More hidden={grouped.fitting.length - MOST_LISTED} />
    </Section>
  );
}

function Group({ group, isOpen }: { group: ReasonGroup; isOpen: boolean }) {
  return (
    <details className={styles.group} open={isOpen}>
      <summary className={styles.groupHead}>
        <Glyph word={AGAINST} />
        <span>
          <strong>{count(group.verdicts.length)} ×</strong> {group.reason}
        </span>
      </summary>
      <ul>
        {group.verdicts.slice(0, MOST_LISTED).map((verdict) => (
          <li key={verdict.node_id} className={styles.node}>
            <span />
            <NodeLink verdict={verdict} />
            <span className={styles.reason}>{verdict.why || verdict.code.replaceAll("_", " ")}</span>
            <span className={styles.numbers}>{numbersText(verdict)}</span>
          </li>
        ))}
      </ul>
      <More hidden={group.verdicts.length - MOST_LISTED} />
    </details>
  );
}

function More({ hidden }: { hidden: number }) {
  return hidden > 0 ? <p className={styles.none}>and {count(hidden)} more</p> : null;
}

function NodeLink({ verdict }: { verdict: Verdict }) {
  return (
    <span className={styles.name}>
      <PageLink href={addressOf.node(verdict.node_id)}>{verdict.node}</PageLink>
      {verdict.replicas > 0 && <span className={styles.reason}> has {count(verdict.replicas)}</span>}
    </span>
  );
}

function numbersText({ numbers }: Verdict): string {
  const { needed, free } = numbers as { needed?: number; free?: number };
  return needed === undefined ? "" : `${bytes(free ?? 0)} free of ${bytes(needed)}`;
}

/** It begins with the name of the model, which stays as it is. */
function sentence(text: string): string {
  return text.endsWith(".") ? text : `${text}.`;
}

function lowered(text: string): string {
  return text.charAt(0).toLowerCase() + text.slice(1);
}
