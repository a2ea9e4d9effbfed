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

/** The arrays of a safetensors file by name. */
export type Tensors = Map<string, Float32Array>;

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

/** Read arrays of numbers, and matrices of integers whose rows have factors in the array `NAME.scale`. */
export function readTensors(content: Uint8Array): Tensors {
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  const headerBytes = Number(view.getBigUint64(0, true));
  const header = parse(content.subarray(8, 8 + headerBytes)) as Record<
    string,
    { dtype: string; data_offsets: [number, number] }
  >;
  const bytesOf = (name: string): Uint8Array => {
    const [first, last] = header[name].data_offsets;
    return content.slice(8 + headerBytes + first, 8 + headerBytes + last);
  };
  const floatsOf = (name: string): Float32Array => new Float32Array(bytesOf(name).buffer);
  const tensors: Tensors = new Map();
  for (const [name, { dtype }] of Object.entries(header)) {
    if (dtype === "F32") tensors.set(name, floatsOf(name));
    if (dtype === "I8") tensors.set(name, multiplyRows(new Int8Array(bytesOf(name).buffer), floatsOf(`${name}.scale`)));
  }
  return tensors;
}

function multiplyRows(integers: Int8Array, scales: Float32Array): Float32Array {
  const columns = integers.length / scales.length;
  return Float32Array.from(integers, (integer, place) => integer * scales[Math.floor(place / columns)]);
}
