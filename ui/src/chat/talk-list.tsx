/** The talks that this browser keeps: open one, begin one, forget one or all. */

import { useState } from "react";

import { go } from "../parts/address";
import { Button, IconButton, LinkButton } from "../parts/button";
import { classes } from "../parts/classes";
import { Dialog } from "../parts/dialog";
import { plural } from "../parts/format";
import { PageLink } from "../parts/page-link";
import { useWidth } from "../parts/width";
import { openAnswer, type Talk, titleOf } from "./talk";
import styles from "./talk-list.module.css";
import type { Talks } from "./talks";

interface TalkListProps {
  readonly talks: Talks;
  readonly all: readonly Talk[];
  readonly openId: string;
}

export function TalkList(props: TalkListProps) {
  const isWide = useWidth() === "wide";
  if (isWide) {
    return (
      <aside className={styles.side} aria-label="Talks">
        <LinkButton href="/chat" icon="plus">
          New talk
        </LinkButton>
        <List {...props} />
      </aside>
    );
  }
  return (
    <div className={styles.narrow}>
      <LinkButton href="/chat" icon="plus" isSmall>
        New talk
      </LinkButton>
      {props.all.length > 0 && (
        <details className={styles.fold}>
          <summary>{plural(props.all.length, "talk")}</summary>
          <List {...props} />
        </details>
      )}
    </div>
  );
}

function List({ talks, all, openId }: TalkListProps) {
  const [isClearing, setClearing] = useState(false);
  const forget = (id: string) => {
    talks.remove(id);
    if (id === openId) go("/chat", { replace: true });
  };
  return (
    <>
      <ul className={styles.list}>
        {all.map((talk) => (
          <li key={talk.id} className={classes(styles.item, talk.id === openId && styles.open)}>
            <PageLink
              href={`/chat/${talk.id}`}
              className={styles.link}
              aria-current={talk.id === openId ? "page" : undefined}
            >
              <span className={styles.title}>{titleOf(talk)}</span>
              <span className={styles.model}>
                {talk.model}
                {openAnswer(talk) !== null && " · answering…"}
              </span>
            </PageLink>
            <IconButton icon="close" label={`Forget the talk ${titleOf(talk)}`} onPress={() => forget(talk.id)} />
          </li>
        ))}
      </ul>
      <p className={styles.note}>Talks are kept in this browser only.</p>
      {all.length > 0 && (
        <div className={styles.clear}>
          <Button isSmall look="quiet" onPress={() => setClearing(true)}>
            Clear all talks
          </Button>
        </div>
      )}
      {isClearing && (
        <ClearDialog
          count={all.length}
          onClose={() => setClearing(false)}
          onClear={() => {
            talks.clear();
            setClearing(false);
            go("/chat", { replace: true });
          }}
        />
      )}
    </>
  );
}

function ClearDialog({ count, onClose, onClear }: { count: number; onClose: () => void; onClear: () => void }) {
  return (
    <Dialog
      title="Clear all talks"
      onClose={onClose}
      footer={
        <>
          <Button onPress={onClose}>Keep them</Button>
          <Button look="danger" onPress={onClear}>
            Clear {plural(count, "talk")}
          </Button>
        </>
      }
    >
      <p>This browser forgets {plural(count, "talk")}. Nobody else has a copy, so they cannot be brought back.</p>
    </Dialog>
  );
}
