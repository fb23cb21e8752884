/** Access: keys, users, sessions, what lets machines in, and the record of who did what. */

import { Route, Switch } from "wouter";

import { Page } from "../parts/page";
import { type PathTab, PathTabs } from "../parts/path-tabs";
import { useSession } from "../shell/session";
import { Audit } from "./audit";
import { Joining } from "./joining";
import { Keys } from "./keys";
import { Sessions } from "./sessions";
import { Users } from "./users";

interface AccessTab extends PathTab {
  readonly needs: string;
  readonly content: () => React.ReactNode;
}

const TABS: readonly AccessTab[] = [
  { path: "/keys", title: "Keys", needs: "keys.manage", content: () => <Keys /> },
  { path: "/users", title: "Users", needs: "users.manage", content: () => <Users /> },
  { path: "/sessions", title: "Sessions", needs: "keys.manage", content: () => <Sessions /> },
  { path: "/joining", title: "Joining", needs: "nodes.read", content: () => <Joining /> },
  { path: "/audit", title: "Audit", needs: "audit.read", content: () => <Audit /> },
];

export default function AccessPage() {
  const { permissions } = useSession();
  const tabs = TABS.filter((tab) => permissions.includes(tab.needs));
  return (
    <Page title="Access">
      <PathTabs label="Access" tabs={tabs} />
      <Switch>
        {tabs.map((tab) => (
          <Route key={tab.path} path={tab.path}>
            {tab.content()}
          </Route>
        ))}
        <Route>{tabs[0]?.content()}</Route>
      </Switch>
    </Page>
  );
}
