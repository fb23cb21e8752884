/** The chat: talks at the side, the one that is open, and the field to ask in. */

import { useEffect, useRef, useState } from "react";

import { useTopic } from "../live/live";
import { go } from "../parts/address";
import { LinkButton } from "../parts/button";
import { classes } from "../parts/classes";
import { useFilters } from "../parts/filters";
import { Section } from "../parts/page";
import { Empty } from "../parts/states";
import { useMay, useSession } from "../shell/session";
import styles from "./chat.module.css";
import { talksOf, useTalks } from "./chat-store";
import { Composer } from "./composer";
import { Exchanges } from "./exchanges";
import { openAnswer } from "./talk";
import { TalkList } from "./talk-list";
import { TalkSettings, type TalkWishes } from "./talk-settings";

interface ChatProps {
  /** Empty: a new talk. */
  readonly talkId: string;
  readonly models: readonly string[];
  readonly isKnown: boolean;
  readonly hasTabs: boolean;
}

export function Chat({ talkId, models, isKnown, hasTabs }: ChatProps) {
  const session = useSession();
  const talks = talksOf(session.user || session.key_name);
  const all = useTalks(talks);
  const talk = all.find((each) => each.id === talkId);
  const [wishes, setWishes] = useNewTalk(models);
  useEffect(() => {
    if (talkId !== "" && talk === undefined) go("/chat", { replace: true });
  }, [talkId, talk]);
  if (isKnown && models.length === 0 && all.length === 0) return <NoModels />;
  const shown = talk ?? wishes;
  const send = (question: string) => {
    if (talk !== undefined) talks.ask(talk.id, question);
    else go(`/chat/${talks.begin(wishes.model, wishes, question)}`, { replace: true });
  };
  return (
    <div className={classes(styles.chat, hasTabs && styles.belowTabs)}>
      <TalkList talks={talks} all={all} openId={talk?.id ?? ""} />
      <div className={styles.talk}>
        <TalkSettings
          wishes={shown}
          models={models}
          onChange={(change) => (talk === undefined ? setWishes({ ...wishes, ...change }) : talks.set(talk.id, change))}
        />
        {talk === undefined ? <Welcome model={wishes.model} onAsk={send} /> : <Exchanges talk={talk} talks={talks} />}
        <Composer
          key={talk?.id ?? ""}
          model={shown.model}
          isBusy={talk !== undefined && openAnswer(talk) !== null}
          isFull={talks.isFull}
          onSend={send}
          onStop={() => talk !== undefined && talks.stop(talk.id)}
        />
      </div>
    </div>
  );
}

/** What a new talk begins with: the model that was chosen, that of the address, the first that is loaded, or the first. */
function useNewTalk(models: readonly string[]): [TalkWishes, (wishes: TalkWishes) => void] {
  const asked = useFilters().get("model");
  const loaded = useFirstLoaded(models);
  const [chosen, setChosen] = useState<TalkWishes>({ model: "", system: "", temperature: null });
  const model = [chosen.model, asked, loaded].find((name) => name !== "") ?? models[0] ?? "";
  return [{ ...chosen, model }, setChosen];
}

/** As it was when the page opened: what somebody is about to ask must not become another model. */
function useFirstLoaded(models: readonly string[]): string {
  const { items, isWhole } = useTopic("replicas");
  const first = useRef("");
  if (first.current === "" && isWhole) {
    const loaded = new Set([...items.values()].filter(({ state }) => state === "loaded").map(({ model }) => model));
    first.current = models.find((name) => loaded.has(name)) ?? "";
  }
  return first.current;
}

const BEGINNINGS = [
  "What can you help me with?",
  "Explain in two sentences what a language model is.",
  "Write a haiku about a machine room.",
];

function Welcome({ model, onAsk }: { model: string; onAsk: (question: string) => void }) {
  if (model === "") return <div className={styles.welcome} />;
  return (
    <div className={styles.welcome}>
      <p>
        Ask <strong>{model}</strong> something. If it is not loaded, your question loads it and is sent by itself.
      </p>
      <ul className={styles.beginnings}>
        {BEGINNINGS.map((question) => (
          <li key={question}>
            <button type="button" className={styles.beginning} onClick={() => onAsk(question)}>
              {question}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function NoModels() {
  const mayAct = useMay("models.act");
  return (
    <Section>
      {mayAct ? (
        <Empty
          act={<LinkButton href="/models?tab=gallery&use=chat">Look through the gallery</LinkButton>}
          command="corral models search --use chat"
        >
          There is no model to chat with yet.
        </Empty>
      ) : (
        <Empty>There is no model that your key may chat with. An administrator can add one.</Empty>
      )}
    </Section>
  );
}
