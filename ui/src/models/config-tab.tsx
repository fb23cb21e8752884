/** A model's configuration: edited with checks, compared before it is stored, and every earlier state to go back to. */

import { CodeBlock } from "../parts/code-block";
import { Section } from "../parts/page";
import { Empty, Failure, Loading } from "../parts/states";
import { useMay } from "../shell/session";
import { ConfigEditor } from "./config-editor";
import { ConfigHistory } from "./config-history";
import { type Model, useHistory } from "./queries";

export function ConfigTab({ model }: { model: Model }) {
  const history = useHistory(model.name);
  const mayAct = useMay("models.act");
  if (history.error !== null) return <Failure error={history.error} onRetry={() => void history.refetch()} />;
  if (history.data === undefined) return <Loading label="Reading the configuration" lines={6} />;
  const [now] = history.data.items;
  if (now === undefined) return <Empty>Nothing is stored about it: engines elsewhere answer for it.</Empty>;
  return (
    <>
      {mayAct && now.change !== "removed" ? (
        <ConfigEditor model={model.name} now={now} />
      ) : (
        <Section title="Configuration">
          <CodeBlock label="Configuration" text={now.text} />
        </Section>
      )}
      <ConfigHistory model={model.name} revisions={history.data.items} />
    </>
  );
}
