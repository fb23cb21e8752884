/** The page as a whole: who is signed in, then the frame, then the page that the address names. */

import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "react-aria-components";
import { Router, useLocation } from "wouter";

import { queries } from "./api/queries";
import { Frame } from "./shell/frame";
import { SessionProvider, useAccess } from "./shell/session";
import { SignInAgain } from "./shell/sign-in-again";
import { SignInPage } from "./shell/sign-in-page";

export const BASE = "/ui";

export function App() {
  return (
    <Router base={BASE}>
      <QueryClientProvider client={queries}>
        <SessionProvider>
          <Navigation />
        </SessionProvider>
      </QueryClientProvider>
    </Router>
  );
}

function Navigation() {
  const [, navigate] = useLocation();
  return (
    <RouterProvider navigate={navigate} useHref={(href) => (href.startsWith("/") ? BASE + href : href)}>
      <Entrance />
    </RouterProvider>
  );
}

function Entrance() {
  const { session, isKnown, hasExpired } = useAccess();
  if (!isKnown) return null;
  if (session === null) return <SignInPage />;
  return (
    <>
      <Frame />
      {hasExpired && <SignInAgain />}
    </>
  );
}
