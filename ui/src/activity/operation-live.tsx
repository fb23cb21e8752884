/** An operation as it goes on: state, strip and rows. For its page, and for the dialog that began it. */

import { useTopic } from "../live/live";
import type { TargetRow } from "../live/topics";
import { Loading } from "../parts/states";
import styles from "./activity.module.css";
import { BlockStrip } from "./block-strip";
import { OperationState } from "./operation-state";
import { TargetRows } from "./target-rows";
import { useOperation } from "./use-operation";

export function OperationLive({ id }: { id: string }) {
  const operation = useOperation(id);
  const targets = useTargets(id);
  if (operation === undefined || targets === null) return <Loading label="Loading the operation" />;
  return (
    <div className={styles.live}>
      <OperationState operation={operation} />
      <BlockStrip targets={targets} verb={operation.verb} />
      <div className={styles.framed}>
        <TargetRows targets={targets} verb={operation.verb} />
      </div>
    </div>
  );
}

/** The targets of an operation; null until they are there. */
export function useTargets(id: string): readonly TargetRow[] | null {
  const { items, isWhole } = useTopic(`operation:${id}`);
  return isWhole ? [...items.values()] : null;
}
