/** The lists of models: what the fleet has, and what galleries offer. */

import { useState } from "react";

import { Button } from "../parts/button";
import { Page } from "../parts/page";
import { Tabs, useTab } from "../parts/tabs";
import { useMay } from "../shell/session";
import { Gallery } from "./gallery";
import { Installed } from "./installed";
import { PullDialog } from "./pull-dialog";
import { useFreshModels } from "./queries";

const TABS = [
  { id: "installed", title: "Installed" },
  { id: "gallery", title: "Gallery" },
];

export function ListsPage() {
  const tab = useTab(TABS);
  const mayAct = useMay("models.act");
  const [isPulling, setPulling] = useState(false);
  useFreshModels();
  const pull = (
    <Button look="primary" icon="download" onPress={() => setPulling(true)}>
      Pull a model
    </Button>
  );
  return (
    <Page title="Models" {...(mayAct ? { actions: pull } : {})}>
      <Tabs tabs={TABS} label="Lists of models" />
      {tab === "gallery" ? <Gallery /> : <Installed />}
      {isPulling && <PullDialog onClose={() => setPulling(false)} />}
    </Page>
  );
}
