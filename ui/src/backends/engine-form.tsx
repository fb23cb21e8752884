/** Adds an engine that somebody else runs, or changes one. */

import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { answer, api } from "../api/client";
import { TextField } from "../parts/fields";
import { FieldRow, FormDialog, useSubmission } from "../parts/form-dialog";
import { type Engine, type EngineDraft, engineAsk, engineDraft, isEngineReady, NEW_ENGINE } from "./engine-draft";
import { ENGINES } from "./engine-queries";

const FIELDS = ["model", "name", "url", "remote_model", "uses", "key", "fallback_order", "weight", "max_concurrent"];

export function EngineForm({ engine, onClose }: { engine: Engine | null; onClose: () => void }) {
  const client = useQueryClient();
  const [draft, setDraft] = useState(engine === null ? NEW_ENGINE : engineDraft(engine));
  const submission = useSubmission(async () => {
    await save(draft, engine);
    await client.invalidateQueries({ queryKey: ENGINES });
    onClose();
  });
  const set = (field: keyof EngineDraft) => (value: string) => setDraft((before) => ({ ...before, [field]: value }));
  return (
    <FormDialog
      title={engine === null ? "Add an engine" : `Change ${engine.name}`}
      label={engine === null ? "Add the engine" : "Save"}
      submission={submission}
      fields={FIELDS}
      isReady={isEngineReady(draft)}
      onClose={onClose}
    >
      <FieldRow>
        <TextField
          label="Model"
          value={draft.model}
          onChange={set("model")}
          error={submission.about("model")}
          hint="As your clients call it."
          autoFocus
        />
        <TextField
          label="Name of the engine"
          value={draft.name}
          onChange={set("name")}
          error={submission.about("name")}
        />
      </FieldRow>
      <TextField
        label="URL"
        value={draft.url}
        onChange={set("url")}
        error={submission.about("url")}
        placeholder="http://10.0.0.5:8000/v1"
        hint="All that stands before /chat/completions."
        isMono
      />
      <FieldRow>
        <TextField
          label="Model there"
          value={draft.remoteModel}
          onChange={set("remoteModel")}
          error={submission.about("remote_model")}
          hint="Empty: the same name."
        />
        <TextField
          label="Uses"
          value={draft.uses}
          onChange={set("uses")}
          error={submission.about("uses")}
          hint="chat, completion, embeddings, …"
        />
      </FieldRow>
      <TextField
        label="Key"
        type="password"
        value={draft.key}
        onChange={set("key")}
        error={submission.about("key")}
        autoComplete="off"
        hint={
          engine?.has_key
            ? "One is stored; left empty, it stays. It is shown to nobody."
            : "Stored encrypted, and shown to nobody."
        }
      />
      <FieldRow>
        <TextField
          label="Fallback order"
          value={draft.order}
          onChange={set("order")}
          error={submission.about("fallback_order")}
          hint="0: beside the fleet."
        />
        <TextField label="Weight" value={draft.weight} onChange={set("weight")} error={submission.about("weight")} />
        <TextField
          label="Requests at once"
          value={draft.atOnce}
          onChange={set("atOnce")}
          error={submission.about("max_concurrent")}
          hint="0: without limit."
        />
      </FieldRow>
    </FormDialog>
  );
}

async function save(draft: EngineDraft, engine: Engine | null): Promise<void> {
  const body = engineAsk(draft, engine);
  if (engine === null) {
    await answer(api.POST("/api/v1/external-engines", { body }));
    return;
  }
  const headers = { "If-Match": `"${engine.revision}"` };
  await answer(api.PUT("/api/v1/external-engines/{id}", { params: { path: { id: engine.id } }, body, headers }));
}
