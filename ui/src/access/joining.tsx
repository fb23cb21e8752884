/** What lets machines in: the registration token, and join codes that are open. */

import { useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { answer, api, type Schema } from "../api/client";
import { useTopic } from "../live/live";
import { Button, LinkButton } from "../parts/button";
import { CopyText } from "../parts/code-block";
import { ConfirmDialog } from "../parts/confirm-dialog";
import { Checkbox } from "../parts/fields";
import { useFilters } from "../parts/filters";
import { plural } from "../parts/format";
import { labelText } from "../parts/labels";
import { Fact, Facts, Section } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { Empty, Failure, Loading } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { byText, type Column, Table } from "../parts/table";
import { Age, Moment } from "../parts/time";
import { useMay } from "../shell/session";
import styles from "./access.module.css";
import { INVITATIONS, useInvitations, useJoining } from "./queries";

type Invitation = Schema<"InvitationView">;

export function Joining() {
  const may = useMay("nodes.admit");
  return (
    <>
      <div className={styles.filters}>
        <Waiting />
        {may && (
          <span className={styles.pushed}>
            <LinkButton href="/join" look="primary" icon="plus">
              Add a machine
            </LinkButton>
          </span>
        )}
      </div>
      <Door />
      <Invitations may={may} />
    </>
  );
}

function Waiting() {
  const { items } = useTopic("nodes");
  const pending = [...items.values()].filter((node) => node.status === "pending").length;
  if (pending === 0) return <p className={styles.quiet}>No machine waits for approval.</p>;
  return (
    <p>
      <PageLink href="/fleet?status=pending">{plural(pending, "machine")} waiting for approval</PageLink>
    </p>
  );
}

function Door() {
  const { data, error } = useJoining();
  if (error !== null) return <Failure error={error} />;
  if (data === undefined) return <Loading />;
  return (
    <Section title="What lets machines in">
      <Facts>
        <Fact name="Registration token">{tokenText(data)}</Fact>
        <Fact name="Frontend">
          <code>{data.url}</code>
        </Fact>
        <Fact name="NATS">
          {data.nats_urls.length === 0 ? (
            "not told: machines need CORRAL_NATS_URL"
          ) : (
            <code>{data.nats_urls.join(", ")}</code>
          )}
        </Fact>
        <Fact name="Fleet pin">
          <CopyText text={data.pin} />
        </Fact>
      </Facts>
    </Section>
  );
}

function tokenText({ by_token, approves_by_token }: Schema<"JoiningView">): string {
  if (!by_token) return "Closed: only join codes let machines in. Workers of LocalAI's cannot join.";
  if (approves_by_token) return "Open, and it approves: whoever has the token takes part at once.";
  return "Open: whoever has the token may register, and waits for approval. Workers of LocalAI's need it.";
}

function Invitations({ may }: { may: boolean }) {
  const { data, error, refetch } = useInvitations();
  const filters = useFilters();
  const [revoked, setRevoked] = useState<Invitation | null>(null);
  const columns = useMemo(() => columnsOf(may ? setRevoked : null), [may]);
  if (error !== null) return <Failure error={error} onRetry={() => void refetch()} />;
  if (data === undefined) return <Loading />;
  const isWhole = filters.get("all") === "yes";
  const shown = data.filter((invitation) => isWhole || invitation.state === "open");
  return (
    <Section
      title="Join codes"
      isBare
      actions={
        <Checkbox isSelected={isWhole} onChange={(isAll) => filters.set("all", isAll ? "yes" : "")}>
          Also ended ones
        </Checkbox>
      }
    >
      {shown.length === 0 ? (
        <Empty command="corral nodes invite">No join code is open.</Empty>
      ) : (
        <Table label="Join codes" rows={shown} columns={columns} rowKey={(invitation) => invitation.id} />
      )}
      {revoked !== null && <Revoke invitation={revoked} onClose={() => setRevoked(null)} />}
    </Section>
  );
}

function columnsOf(revoke: ((invitation: Invitation) => void) | null): readonly Column<Invitation>[] {
  const columns: Column<Invitation>[] = [
    { key: "id", title: "Id", width: "minmax(100px, 1fr)", cell: (invitation) => <code>{invitation.id}</code> },
    {
      key: "state",
      title: "State",
      width: "96px",
      sort: byText((invitation) => invitation.state),
      cell: (invitation) => <StatusPill subject="invitation" state={invitation.state} />,
    },
    { key: "uses", title: "Used", width: "70px", cell: (invitation) => `${invitation.uses} of ${invitation.max_uses}` },
    {
      key: "approves",
      title: "Approves",
      width: "76px",
      from: "tablet",
      cell: (invitation) => (invitation.approve ? "yes" : "no"),
    },
    {
      key: "labels",
      title: "Labels",
      width: "minmax(80px, 1fr)",
      from: "wide",
      cell: (invitation) => labelText(invitation.labels) || "–",
    },
    {
      key: "expires",
      title: "Expires",
      width: "minmax(90px, 1fr)",
      from: "tablet",
      cell: (invitation) => <Moment at={invitation.expires_at} />,
    },
    {
      key: "made",
      title: "Made",
      width: "minmax(120px, 1fr)",
      from: "wide",
      cell: (invitation) => (
        <span className={styles.quiet}>
          <Age at={invitation.created_at} /> by {invitation.created_by}
        </span>
      ),
    },
  ];
  if (revoke !== null) {
    columns.push({
      key: "act",
      title: "",
      width: "84px",
      isNumber: true,
      cell: (invitation) =>
        invitation.state === "open" && (
          <Button isSmall aria-label={`Revoke ${invitation.id}`} onPress={() => revoke(invitation)}>
            Revoke…
          </Button>
        ),
    });
  }
  return columns;
}

function Revoke({ invitation, onClose }: { invitation: Invitation; onClose: () => void }) {
  const client = useQueryClient();
  const act = async () => {
    await answer(api.DELETE("/api/v1/invitations/{id}", { params: { path: { id: invitation.id } } }));
    await client.invalidateQueries({ queryKey: INVITATIONS });
  };
  return (
    <ConfirmDialog title="Revoke a join code" label="Revoke the code" isDangerous act={act} onClose={onClose}>
      <p>No machine can join with it any more. Machines that came with it stay.</p>
    </ConfirmDialog>
  );
}
