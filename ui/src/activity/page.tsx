/** Everything that was asked of the fleet, and one page for each operation. */

import { Route, Switch } from "wouter";

import { ActivityList } from "./activity-list";
import { OperationPage } from "./operation-page";

export default function ActivityPage() {
  return (
    <Switch>
      <Route path="/">
        <ActivityList />
      </Route>
      <Route path="/:id">{({ id }) => <OperationPage key={id} id={decodeURIComponent(id)} />}</Route>
    </Switch>
  );
}
