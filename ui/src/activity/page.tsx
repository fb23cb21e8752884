import { Page } from "../parts/page";

export default function ActivityPage() {
  return <Page title="Activity">This page is being built.</Page>;
}
