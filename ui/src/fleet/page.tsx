import { Page } from "../parts/page";

export default function FleetPage() {
  return <Page title="Fleet">This page is being built.</Page>;
}
