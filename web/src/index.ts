/**
 * Completion of text in the browser that learns its user and sends nothing anywhere.
 *
 *     const completer = await open("/models/queries/");
 *     const suggestions = await completer.complete("how to ba", { count: 5, deadline: 50 });
 *     await completer.accept("how to bake bread");
 */

import type { AcceptResult, ExportedUser, Options } from "./completer.js";
import type { Suggestion } from "./native.js";
import type { Answer, Call } from "./worker.js";

export type { AcceptResult, ExportedUser, Options } from "./completer.js";
export { DeviceCompleter } from "./completer.js";
export type { ReadFile } from "./format.js";
export type { Suggestion } from "./native.js";
export { BrowserStorage, MemoryStorage } from "./storage.js";
export type { StoredText, UserRecord, UserStorage } from "./storage.js";

const CLOSED = "the completer was closed";

/** A completer in a worker, with the methods of `DeviceCompleter`. */
export class WorkerCompleter {
  private readonly waiting = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  private count = 0;
  private hasAskedToPersist = false;
  private isClosed = false;

  constructor(private readonly worker: Worker) {
    worker.addEventListener("message", ({ data }: MessageEvent<Answer>) => {
      const call = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.error === undefined) call?.resolve(data.result as never);
      else call?.reject(new Error(data.error));
    });
    worker.addEventListener("error", (event) => {
      for (const { reject } of this.waiting.values()) reject(new Error(`worker: ${event.message ?? "cannot be loaded"}`));
      this.waiting.clear();
    });
  }

  /** Return at most `count` texts that continue `text`; the model searches for at most `deadline` milliseconds. */
  complete(text: string, options: { count?: number; deadline?: number } = {}): Promise<Suggestion[]> {
    return this.call("complete", text, options);
  }

  /** Store and learn a text that the user accepted, unless it seems to contain private content. */
  async accept(text: string): Promise<AcceptResult> {
    const result = await this.call<AcceptResult>("accept", text);
    if (result.outcome === "learned" && !this.hasAskedToPersist) {
      this.hasAskedToPersist = true;  // a browser may ask the user
      navigator.storage.persist().catch(() => false);
    }
    return result;
  }

  /** Delete all texts that look like `text`, and learn the remaining ones again; return the number of deleted texts. */
  forget(text: string): Promise<number> {
    return this.call("forget", text);
  }

  /** Delete the newest text, and learn the other ones again; return the number of deleted texts. */
  undo(): Promise<number> {
    return this.call("undo");
  }

  /** Stop storing and learning texts, or start again. */
  pause(paused = true): Promise<void> {
    return this.call("pause", paused);
  }

  /** Return the stored texts in the form that a service imports. */
  export(user?: string): Promise<ExportedUser> {
    return this.call("export", user);
  }

  /** Replace the stored texts by those of an exported user, and learn them. */
  import(exported: ExportedUser): Promise<void> {
    return this.call("import", exported);
  }

  /** Delete everything that is stored about the user. */
  delete(): Promise<void> {
    return this.call("delete");
  }

  /** The learned vector of the user. */
  vector(): Promise<number[]> {
    return this.call("vector");
  }

  /** End the worker; calls that wait for it, and later ones, are errors. */
  close(): void {
    this.isClosed = true;
    this.worker.terminate();
    for (const { reject } of this.waiting.values()) reject(new Error(CLOSED));
    this.waiting.clear();
  }

  async open(url: string, options: Options): Promise<this> {
    await this.call("open", new URL(url, location.href).href, options);
    return this;
  }

  private call<T>(method: Call["method"], ...values: unknown[]): Promise<T> {
    if (this.isClosed) return Promise.reject(new Error(CLOSED));
    const id = ++this.count;
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, { resolve: resolve as (value: never) => void, reject });
      this.worker.postMessage({ id, method, values } satisfies Call);
    });
  }
}

/** Open the exported run in a folder, whose URL ends with a slash, in a worker. */
export async function open(url: string, options: Options = {}): Promise<WorkerCompleter> {
  if (!isSecureContext) throw new Error("open: expected a page that was loaded from localhost or by HTTPS");
  const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  return new WorkerCompleter(worker).open(url, options);
}
