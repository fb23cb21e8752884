/** Sessions of this page: who is signed in from where, until when; each can be ended. */

import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { Button } from "../parts/button";
import { ConfirmDialog } from "../parts/confirm-dialog";
import { Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";
import { byText, type Column, Table } from "../parts/table";
import { Age, Moment } from "../parts/time";
import styles from "./access.module.css";
import { browserOf } from "./browsers";
import { SESSIONS, useSessions } from "./queries";

type Session = Schema<"ListedSession">;

export function Sessions() {
  const { data, error, refetch } = useSessions();
  const [ended, setEnded] = useState<Session | null>(null);
  const columns = useMemo(() => columnsOf(setEnded), []);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const sessions = data.filter((session) => session.state === "active");
  return (
    <>
      <Section isBare>
        {sessions.length === 0 ? (
          <Empty>Nobody is signed in.</Empty>
        ) : (
          <Table label="Sessions" rows={sessions} columns={columns} rowKey={(session) => session.id} rowHeight={44} />
        )}
      </Section>
      {ended !== null && <End session={ended} onClose={() => setEnded(null)} />}
    </>
  );
}

function columnsOf(end: (session: Session) => void): readonly Column<Session>[] {
  return [
    {
      key: "who",
      title: "Who",
      width: "minmax(110px, 1.2fr)",
      sort: byText(whoOf),
      cell: (session) => <Who session={session} />,
    },
    { key: "scopes", title: "May", width: "minmax(80px, 0.8fr)", cell: (session) => session.scopes.join(", ") },
    {
      key: "source",
      title: "From",
      width: "minmax(100px, 1fr)",
      from: "tablet",
      cell: (session) => session.source || "–",
    },
    {
      key: "agent",
      title: "Browser",
      width: "minmax(100px, 1.6fr)",
      from: "wide",
      cell: (session) => <span title={session.agent}>{browserOf(session.agent) || "–"}</span>,
    },
    {
      key: "began",
      title: "Began",
      width: "90px",
      from: "tablet",
      sort: byText((session) => session.created_at),
      cell: (session) => <Age at={session.created_at} />,
    },
    {
      key: "expires",
      title: "Until",
      width: "minmax(90px, 0.8fr)",
      from: "tablet",
      cell: (session) => <Moment at={session.expires_at} />,
    },
    {
      key: "act",
      title: "",
      width: "76px",
      isNumber: true,
      cell: (session) => <EndButton session={session} onEnd={end} />,
    },
  ];
}

function whoOf(session: Session): string {
  return session.user || session.key_name;
}

function Who({ session }: { session: Session }) {
  return (
    <span className={styles.twoLines}>
      <strong>{whoOf(session)}</strong>
      <span className={styles.quietLine}>
        {session.is_own ? "this session" : session.user === "" ? "by a key" : "by name and password"}
      </span>
    </span>
  );
}

function EndButton({ session, onEnd }: { session: Session; onEnd: (session: Session) => void }) {
  return (
    <Button
      isSmall
      aria-label={`End the session of ${whoOf(session)} from ${session.source}`}
      onPress={() => onEnd(session)}
    >
      End…
    </Button>
  );
}

function End({ session, onClose }: { session: Session; onClose: () => void }) {
  const client = useQueryClient();
  const act = async () => {
    await answer(api.DELETE("/api/v1/sessions/{id}", { params: { path: { id: session.id } } }));
    await client.invalidateQueries({ queryKey: SESSIONS });
  };
  return (
    <ConfirmDialog
      title={`End the session of ${whoOf(session)}`}
      label="End the session"
      isDangerous
      act={act}
      onClose={onClose}
    >
      <p>
        {session.is_own
          ? "This is your own session: you will have to sign in again."
          : "They have to sign in again. What they have begun goes on."}
      </p>
    </ConfirmDialog>
  );
}
