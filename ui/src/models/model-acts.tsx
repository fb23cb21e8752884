/** What can be done with a model. Whatever ends something shows its plan first. */

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";

import { answer, api } from "../api/client";
import { Button } from "../parts/button";
import { Dialog } from "../parts/dialog";
import { ActMenu, type MenuAct } from "../parts/menu";
import { Failure } from "../parts/states";
import { useMay } from "../shell/session";
import { DisableDialog } from "./disable-dialog";
import type { LiveModel } from "./live-model";
import { LoadDialog } from "./load-dialog";
import { PinDialog } from "./pin-dialog";
import { type Model, useForgetModels } from "./queries";
import { RemoveDialog } from "./remove-dialog";
import { ScaleDialog } from "./scale-dialog";
import { UnloadDialog } from "./unload-dialog";

type Act = "load" | "scale" | "pin" | "unload" | "disable" | "remove";

export function ModelActs({ model, live }: { model: Model; live: LiveModel }) {
  const [act, setAct] = useState<Act | null>(null);
  const [mayAct, mayScale] = [useMay("models.act"), useMay("scheduling.act")];
  const state = useModelState(model.name);
  const isOwn = model.state !== "elsewhere" && model.state !== "unusable";
  const close = () => setAct(null);
  const canLoad = mayAct && isOwn && !model.is_disabled;
  return (
    <>
      {canLoad && live.state !== "loaded" && <Button onPress={() => setAct("load")}>Load</Button>}
      {mayScale && isOwn && <Button onPress={() => setAct("scale")}>Scale</Button>}
      <ActMenu
        label="More acts"
        acts={menuActs({
          model,
          live,
          mayAct: mayAct && isOwn,
          mayScale: mayScale && isOwn,
          setAct,
          set: state.mutate,
        })}
      />
      {act === "load" && <LoadDialog model={model} onClose={close} />}
      {act === "scale" && <ScaleDialog model={model} onClose={close} />}
      {act === "pin" && <PinDialog model={model} onClose={close} />}
      {act === "unload" && <UnloadDialog model={model} live={live} onClose={close} />}
      {act === "disable" && <DisableDialog model={model} onClose={close} />}
      {act === "remove" && <RemoveDialog model={model} onClose={close} />}
      {state.error !== null && (
        <Dialog title="That was refused" onClose={state.reset}>
          <Failure error={state.error} />
        </Dialog>
      )}
    </>
  );
}

interface StateWish {
  readonly is_disabled?: boolean;
  readonly is_pinned?: boolean;
}

/** Sets what ends nothing: to keep a model, or to enable it. */
function useModelState(name: string) {
  const forget = useForgetModels();
  return useMutation({
    mutationFn: (wish: StateWish) =>
      answer(
        api.POST("/api/v1/model-states", {
          body: { name, is_disabled: wish.is_disabled ?? null, is_pinned: wish.is_pinned ?? null },
        }),
      ),
    onSuccess: forget,
  });
}

interface MenuProps {
  readonly model: Model;
  readonly live: LiveModel;
  readonly mayAct: boolean;
  readonly mayScale: boolean;
  readonly setAct: (act: Act) => void;
  readonly set: (wish: StateWish) => void;
}

function menuActs({ model, live, mayAct, mayScale, setAct, set }: MenuProps): MenuAct[] {
  const entry = (id: Act, label: string, isDangerous = false): MenuAct => ({
    id,
    label,
    isDangerous,
    onAct: () => setAct(id),
  });
  const acts: (MenuAct | false)[] = [
    mayAct && !model.is_disabled && live.state === "loaded" && entry("load", "Load one more…"),
    mayScale && entry("pin", "Pin to nodes…"),
    mayAct && live.replicas.length > 0 && entry("unload", "Unload…"),
    mayAct && {
      id: "keep",
      label: model.is_pinned ? "Let it make way for others" : "Keep it once loaded",
      onAct: () => set({ is_pinned: !model.is_pinned }),
    },
    mayAct &&
      (model.is_disabled
        ? { id: "enable", label: "Enable", onAct: () => set({ is_disabled: false }) }
        : entry("disable", "Disable…")),
    mayAct && entry("remove", "Remove…", true),
  ];
  return acts.filter((act) => act !== false);
}
