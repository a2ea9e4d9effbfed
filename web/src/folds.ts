/** Folds of texts, as factorcell.data.text_folds: their results are equal for texts that count as equal. */

import type { Rules } from "./format.js";
import { characterClass } from "./patterns.js";

export const MAX_BYTES = 1 << 16;  // bytes in UTF-8 of one text, and of all texts of a history in total
const SPACE = /[\s\x1c-\x1f\x85]+/gu;
const PRINTABLE = /^[ -~]*$/;
const JOINING =
  "\\u0590-\\u1fff\\u2100-\\u2bff\\ua800-\\uabff\\ufb1d-\\ufdff\\ufe0f\\ufe70-\\ufefc\\u{10000}-\\u{1ffff}";
// Invisible characters that change nothing, because they follow no letter or emoji that they can change
const STRAY = new RegExp(
  `(?<![${JOINING}])[\\u200c\\u200d]|(?<![\\u{1f3f4}\\u{e0020}-\\u{e007f}])[\\u{e0020}-\\u{e007f}]+` +
    "|(?!(?<=(?!\\p{ASCII})\\p{Emoji})|(?<=[0-9#*])\\ufe0f+\\u20e3)[\\ufe0e\\ufe0f]" +
    "|(?<!\\p{Unified_Ideograph})[\\u{e0100}-\\u{e01ef}]|(?<!(?!\\p{DI})\\p{Script=Mongolian})[\\u180b-\\u180f]",
  "gu",
);
const FINAL_SIGMA = /(?<=\p{Script=Greek}\p{M}{0,2})σ(?!\p{M}*\p{L})/gu;
const REGIONAL_LETTERS =
  /(?<!\p{RI})\p{RI}(?:\p{RI}{2})*(?!\p{RI})|(?<![\p{L}\p{M}\p{N}\p{RI}])\p{RI}+(?![\p{L}\p{M}\p{N}\p{RI}])/gu;

/** Return a text; throw an error if it has half of a surrogate pair, or is too long. */
export function checkText(text: string, label = "text"): string {
  if (typeof text !== "string") throw new TypeError(`${label}: expected a text, got ${typeof text}`);
  if (/\p{Surrogate}/u.test(text)) throw new Error(`${label}: expected Unicode text, got half of a surrogate pair`);
  const bytes = new TextEncoder().encode(text).length;
  if (bytes > MAX_BYTES) throw new Error(`${label}: expected at most ${MAX_BYTES} bytes, got ${bytes}`);
  return text;
}

/** Return a complete text in which each σ at the end of a word is ς. */
export function withFinalSigma(text: string): string {
  return text.replace(FINAL_SIGMA, "ς");
}

/** Return a text in NFC and lower case. */
export function lowerCase(text: string): string {
  return withoutDotsOfI(text.normalize("NFC").toLowerCase().replaceAll("ς", "σ"));
}

function withoutDotsOfI(text: string): string {
  const form = text.normalize("NFC");
  return /[\u0307İ]/.test(form) ? form.normalize("NFD").replace(/(?<=[iI])\u0307+/g, "").normalize("NFC") : form;
}

function joinWords(text: string): string {
  return text.split(SPACE).filter((word) => word !== "").join(" ");
}

export class Folds {
  private readonly meaningless: RegExp;
  private readonly unseen: RegExp;

  constructor(private readonly tables: Rules["text"]) {
    this.meaningless = new RegExp(`[${characterClass(tables.meaningless)}]+`, "gu");
    this.unseen = new RegExp(`[${characterClass(tables.unseen)}]`, "gu");
  }

  /** Return the form that is equal for the same texts. */
  sameText(text: string): string {
    return joinWords(this.visible(text));
  }

  /** Return the same form for the beginning of a text, with a final space if it ends in white space. */
  samePrefix(text: string): string {
    const visible = this.visible(text);
    const form = joinWords(visible);
    return form !== "" && /[\s\x1c-\x1f\x85]$/u.test(visible) ? `${form} ` : form;
  }

  /** Return a form that is equal for texts that look alike. */
  screening(text: string, ignoreCase = false): string {
    if (PRINTABLE.test(text)) return joinWords(ignoreCase ? text.toLowerCase() : text);
    const characters = Array.from(text.normalize("NFC").replace(this.unseen, ""));
    let form = characters.map((character) => this.tables.forms[character] ?? character).join("");
    form = form.replace(REGIONAL_LETTERS, (letters) =>
      Array.from(letters, (letter) => String.fromCharCode(letter.codePointAt(0)! - 0x1f1e6 + 65)).join(""),
    );
    form = withoutDotsOfI(form).replace(/(?<=[0-9])\p{M}+/gu, "");
    form = joinWords(form.replace(/(?<=[A-Za-z0-9])。(?=[A-Za-z0-9])/g, "."));
    if (!ignoreCase) return form;
    return Array.from(form, (character) => this.tables.case[character] ?? character).join("").normalize("NFC");
  }

  private visible(text: string): string {
    if (PRINTABLE.test(text)) return text;
    let form = text.normalize("NFC").replace(this.meaningless, "").normalize("NFC");
    for (;;) {
      const shorter = form.replace(STRAY, "");
      if (shorter === form) return form;
      form = shorter.normalize("NFC");
    }
  }
}
