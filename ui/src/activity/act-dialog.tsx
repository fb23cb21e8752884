/** The dialog of acts that become an operation: after the plan is confirmed, it shows the operation itself. */

import { PlanDialog, type PlanDialogProps } from "../parts/plan-dialog";
import type { PlanLike } from "../parts/plan-steps";
import { OperationLive } from "./operation-live";

export function ActDialog<Plan extends PlanLike>(props: Omit<PlanDialogProps<Plan>, "live">) {
  return <PlanDialog {...props} live={(operation) => <OperationLive id={operation} />} />;
}
