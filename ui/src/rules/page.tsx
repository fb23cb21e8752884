import { Page } from "../parts/page";

export default function RulesPage() {
  return <Page title="Rules">This page is being built.</Page>;
}
