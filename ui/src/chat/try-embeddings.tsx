/** Vectors of texts, and how alike the texts are. */

import { useState } from "react";

import { TextField } from "../parts/fields";
import { useChosenModel } from "./chosen-model";
import styles from "./try.module.css";
import { TryFrame } from "./try-frame";
import { useTry } from "./trying";
import { cosine, lengthOf, linesOf, readVectors } from "./vectors";

const ROUTE = "/v1/embeddings";
const FIRST = "A llama is an animal of the Andes.\nAlpacas live in South America.\nThe server room needs more cooling.";
const MOST_TEXTS = 12;
const SHOWN_NUMBERS = 6;

interface Embedded {
  readonly texts: readonly string[];
  readonly vectors: readonly (readonly number[])[];
}

export function TryEmbeddings({ models }: { models: readonly string[] }) {
  const [model, setModel] = useChosenModel(models);
  const [text, setText] = useState(FIRST);
  const trying = useTry<Embedded>();
  const texts = linesOf(text);
  const isTooMany = texts.length > MOST_TEXTS;
  return (
    <TryFrame
      title="Embeddings"
      route={ROUTE}
      {...{ models, model, trying }}
      onModel={setModel}
      canAsk={texts.length > 0 && !isTooMany}
      act="Embed"
      onAsk={() =>
        trying.ask(ROUTE, JSON.stringify({ model, input: texts }), async (response) => ({
          texts,
          vectors: readVectors(await response.json()),
        }))
      }
      show={(result) => <Vectors {...result} />}
    >
      <TextField
        label="Texts, one in each line"
        lines={5}
        value={text}
        onChange={setText}
        error={isTooMany ? `At most ${MOST_TEXTS} texts here; programs may send more.` : ""}
      />
    </TryFrame>
  );
}

function Vectors({ texts, vectors }: Embedded) {
  return (
    <>
      <p>
        {vectors.length === 1 ? "1 vector" : `${vectors.length} vectors`} of {vectors[0]?.length ?? 0} numbers.
      </p>
      {vectors.length > 1 && <Likeness texts={texts} vectors={vectors} />}
      <ol className={styles.vectors}>
        {vectors.map((vector, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: one vector for each text, in their order
          <li key={index}>
            <span className={styles.text}>{texts[index]}</span>
            <code className={styles.quiet}>
              [
              {vector
                .slice(0, SHOWN_NUMBERS)
                .map((value) => value.toFixed(4))
                .join(", ")}
              , …] length {lengthOf(vector).toFixed(3)}
            </code>
          </li>
        ))}
      </ol>
    </>
  );
}

/** How alike each text is to each other one: 1 is the same direction. */
function Likeness({ texts, vectors }: Embedded) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <section className={styles.scroll} aria-label="How alike the texts are" tabIndex={0}>
      <table className={styles.likeness}>
        <caption>How alike the texts are: 1 is the same direction, 0 none in common</caption>
        <thead>
          <tr>
            <th scope="col">Text</th>
            {vectors.map((_, column) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: a column is its number
              <th key={column} scope="col">
                {column + 1}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {vectors.map((vector, row) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: a row is its number
            <tr key={row}>
              <th scope="row" className={styles.text}>
                {row + 1} {texts[row]}
              </th>
              {vectors.map((other, column) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: a column is its number
                <td key={column}>{cosine(vector, other).toFixed(2)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
