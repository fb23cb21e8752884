/** The frame around every page: rail, top bar, banners, and the page that the address names. */

import { type ReactNode, Suspense } from "react";
import { Redirect, Route, Switch } from "wouter";

import { PAGES, type Page as PageEntry } from "../pages";
import { LinkButton } from "../parts/button";
import { Page } from "../parts/page";
import { SCROLLER_ID } from "../parts/scroller";
import { Empty, Forbidden, Loading } from "../parts/states";
import { Banners } from "./banners";
import { useFreshness } from "./connection-dot";
import styles from "./frame.module.css";
import { PageFault } from "./page-fault";
import { Rail } from "./rail";
import { type Session, useSession } from "./session";
import { Shortcuts } from "./shortcuts";
import { TopBar } from "./top-bar";

export function Frame() {
  const session = useSession();
  return (
    <div className={styles.frame}>
      <a className={styles.skip} href={`#${SCROLLER_ID}`}>
        Skip to the page
      </a>
      <Rail pages={PAGES.filter((page) => page.rail !== null && mayOpen(session, page))} />
      <TopBar />
      <main id={SCROLLER_ID} className={styles.main} tabIndex={-1}>
        <Banners />
        <Veil>
          <PageFault>
            <Suspense fallback={<Loading />}>
              <Pages session={session} />
            </Suspense>
          </PageFault>
        </Veil>
      </main>
      <Shortcuts />
    </div>
  );
}

/** What is older than three beats of the stream loses its colours: a green dot must not promise what nobody knows. */
function Veil({ children }: { children: ReactNode }) {
  const isStale = useFreshness() === "stale";
  return <div className={isStale ? styles.veiled : undefined}>{children}</div>;
}

function Pages({ session }: { session: Session }) {
  return (
    <Switch>
      <Route path="/">
        <Redirect to={firstPage(session)} replace />
      </Route>
      {PAGES.map((page) => (
        <Route key={page.path} path={page.path} nest>
          {mayOpen(session, page) ? <page.component /> : <NotForYou page={page} />}
        </Route>
      ))}
      <Route>
        <Page title="No such page">
          <Empty act={<LinkButton href="/fleet">Go to Fleet</LinkButton>}>This address leads nowhere.</Empty>
        </Page>
      </Route>
    </Switch>
  );
}

function NotForYou({ page }: { page: PageEntry }) {
  return (
    <Page title={page.title}>
      <Forbidden needs={page.needs} />
    </Page>
  );
}

function mayOpen(session: Session, page: PageEntry): boolean {
  return page.needs.some((permission) => session.permissions.includes(permission));
}

/** Operators land on the fleet, developers of apps on the models that they may ask. */
function firstPage(session: Session): string {
  return PAGES.find((page) => mayOpen(session, page))?.path ?? "/fleet";
}
