import { Page } from "../parts/page";

export default function ChatPage() {
  return <Page title="Chat">This page is being built.</Page>;
}
