import { Page } from "../parts/page";

export default function NodePage() {
  return <Page title="Node">This page is being built.</Page>;
}
