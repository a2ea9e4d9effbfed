/** The compiled completer (native/completer.cpp) in WebAssembly. */

import { lowerCase } from "./folds.js";
import type { Model, Popular, Tensors } from "./format.js";

// The arrays of a model in the order of their numbers in the compiled code.
const ARRAYS = [
  "embedding", "weight", "bias", "norm", "projection", "joint", "concat", "left", "right", "context_bias", "user_bias",
  "joint_bias", "output_bias",
];
const STATE_ROWS = { adagrad: 1, adadelta: 2, sgd: 0 };
const SOURCES = ["model", "popularity", "history"];
const UNCHANGED = -1;

/** Returns the text to suggest for a completion of the model; null if it may not be suggested. */
export type Accept = (text: string) => string | null;

export interface Suggestion {
  text: string;
  /** Its log probability among all candidates and "none of them". */
  logProbability: number;
  /** Who proposes it: `model`, `popularity`, `history`. */
  sources: string[];
}

type Exports = Record<string, (...values: number[]) => number> & { memory: WebAssembly.Memory };

export class Native {
  private readonly exports: Exports;
  private readonly completer: number;
  private readonly stateRows: number;
  private accept: Accept = (text) => text;

  private constructor(
    exports: WebAssembly.Exports,
    private readonly model: Model,
  ) {
    this.exports = exports as unknown as Exports;
    const { sizes, specials, rule, blend } = model;
    this.stateRows = STATE_ROWS[rule.optimizer];
    const numbers = [
      sizes.size, sizes.width, sizes.hidden, sizes.rank, sizes.context, sizes.user, sizes.activation,
      specials.start, specials.end, model.max_tokens - 1, this.stateRows,
    ];
    const pointer = this.copy(new Uint8Array(Int32Array.from(numbers).buffer));
    this.completer = this.exports.completer_new(pointer, rule.rate, rule.max_norm, blend.threshold, 0);
    this.exports.free(pointer);
  }

  static async load(
    wasm: BufferSource,
    model: Model,
    tensors: Tensors,
    popular: Popular,
  ): Promise<{ native: Native; newUser: Float32Array }> {
    let native: Native | null = null;
    const module = await WebAssembly.compile(wasm);
    const functions: Record<string, (...values: number[]) => number> = {
      factorcell_now: () => performance.now() / 1000,
      factorcell_filter: (...values) => native!.apply(native!.accept, values),
      factorcell_lower_case: (...values) => native!.apply(lowerCase, values),
    };
    const imports: WebAssembly.Imports = {};
    for (const { module: name, name: field } of WebAssembly.Module.imports(module)) {
      (imports[name] ??= {})[field] = functions[field] ?? (() => 0);  // the runtime reports memory growth, for example
    }
    const instance = await WebAssembly.instantiate(module, imports);
    (instance.exports._initialize as (() => void) | undefined)?.();
    native = new Native(instance.exports, model);
    return { native, newUser: native.fill(tensors, popular) };
  }

  /** Decide which completions of the model are suggested. */
  setFilter(accept: Accept): void {
    this.accept = accept;
  }

  get vector(): Float32Array {
    return this.floats(this.exports.completer_vector(this.completer), this.model.sizes.user);
  }

  get state(): Float32Array {
    return this.floats(this.exports.completer_state(this.completer), this.stateRows * this.model.sizes.user);
  }

  /** Replace the user: the vector, the state of the optimizer, and the texts of the history, the newest last. */
  setUser(vector: Float32Array, state: Float32Array, history: string[]): void {
    this.vector.set(vector);
    this.state.set(state);
    this.exports.completer_begin(this.completer);
    this.withTexts(history, (bytes, lengths) =>
      this.exports.completer_history(this.completer, bytes, lengths, history.length),
    );
  }

  complete(ids: number[], prefix: string, searches: boolean, count: number, seconds: number): Suggestion[] {
    const found = this.withTexts([prefix], (text, lengths) =>
      this.withNumbers(ids, (numbers) => {
        const bytes = new Int32Array(this.exports.memory.buffer, lengths, 1)[0];
        const { completer_complete: complete } = this.exports;
        return complete(this.completer, numbers, ids.length, text, bytes, Number(searches), count, seconds);
      }),
    );
    return Array.from({ length: found }, (_, place) => {
      const text = this.exports.completer_text(this.completer, place);
      const sources = this.exports.completer_sources(this.completer, place);
      return {
        text: this.decode(text, this.exports.completer_text_bytes(this.completer, place)),
        logProbability: this.exports.completer_log_probability(this.completer, place),
        sources: SOURCES.filter((_source, bit) => sources & (1 << bit)),
      };
    });
  }

  /** Learn the tokens of a text, from the start token on, and return its nats before learning. */
  learn(ids: number[]): number {
    return this.withNumbers(ids, (numbers) => this.exports.completer_learn(this.completer, numbers, ids.length));
  }

  /** Fill the arrays of the model, and return the vector of a new user. */
  private fill(tensors: Tensors, popular: Popular): Float32Array {
    const { exports, completer, model } = this;
    for (const [number, name] of ARRAYS.entries()) {
      const values = tensors.get(name);
      if (values === undefined) continue;
      this.floats(exports.completer_array(completer, number, values.length), values.length).set(values);
    }
    this.withTexts(model.tokens, (text, lengths) =>
      exports.completer_tokens(completer, text, lengths, model.tokens.length),
    );
    const counts = this.copy(new Uint8Array(Float64Array.from(popular.counts).buffer));
    this.withTexts(popular.texts, (text, lengths) =>
      exports.completer_popular(completer, text, lengths, counts, popular.texts.length),
    );
    exports.free(counts);
    const weights = this.copy(new Uint8Array(Float64Array.from(model.blend.weights).buffer));
    exports.completer_blend(completer, weights, model.blend.weights.length);
    exports.free(weights);
    exports.completer_pack(completer);
    return tensors.get("user")!;
  }

  /** Apply a function to a text in memory, and write its result, as compiled code expects. */
  private apply(change: Accept, [pointer, bytes, result, room]: number[]): number {
    const text = this.decode(pointer, bytes);
    const changed = change(text);
    if (changed === null) return 0;
    if (changed === text) return UNCHANGED;
    const target = new Uint8Array(this.exports.memory.buffer, result, room);
    return new TextEncoder().encodeInto(changed, target).written;
  }

  private floats(pointer: number, count: number): Float32Array {
    return new Float32Array(this.exports.memory.buffer, pointer, count);
  }

  private decode(pointer: number, bytes: number): string {
    return new TextDecoder().decode(new Uint8Array(this.exports.memory.buffer, pointer, bytes));
  }

  private copy(bytes: Uint8Array): number {
    const pointer = this.exports.malloc(Math.max(bytes.length, 1));
    new Uint8Array(this.exports.memory.buffer, pointer, bytes.length).set(bytes);
    return pointer;
  }

  private withNumbers<T>(numbers: number[], use: (pointer: number) => T): T {
    const pointer = this.copy(new Uint8Array(Int32Array.from(numbers).buffer));
    try {
      return use(pointer);
    } finally {
      this.exports.free(pointer);
    }
  }

  /** Call `use` with the joined bytes of texts and with their lengths. */
  private withTexts<T>(texts: string[], use: (bytes: number, lengths: number) => T): T {
    const encoder = new TextEncoder();
    const parts = texts.map((text) => encoder.encode(text));
    const pointer = this.copy(encoder.encode(texts.join("")));
    try {
      return this.withNumbers(parts.map((part) => part.length), (lengths) => use(pointer, lengths));
    } finally {
      this.exports.free(pointer);
    }
  }
}
