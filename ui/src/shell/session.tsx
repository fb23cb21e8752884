/** Who is signed in, and what they may do. Also the moment in which a session ends while somebody works. */

import { createContext, type ReactNode, useCallback, useContext, useEffect, useMemo, useState } from "react";

import { ask } from "../api/client";
import { ApiError } from "../api/errors";
import { queries } from "../api/queries";
import { noteSignIn, onSessionEnd, setCsrf } from "../api/transport";
import { startLive, stopLive, useConnection } from "../live/live";

export interface Session {
  readonly user: string;
  readonly key_name: string;
  readonly scopes: readonly string[];
  readonly permissions: readonly string[];
  readonly models?: readonly string[] | null;
  readonly csrf: string;
  readonly expires_at: string;
  readonly fleet: string;
  readonly version: string;
}

export type Credentials = { readonly key: string } | { readonly name: string; readonly password: string };

interface Access {
  readonly session: Session | null;
  /** Until the first answer, nobody knows whether somebody is signed in. */
  readonly isKnown: boolean;
  /** The session ended while somebody worked: a dialog asks for the key again, the page stays as it is. */
  readonly hasExpired: boolean;
  signIn(credentials: Credentials): Promise<void>;
  signOut(): Promise<void>;
  /** Give up on a session that ended: back to the sign-in page. */
  leave(): void;
}

const AccessContext = createContext<Access | null>(null);

export function SessionProvider({ children }: { children: ReactNode }) {
  const [session, setSession] = useState<Session | null>(null);
  const [isKnown, setKnown] = useState(false);
  const [waiting] = useState(() => new WaitingActs());
  const [hasExpired, setExpired] = useState(false);

  const begin = useCallback((next: Session) => {
    setCsrf(next.csrf);
    setSession(next);
    setExpired(false);
    startLive(next.permissions);
  }, []);

  const end = useCallback(() => {
    setCsrf("");
    setSession(null);
    setExpired(false);
    stopLive();
    queries.clear();
  }, []);

  useEffect(() => {
    const renewCsrf = async () => begin(await ask<Session>("GET", "/api/v1/session"));
    onSessionEnd({
      renewCsrf,
      signInAgain: () => {
        setExpired(true);
        return waiting.wait();
      },
    });
    renewCsrf()
      .catch((error: unknown) => {
        if (!(error instanceof ApiError)) throw error;
      })
      .finally(() => setKnown(true));
  }, [begin, waiting]);

  const connection = useConnection();
  const isRefused = connection.state === "refused" && connection.status === 401;
  useEffect(() => {
    if (isRefused) setExpired(true);
  }, [isRefused]);

  const access = useMemo<Access>(
    () => ({
      session,
      isKnown,
      hasExpired,
      signIn: async (credentials) => {
        const next = await ask<Session>("POST", "/api/v1/session", credentials);
        noteSignIn();
        begin(next);
        waiting.goOn();
      },
      signOut: async () => {
        await ask("DELETE", "/api/v1/session").catch((error: unknown) => {
          if (!(error instanceof ApiError && error.status === 401)) throw error;
        });
        end();
      },
      leave: () => {
        waiting.giveUp();
        end();
      },
    }),
    [session, isKnown, hasExpired, begin, end, waiting],
  );
  return <AccessContext value={access}>{children}</AccessContext>;
}

/** Requests that wait until somebody has signed in again. */
class WaitingActs {
  private acts: { resolve: () => void; reject: (error: Error) => void }[] = [];

  wait(): Promise<void> {
    return new Promise((resolve, reject) => this.acts.push({ resolve, reject }));
  }

  goOn(): void {
    for (const act of this.acts.splice(0)) act.resolve();
  }

  giveUp(): void {
    for (const act of this.acts.splice(0)) act.reject(new ApiError(401, "session_expired", "You have signed out."));
  }
}

export function useAccess(): Access {
  const access = useContext(AccessContext);
  if (access === null) throw new Error("useAccess needs a SessionProvider");
  return access;
}

/** The present session, on pages that are only shown with one. */
export function useSession(): Session {
  const { session } = useAccess();
  if (session === null) throw new Error("useSession is for pages behind the sign-in");
  return session;
}

/** Whether a permission such as `nodes.act` is given. Acts without it are not offered. */
export function useMay(permission: string): boolean {
  return useAccess().session?.permissions.includes(permission) ?? false;
}
