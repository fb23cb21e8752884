/** Backends: what galleries offer, what nodes have, what is not as asked, what is newer, and engines elsewhere. */

import { useCallback, useState } from "react";
import { Route, Switch } from "wouter";

import { decoded } from "../parts/address";
import { Button } from "../parts/button";
import { useFilters } from "../parts/filters";
import { Page } from "../parts/page";
import { PathTabs } from "../parts/path-tabs";
import { useMay } from "../shell/session";
import { ActDialog } from "./act-dialog";
import { type Choice, choiceOf, type Verb } from "./acts";
import { Drift } from "./drift";
import { Engines } from "./engines";
import { Gallery } from "./gallery";
import { Matrix } from "./matrix";
import { FollowBackends, useDrift, useInstalled, useOffers, useUpgrades } from "./queries";
import { outdatedCount } from "./upgrade-rows";
import { Upgrades } from "./upgrades";

interface Begun {
  readonly choice: Choice;
  /** All is chosen: the plan comes first. */
  readonly isChosen: boolean;
}

export default function BackendsPage() {
  const [begun, setBegun] = useState<Begun | null>(null);
  const linked = useLinkedAct();
  const choose = useCallback((choice: Choice) => setBegun({ choice, isChosen: false }), []);
  const fix = useCallback((choice: Choice) => setBegun({ choice, isChosen: true }), []);
  const shown = begun ?? linked.begun;
  return (
    <Page title="Backends" actions={<FromAnywhere onAct={choose} />}>
      <FollowBackends />
      <BackendTabs />
      <Switch>
        <Route path="/installed">
          <Matrix onAct={choose} />
        </Route>
        <Route path="/drift">
          <Drift onFix={fix} />
        </Route>
        <Route path="/upgrades">
          <Upgrades onAct={choose} />
        </Route>
        <Route path="/elsewhere">
          <Engines />
        </Route>
        <Route path="/:name">{({ name }) => <Gallery named={decoded(name)} onAct={choose} />}</Route>
        <Route>
          <Gallery named="" onAct={choose} />
        </Route>
      </Switch>
      {shown !== null && (
        <Dialog
          begun={shown}
          onClose={() => {
            setBegun(null);
            linked.clear();
          }}
        />
      )}
    </Page>
  );
}

function BackendTabs() {
  const { data: drift } = useDrift();
  const { data: upgrades } = useUpgrades();
  const mayEngines = useMay("engines.read");
  const tabs = [
    { path: "/", title: "Gallery" },
    { path: "/installed", title: "Installed" },
    { path: "/drift", title: "Drift", count: drift?.items.length },
    { path: "/upgrades", title: "Upgrades", count: upgrades && outdatedCount(upgrades) },
    ...(mayEngines ? [{ path: "/elsewhere", title: "Engines elsewhere" }] : []),
  ];
  return <PathTabs label="Backends" tabs={tabs} />;
}

/** An act that another page links to: `?act=install&on=llama-cpp&node=ID`. */
function useLinkedAct(): { readonly begun: Begun | null; readonly clear: () => void } {
  const filters = useFilters();
  const act = filters.get("act");
  const nodes = filters.get("nodes").split(",").filter(Boolean);
  const isVerb = act === "install" || act === "upgrade" || act === "delete";
  return {
    begun: isVerb ? { choice: choiceOf(act as Verb, filters.get("on"), nodes), isChosen: false } : null,
    clear: () => {
      if (isVerb) filters.set("act", "");
    },
  };
}

function Dialog({ begun, onClose }: { begun: Begun; onClose: () => void }) {
  const { data: offers } = useOffers();
  const { data: installed } = useInstalled();
  const { choice } = begun;
  const names =
    choice.verb === "install" ? offers?.items.map((offer) => offer.name) : installed?.items.map((item) => item.name);
  const isNamed = choice.backend !== "" || choice.uri !== "";
  return (
    <ActDialog
      start={choice}
      isChosen={begun.isChosen}
      {...(isNamed ? {} : { backends: names ?? [] })}
      onClose={onClose}
    />
  );
}

/** An install from a place that somebody names, for those who decide what the fleet trusts. */
function FromAnywhere({ onAct }: { onAct: (choice: Choice) => void }) {
  const may = useMay("backends.trust");
  if (!may) return null;
  return <Button onPress={() => onAct({ ...choiceOf("install", ""), uri: "oci://" })}>Install from a registry…</Button>;
}
