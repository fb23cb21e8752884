import { Page } from "../parts/page";

export default function BackendsPage() {
  return <Page title="Backends">This page is being built.</Page>;
}
