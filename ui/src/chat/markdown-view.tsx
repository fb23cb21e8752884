/** The text of an answer, drawn block by block: only the block that grows is drawn again. */

import type { Token } from "marked";
import { memo, useLayoutEffect, useRef } from "react";

import { CopyButton } from "../parts/code-block";
import { highlighted } from "./highlighting";
import { blocksOf, codeOf, nodesOf, purified } from "./markdown";
import styles from "./markdown.module.css";

export function Markdown({ text }: { text: string }) {
  return (
    <div className={styles.markdown}>
      {blocksOf(text).map((block, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: blocks are only added at the end
        <Block key={index} block={block} />
      ))}
    </div>
  );
}

const Block = memo(
  function Block({ block }: { block: Token }) {
    const code = codeOf(block);
    return code === null ? <Prose block={block} /> : <Code text={code.text} language={code.language} />;
  },
  (before, after) => before.block.raw === after.block.raw && before.block.type === after.block.type,
);

function Prose({ block }: { block: Token }) {
  const frame = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    frame.current?.replaceChildren(nodesOf(block));
  }, [block]);
  return <div ref={frame} className={styles.block} />;
}

function Code({ text, language }: { text: string; language: string }) {
  const code = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    code.current?.replaceChildren(purified(highlighted(text, language)));
  }, [text, language]);
  return (
    <div className={styles.code}>
      <div className={styles.codeHead}>
        <span>{language || "text"}</span>
        <CopyButton text={text} label="Copy the code" />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      {/* biome-ignore lint/a11y/useSemanticElements: code keeps its spaces in <pre> */}
      <pre className={styles.pre} tabIndex={0} aria-label={`Code in ${language || "text"}`} role="region">
        <code ref={code} />
      </pre>
    </div>
  );
}
