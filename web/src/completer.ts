/** Completion on a device: it suggests texts, learns those that its user accepts, and sends nothing anywhere. */

import { checkText, Folds, lowerCase, MAX_BYTES, withFinalSigma } from "./folds.js";
import type { Model, ReadFile, Rules } from "./format.js";
import { parse, readChecked, readModel, readPopular, readTensors } from "./format.js";
import type { Suggestion } from "./native.js";
import { Native } from "./native.js";
import { BlockList, PrivateContent } from "./privacy.js";
import type { StoredText, UserRecord, UserStorage } from "./storage.js";

export const EXPORT_FORMAT = 1;  // of an exported user, as of a service
const RECORD_FORMAT = 1;
const MAX_HISTORY = 100;
const MAX_TEXTS = 1000;
const NO_LIMIT = 1e9;
const SEARCH_MILLISECONDS = 30;  // a keystroke feels immediate below 50 ms
const EMPTY: UserRecord = {
  format: RECORD_FORMAT, version: 0, texts: [], paused: false, run: "", vector: [], state: [],
};

export interface Options {
  /** Seconds after which a text is deleted; by default never. */
  retention?: number;
  /** The largest number of stored texts. */
  maxTexts?: number;
  /** The SHA-256 of `model.json`, in hexadecimal digits; by default it is not checked. */
  digest?: string;
}

export interface AcceptResult {
  outcome: "learned" | "paused" | "withheld";
  /** What a withheld text seems to contain, such as "a password". */
  why?: string;
}

/** A user as a service exports and imports it. */
export interface ExportedUser {
  format: number;
  user: string;
  paused: boolean;
  texts: { text: string; time: number }[];
}

export class DeviceCompleter {
  private record: UserRecord = EMPTY;
  private readonly ids: Map<string, number>;
  private readonly maxTokens: number;

  private constructor(
    private readonly model: Model,
    private readonly native: Native,
    private readonly newUser: Float32Array,
    private readonly folds: Folds,
    private readonly privateContent: PrivateContent,
    private readonly blockList: BlockList,
    private readonly storage: UserStorage,
    private readonly options: Options,
  ) {
    this.setUser(newUser, new Float32Array(native.state.length));
    const { unknown, start, end } = model.specials;
    const known = model.tokens.map((token, id) => [token, id] as const);
    this.ids = new Map(known.filter(([, id]) => id !== unknown && id !== start && id !== end));
    this.maxTokens = model.max_tokens - 1;
  }

  static async open(
    readFile: ReadFile,
    wasm: BufferSource,
    storage: UserStorage,
    options: Options = {},
  ): Promise<DeviceCompleter> {
    const model = await readModel(readFile, options.digest);
    const [weights, texts, tables] = await Promise.all(
      ["weights.safetensors", "popularity.jsonl", "rules.json"].map((name) => readChecked(readFile, model, name)),
    );
    const rules = parse(tables) as Rules;
    const folds = new Folds(rules.text);
    const { native, newUser } = await Native.load(wasm, model, readTensors(weights), readPopular(texts));
    const privateContent = new PrivateContent(rules.private, folds);
    const blockList = new BlockList(rules.blocked, rules.private, folds);
    const completer = new DeviceCompleter(model, native, newUser, folds, privateContent, blockList, storage, options);
    await completer.change(async () => {
      await completer.expire();
      const { texts, run } = completer.record;
      if (texts.length > 0 && run !== model.run) await completer.save(completer.record);
    });
    return completer;
  }

  /** Return at most `count` texts that continue `text`; the model searches for at most `deadline` milliseconds. */
  async complete(text: string, { count = 10, deadline = SEARCH_MILLISECONDS } = {}): Promise<Suggestion[]> {
    if (!Number.isInteger(count) || count < 1) throw new Error(`count: expected a whole number of at least 1, got ${count}`);
    const prefix = this.normalize(this.folds.samePrefix(checkText(text)));
    await this.refresh();
    const tokens = Array.from(prefix);
    const words = prefix.slice(0, prefix.lastIndexOf(" ") + 1);
    const searches = tokens.length <= this.maxTokens && (words === "" || this.isAllowed(words));
    this.native.setFilter((completion) => this.acceptCompletion(completion, prefix));
    const seconds = Math.min(deadline / 1000, NO_LIMIT);
    const suggestions = this.native.complete(this.encode(searches ? tokens : []), prefix, searches, count, seconds);
    return suggestions.map((suggestion) => ({ ...suggestion, text: this.written(suggestion.text) }));
  }

  /** Store and learn a text that the user accepted, unless it seems to contain private content. */
  async accept(text: string): Promise<AcceptResult> {
    const accepted = this.folds.sameText(checkText(text));
    if (accepted === "") throw new Error("text: expected at least one character");
    const why = this.privateContent.find(accepted);
    if (why !== null) return { outcome: "withheld", why };
    return this.change(async () => {
      if (this.record.paused) return { outcome: "paused" };
      await this.expire();
      const time = Math.floor(Date.now() / 1000);
      this.native.learn(this.textIds(accepted));
      const all = [...this.record.texts, { text: accepted, time }];
      const texts = this.newest(all);
      await this.save({ ...this.record, texts, hasDropped: this.record.hasDropped || texts.length < all.length });
      return { outcome: "learned" };
    });
  }

  /** Delete all texts that look like `text`, and learn the remaining ones again; return the number of deleted texts. */
  async forget(text: string): Promise<number> {
    const form = this.lookAlike(checkText(text));
    return this.change(() => this.retain((stored) => this.lookAlike(stored.text) !== form, this.record.hasDropped));
  }

  /** Delete the newest text, and learn the other ones again; return the number of deleted texts. */
  async undo(): Promise<number> {
    return this.change(() => {
      const newest = this.record.texts.at(-1);
      return this.retain((stored) => stored !== newest);
    });
  }

  /** Stop storing and learning texts, or start again. */
  async pause(paused = true): Promise<void> {
    await this.change(() => this.save({ ...this.record, paused }));
  }

  /** Return the stored texts in the form that a service imports. */
  async export(user = "device"): Promise<ExportedUser> {
    await this.refresh();
    const { paused, texts } = this.record;
    return { format: EXPORT_FORMAT, user, paused, texts: texts.map(({ text, time }) => ({ text, time })) };
  }

  /** Replace the stored texts by those of an exported user, and learn them; private content is left out. */
  async import(exported: ExportedUser): Promise<void> {
    if (exported.format !== EXPORT_FORMAT || !Array.isArray(exported.texts)) {
      throw new Error(`import: expected a user of format ${EXPORT_FORMAT}, got format ${exported.format}`);
    }
    const all = exported.texts
      .map(({ text, time }) => ({ text: this.folds.sameText(checkText(text)), time: checkTime(time) }))
      .filter(({ text }) => text !== "" && this.privateContent.find(text) === null);
    await this.change(async () => {
      const texts = this.newest(all);
      this.record = { ...this.record, paused: Boolean(exported.paused), texts, hasDropped: false };
      this.learnAgain();
      await this.save(this.record);
      await this.expire();
    });
  }

  /** Delete everything that is stored about the user. */
  async delete(): Promise<void> {
    await this.change(async () => {
      this.record = EMPTY;
      this.learnAgain();
      await this.storage.delete();
    });
  }

  /** The learned vector of the user. */
  async vector(): Promise<number[]> {
    return Array.from(this.native.vector);
  }

  /** Use what other completers with this storage have written, and delete expired texts. */
  private async refresh(): Promise<void> {
    const isStale = (await this.storage.version()) !== this.record.version;
    if (isStale || this.record.texts.some((stored) => !this.isRetained(stored))) {
      await this.change(() => this.expire());
    }
  }

  /** Change the record, after reading what other completers with this storage have written. */
  private change<T>(change: () => Promise<T>): Promise<T> {
    return this.storage.exclusively(async () => {
      const stored = (await this.storage.read()) ?? EMPTY;
      if (stored.version !== this.record.version) this.restore(stored);
      return change();
    });
  }

  /** Use a stored record, whose texts this model learns if another model has learned them. */
  private restore(stored: UserRecord): void {
    this.record = stored;
    const { run, vector, state } = stored;
    const isKnown = run === this.model.run && vector.length === this.newUser.length;
    if (isKnown && state.length === this.native.state.length) {
      this.setUser(Float32Array.from(vector), Float32Array.from(state));
    } else {
      this.learnAgain();
    }
  }

  private setUser(vector: Float32Array, state: Float32Array): void {
    this.native.setUser(vector, state, this.history());
  }

  /** Learn all stored texts from the beginning, as if no other text had ever been accepted. */
  private learnAgain(): void {
    this.setUser(this.newUser, new Float32Array(this.native.state.length));
    for (const { text } of this.record.texts) this.native.learn(this.textIds(text));
    this.setUser(this.native.vector.slice(), this.native.state.slice());
  }

  private async save(record: UserRecord): Promise<void> {
    const vector = this.native.vector.slice();
    const state = this.native.state.slice();
    const version = record.version === 0 ? Math.floor(Math.random() * 2 ** 52) : record.version + 1;
    const learned = { run: this.model.run, vector: Array.from(vector), state: Array.from(state) };
    this.record = { ...record, ...learned, version };
    this.setUser(vector, state);
    await this.storage.write(this.record);
  }

  private async expire(): Promise<void> {
    await this.retain((stored) => this.isRetained(stored));
  }

  private isRetained(stored: StoredText): boolean {
    return stored.time >= Math.floor(Date.now() / 1000) - (this.options.retention ?? Infinity);
  }

  /** Return as many of the newest texts as are stored. */
  private newest(texts: StoredText[]): StoredText[] {
    return texts.slice(-Math.max(1, this.options.maxTexts ?? MAX_TEXTS));
  }

  /** Delete the other texts, and learn again from the retained ones if any was deleted, or if `learnsAgain` is set;
      return the number of deleted texts. */
  private async retain(isRetained: (stored: StoredText) => boolean, learnsAgain = false): Promise<number> {
    const texts = this.record.texts.filter(isRetained);
    const removed = this.record.texts.length - texts.length;
    if (removed === 0 && !learnsAgain) return 0;
    this.record = { ...this.record, texts, hasDropped: false };
    this.learnAgain();
    await this.save(this.record);
    return removed;
  }

  /** The newest texts that may be suggested, as the blend reads them. */
  private history(): string[] {
    const newest: string[] = [];
    let bytes = 0;
    for (const { text } of this.record.texts.slice(-MAX_HISTORY).reverse()) {
      const form = this.folds.sameText(this.normalize(text));
      bytes += new TextEncoder().encode(form).length;
      if (bytes > MAX_BYTES) break;
      newest.push(form);
    }
    return newest.reverse().filter((text) => this.isAllowed(text));
  }

  private acceptCompletion(completion: string, prefix: string): string | null {
    if (this.normalize(completion) !== completion) return null;
    const text = this.folds.sameText(completion);
    return text !== "" && text !== prefix && text.startsWith(prefix) && this.isAllowed(text) ? text : null;
  }

  private isAllowed(text: string): boolean {
    return this.privateContent.find(text) === null && this.blockList.allows(text);
  }

  private normalize(text: string): string {
    return this.model.lowercase ? lowerCase(text) : text.normalize("NFC");
  }

  private written(text: string): string {
    return this.model.lowercase ? withFinalSigma(text) : text;
  }

  private lookAlike(text: string): string {
    return this.folds.screening(this.folds.sameText(this.normalize(text)), true);
  }

  private encode(tokens: string[]): number[] {
    return tokens.map((token) => this.ids.get(token) ?? this.model.specials.unknown);
  }

  /** Return the tokens of a text that the model learns, from the start token on. */
  private textIds(text: string): number[] {
    const { start, end } = this.model.specials;
    return [start, ...this.encode(Array.from(this.normalize(text))), end].slice(0, this.model.max_tokens + 1);
  }
}

function checkTime(time: number): number {
  if (!(typeof time === "number" && time >= 0 && time < 253402300800)) throw new Error(`import: expected the time of a text in Unix seconds, from 1970 to 9999, got ${time}`);
  return Math.floor(time);
}
