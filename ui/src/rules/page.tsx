/** Rules: which backends nodes shall have for ever, and how many replicas of models run where. */

import { Route, Switch } from "wouter";

import { Page } from "../parts/page";
import { PathTabs } from "../parts/path-tabs";
import { useMay } from "../shell/session";
import { FleetRules } from "./fleet-rules";
import { FollowRules, useFleetRules, useScheduling } from "./queries";
import { Scheduling } from "./scheduling";

export default function RulesPage() {
  const mayFleet = useMay("rules.read");
  const mayModels = useMay("scheduling.read");
  const fleet = useFleetRules(mayFleet);
  const models = useScheduling(mayModels);
  const tabs = [
    ...(mayFleet ? [{ path: "/", title: "Backends", count: fleet.data?.items.length }] : []),
    ...(mayModels ? [{ path: mayFleet ? "/models" : "/", title: "Models", count: models.data?.items.length }] : []),
  ];
  return (
    <Page title="Rules">
      <FollowRules />
      <PathTabs label="Rules" tabs={tabs} />
      <Switch>
        <Route path="/models">
          <Scheduling />
        </Route>
        <Route>{mayFleet ? <FleetRules /> : <Scheduling />}</Route>
      </Switch>
    </Page>
  );
}
