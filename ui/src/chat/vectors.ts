/** What vectors of texts say about the texts. Pure. */

export function cosine(one: readonly number[], other: readonly number[]): number {
  let dot = 0;
  let oneLength = 0;
  let otherLength = 0;
  one.forEach((value, index) => {
    const match = other[index] ?? 0;
    dot += value * match;
    oneLength += value * value;
    otherLength += match * match;
  });
  const length = Math.sqrt(oneLength) * Math.sqrt(otherLength);
  return length === 0 ? 0 : dot / length;
}

export function lengthOf(vector: readonly number[]): number {
  return Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
}

/** Reads an answer of `/v1/embeddings`; the vectors in the order of the texts. */
export function readVectors(body: unknown): number[][] {
  const data = (body as { data?: unknown } | null)?.data;
  if (!Array.isArray(data)) throw new Error("The answer has no vectors.");
  return data
    .map((item) => item as { index?: number; embedding?: unknown })
    .sort((one, other) => (one.index ?? 0) - (other.index ?? 0))
    .map(({ embedding }) => {
      if (!Array.isArray(embedding)) throw new Error("The answer has no vectors.");
      return embedding.map(Number);
    });
}

/** Texts, one in each line. */
export function linesOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}
