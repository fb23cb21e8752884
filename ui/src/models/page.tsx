import { Page } from "../parts/page";

export default function ModelsPage() {
  return <Page title="Models">This page is being built.</Page>;
}
