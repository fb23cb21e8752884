import { Page } from "../parts/page";

export default function AccessPage() {
  return <Page title="Access">This page is being built.</Page>;
}
