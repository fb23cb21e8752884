/** Models: the lists, or the page of one model, by the address. */

import { Redirect, Router } from "wouter";
import { usePathname } from "wouter/use-browser-location";

import { segmentsBelow } from "../parts/address";
import { useMay } from "../shell/session";
import { AskableModels } from "./askable-models";
import { ListsPage } from "./lists-page";
import { ModelPage } from "./model-page";
import { placeOf } from "./place";

export default function ModelsPage() {
  const place = placeOf(segmentsBelow(usePathname(), "/models"));
  const maySee = useMay("models.read");
  if (place.kind === "lists") return maySee ? <ListsPage /> : <AskableModels />;
  const address = `/${encodeURIComponent(place.name)}`;
  if (place.tab !== "") return <Redirect to={`${address}?tab=${encodeURIComponent(place.tab)}`} replace />;
  return (
    <Router base={address}>
      <ModelPage key={place.name} name={place.name} />
    </Router>
  );
}
