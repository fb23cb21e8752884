/** Models as developers of apps see them: what each is for, and how to ask it. Nothing of machines. */

import { LinkButton } from "../parts/button";
import { Page, Section } from "../parts/page";
import { PageLink } from "../parts/page-link";
import { Empty, Failure, Loading } from "../parts/states";
import { StatusPill } from "../parts/status-pill";
import { byText, type Column, Table } from "../parts/table";
import { chatPath, modelPath } from "./place";
import { type CapableModel, useCapabilities } from "./queries";
import { USE_NAMES, usesOf } from "./snippets";

export function AskableModels() {
  const models = useCapabilities();
  return (
    <Page title="Models">
      <Section isBare>
        {models.error !== null && <Failure error={models.error} onRetry={() => void models.refetch()} />}
        {models.data === undefined && models.error === null && <Loading label="Loading models" />}
        {models.data?.length === 0 && <Empty>There is no model that your key may ask.</Empty>}
        {models.data !== undefined && models.data.length > 0 && (
          <Table
            label="Models"
            rows={models.data}
            columns={COLUMNS}
            rowKey={(model) => model.id}
            order={{ key: "name", isDescending: false }}
          />
        )}
      </Section>
    </Page>
  );
}

const COLUMNS: readonly Column<CapableModel>[] = [
  {
    key: "name",
    title: "Name",
    width: "minmax(120px, 2fr)",
    sort: byText((model) => model.id),
    cell: (model) => <PageLink href={modelPath(model.id)}>{model.id}</PageLink>,
  },
  {
    key: "uses",
    title: "For",
    width: "minmax(100px, 2fr)",
    cell: (model) =>
      usesOf(model.capabilities)
        .map((use) => USE_NAMES[use])
        .join(", "),
  },
  {
    key: "chat",
    title: "",
    width: "88px",
    cell: (model) => {
      if (model.disabled) return <StatusPill subject="model" state="disabled" />;
      if (!usesOf(model.capabilities).includes("chat")) return null;
      return (
        <LinkButton href={chatPath(model.id)} isSmall icon="chat">
          Chat
        </LinkButton>
      );
    },
  },
];
