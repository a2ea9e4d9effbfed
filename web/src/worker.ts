/** The worker in which a completer of a page runs: it answers calls of methods by messages. */

import type { Options } from "./completer.js";
import { DeviceCompleter } from "./completer.js";
import { BrowserStorage } from "./storage.js";

export interface Call {
  id: number;
  method: "open" | "complete" | "accept" | "forget" | "undo" | "pause" | "export" | "import" | "delete" | "vector";
  values: unknown[];
}

export interface Answer {
  id: number;
  result?: unknown;
  error?: string;
}

const fetchBytes = async (url: URL): Promise<Uint8Array> => {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: expected a file, got status ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
};

async function open(url: string, options: Options): Promise<DeviceCompleter> {
  const wasm = await fetchBytes(new URL("factorcell.wasm", import.meta.url));
  const storage = new BrowserStorage(`factorcell ${url}`);
  return DeviceCompleter.open((name) => fetchBytes(new URL(name, url)), wasm as BufferSource, storage, options);
}

let completer: DeviceCompleter | null = null;
let last: Promise<unknown> = Promise.resolve();  // calls are answered in their order

async function answer({ id, method, values }: Call): Promise<void> {
  try {
    let result: unknown;
    if (method === "open") {
      completer = await open(values[0] as string, values[1] as Options);
    } else {
      if (completer === null) throw new Error(`${method}: expected a completer that is open`);
      result = await (completer[method] as (...values: unknown[]) => Promise<unknown>).apply(completer, values);
    }
    postMessage({ id, result } satisfies Answer);
  } catch (error) {
    postMessage({ id, error: error instanceof Error ? error.message : String(error) } satisfies Answer);
  }
}

addEventListener("message", ({ data }: MessageEvent<Call>) => {
  last = last.then(() => answer(data));
});
