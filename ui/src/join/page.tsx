import { Page } from "../parts/page";

export default function JoinPage() {
  return <Page title="Add a machine">This page is being built.</Page>;
}
