/** What can be done with a model. Whatever ends something shows its plan first. */

import { useMutation } from "@tanstack/react-query";

import { answer, api } from "../api/client";
import { Button } from "../parts/button";
import { Dialog } from "../parts/dialog";
import { useOpenAct } from "../parts/filters";
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

const ACTS = ["load", "scale", "pin", "unload", "disable", "remove"] as const;
type Act = (typeof ACTS)[number];

export function ModelActs({ model, live }: { model: Model; live: LiveModel }) {
  const { act, open, close } = useOpenAct(ACTS);
  const [mayAct, mayScale] = [useMay("models.act"), useMay("scheduling.act")];
  const state = useModelState(model.name);
  const isOwn = model.state !== "elsewhere" && model.state !== "unusable";
  const canLoad = mayAct && isOwn && !model.is_disabled;
  const mayOpen = isOwn && (act === "scale" || act === "pin" ? mayScale : mayAct);
  const opened = mayOpen ? act : null;
  return (
    <>
      {canLoad && live.state !== "loaded" && <Button onPress={() => open("load")}>Load</Button>}
      {mayScale && isOwn && <Button onPress={() => open("scale")}>Scale</Button>}
      <ActMenu
        label="More acts"
        acts={menuActs({
          model,
          live,
          mayAct: mayAct && isOwn,
          mayScale: mayScale && isOwn,
          open,
          set: state.mutate,
        })}
      />
      {opened !== null && <Opened act={opened} model={model} live={live} close={close} />}
      {state.error !== null && (
        <Dialog title="That was refused" onClose={state.reset}>
          <Failure error={state.error} />
        </Dialog>
      )}
    </>
  );
}

interface OpenedProps {
  readonly act: Act;
  readonly model: Model;
  readonly live: LiveModel;
  readonly close: () => void;
}

function Opened({ act, model, live, close }: OpenedProps) {
  switch (act) {
    case "load":
      return <LoadDialog model={model} onClose={close} />;
    case "scale":
      return <ScaleDialog model={model} onClose={close} />;
    case "pin":
      return <PinDialog model={model} onClose={close} />;
    case "unload":
      return <UnloadDialog model={model} live={live} onClose={close} />;
    case "disable":
      return <DisableDialog model={model} onClose={close} />;
    case "remove":
      return <RemoveDialog model={model} onClose={close} />;
  }
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
  readonly open: (act: Act) => void;
  readonly set: (wish: StateWish) => void;
}

function menuActs({ model, live, mayAct, mayScale, open, set }: MenuProps): MenuAct[] {
  const entry = (id: Act, label: string, isDangerous = false): MenuAct => ({
    id,
    label,
    isDangerous,
    onAct: () => open(id),
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
