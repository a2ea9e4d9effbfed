/** The files that `factorcell export --to web` writes (docs/formats.md), and how they are read. */

export const FORMAT = 1;

export interface Model {
  format: number;
  run: string;
  sizes: Record<"size" | "width" | "hidden" | "rank" | "context" | "user" | "activation", number>;
  tokens: string[];
  specials: { unknown: number; start: number; end: number };
  lowercase: boolean;
  max_tokens: number;
  rule: { optimizer: "adagrad" | "adadelta" | "sgd"; rate: number; max_norm: number };
  blend: { weights: number[]; threshold: number };
  files: Record<string, { sha256: string }>;
}

export type Ranges = [number, number][];

export interface Rules {
  private: {
    rules: { label: string; min_digits?: number; hint?: string; pattern: string; check?: string }[];
    patterns: Record<string, string>;
    ranges: Record<"unspaced" | "hangul", Ranges>;
    words: { ordinary: string[]; ordinary_endings: string[] };
  };
  text: { meaningless: Ranges; unseen: Ranges; forms: Record<string, string>; case: Record<string, string> };
  blocked: string[];
}

/** An array of a safetensors file, in float16 or float32. */
export interface Tensor {
  name: string;
  isHalf: boolean;
  bytes: Uint8Array;
  count: number;
}

/** Popular texts in the order of their code points, with their counts. */
export interface Popular {
  texts: string[];
  counts: number[];
}

/** Returns the content of a file of an exported folder. */
export type ReadFile = (name: string) => Promise<Uint8Array>;

async function checkDigest(name: string, content: Uint8Array, expected: string): Promise<void> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content as BufferSource));
  const actual = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (actual !== expected) throw new Error(`${name}: expected the SHA-256 ${expected}, got ${actual}`);
}

/** Read `model.json`, and check its digest if the caller knows it. */
export async function readModel(readFile: ReadFile, digest?: string): Promise<Model> {
  const content = await readFile("model.json");
  if (digest !== undefined) await checkDigest("model.json", content, digest);
  const model = parse(content) as Model;
  if (model.format !== FORMAT) throw new Error(`model.json: expected format ${FORMAT}, got ${model.format}`);
  return model;
}

/** Read a file that `model.json` lists, and check its digest. */
export async function readChecked(readFile: ReadFile, model: Model, name: string): Promise<Uint8Array> {
  const content = await readFile(name);
  await checkDigest(name, content, model.files[name]?.sha256);
  return content;
}

export function parse(content: Uint8Array): unknown {
  return JSON.parse(new TextDecoder().decode(content));
}

export function readPopular(content: Uint8Array): Popular {
  const rows = new TextDecoder().decode(content).split("\n").slice(1, -1);  // the first row has totals
  const entries = rows.map((row) => JSON.parse(row) as { text: string; count: number });
  return { texts: entries.map((entry) => entry.text), counts: entries.map((entry) => entry.count) };
}

export function readTensors(content: Uint8Array): Tensor[] {
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  const headerBytes = Number(view.getBigUint64(0, true));
  const header = parse(content.subarray(8, 8 + headerBytes)) as Record<
    string,
    { dtype: string; shape: number[]; data_offsets: [number, number] }
  >;
  const tensors: Tensor[] = [];
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (entry.dtype !== "F16" && entry.dtype !== "F32") {
      throw new Error(`weights.safetensors: ${name}: expected F16 or F32, got ${entry.dtype}`);
    }
    const [first, last] = entry.data_offsets;
    const count = entry.shape.reduce((product, size) => product * size, 1);
    const bytes = content.subarray(8 + headerBytes + first, 8 + headerBytes + last);
    tensors.push({ name, isHalf: entry.dtype === "F16", bytes, count });
  }
  return tensors;
}
