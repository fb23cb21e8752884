/** Chat with a model, and try what else models do: one tab for each kind of work that some model is for. */

import { usePathname } from "wouter/use-browser-location";

import { useCapabilities } from "../models/queries";
import { type Use, usesOf } from "../models/snippets";
import { decoded, segmentsBelow } from "../parts/address";
import { Page } from "../parts/page";
import { Failure } from "../parts/states";
import { type Tab, Tabs, useTab } from "../parts/tabs";
import { Chat } from "./chat";
import { TryEmbeddings } from "./try-embeddings";
import { TryRerank } from "./try-rerank";
import { TrySpeech } from "./try-speech";
import { TryTranscription } from "./try-transcription";

const TRIES: readonly (Tab & { readonly use: Use })[] = [
  { id: "chat", title: "Chat", use: "chat" },
  { id: "embeddings", title: "Embeddings", use: "embeddings" },
  { id: "speech", title: "Speech", use: "speech" },
  { id: "transcription", title: "Transcription", use: "transcription" },
  { id: "rerank", title: "Rerank", use: "rerank" },
];

export default function ChatPage() {
  const capable = useCapabilities();
  const models = (capable.data ?? []).filter((model) => !model.disabled);
  const modelsFor = (use: Use) =>
    models.filter((model) => usesOf(model.capabilities).includes(use)).map((model) => model.id);
  const tabs = TRIES.filter((each) => each.use === "chat" || modelsFor(each.use).length > 0);
  const tab = useTab(TRIES);
  const talkId = decoded(segmentsBelow(usePathname(), "/chat")[0] ?? "");
  return (
    <Page title="Chat">
      {tabs.length > 1 && <Tabs tabs={tabs} label="What models do" />}
      {capable.error !== null && <Failure error={capable.error} onRetry={() => void capable.refetch()} />}
      <Content
        tab={tab}
        talkId={talkId}
        modelsFor={modelsFor}
        isKnown={capable.data !== undefined}
        hasTabs={tabs.length > 1}
      />
    </Page>
  );
}

interface ContentProps {
  readonly tab: string;
  readonly talkId: string;
  readonly modelsFor: (use: Use) => readonly string[];
  readonly isKnown: boolean;
  readonly hasTabs: boolean;
}

function Content({ tab, talkId, modelsFor, isKnown, hasTabs }: ContentProps) {
  switch (tab) {
    case "embeddings":
      return <TryEmbeddings models={modelsFor("embeddings")} />;
    case "speech":
      return <TrySpeech models={modelsFor("speech")} />;
    case "transcription":
      return <TryTranscription models={modelsFor("transcription")} />;
    case "rerank":
      return <TryRerank models={modelsFor("rerank")} />;
    default:
      return <Chat talkId={talkId} models={modelsFor("chat")} {...{ isKnown, hasTabs }} />;
  }
}
