/** Recognition of private content, and blocked phrases, by the tables of an exported run; as factorcell in Python. */

import type { Folds } from "./folds.js";
import type { Rules } from "./format.js";
import { characterClass, difference, translate } from "./patterns.js";

type Match = RegExpExecArray;
type Check = (match: Match) => boolean;

interface Rule {
  label: string;
  minDigits: number;
  hint: RegExp | null;
  pattern: RegExp;
  isPrivate: Check;
}

const CARD_DIGITS = [13, 19];
const PHONE_DIGITS = [8, 15];
const IBAN_LENGTHS = [15, 34];
const MIN_IBAN_DIGITS = 8;
const MIN_KEY_LENGTH = 16;
const COMMON_PUNCTUATION = new Set("'’-.,:;()[]/\"?&#_");

const countDigits = (text: string): number => text.match(/[0-9]/g)?.length ?? 0;
const isDigits = (text: string): boolean => /^[0-9]+$/.test(text);
const isWithin = (value: number, [low, high]: number[]): boolean => low <= value && value <= high;
const isAlphanumeric = (text: string): boolean => /^[\p{L}\p{N}]+$/u.test(text);
const isMixed = (text: string): boolean => /\p{Lowercase}/u.test(text) && /\p{Uppercase}/u.test(text);

export class PrivateContent {
  private readonly rules: Rule[];
  private readonly patterns: Record<string, RegExp> = {};
  private readonly ordinaryWords: Set<string>;
  private readonly ordinaryEndings: string[];

  constructor(
    tables: Rules["private"],
    private readonly folds: Folds,
  ) {
    const classes = Object.fromEntries(
      Object.entries(tables.ranges).map(([name, ranges]) => [name, characterClass(ranges)]),
    );
    for (const [name, pattern] of Object.entries(tables.patterns)) {
      const caseMatters = /^\(\?-i:(.*)\)$/.exec(pattern);
      const source = translate(caseMatters === null ? pattern : caseMatters[1], classes);
      this.patterns[name] = new RegExp(source, caseMatters === null ? "giu" : "gu");
    }
    this.rules = tables.rules.map((rule) => ({
      label: rule.label,
      minDigits: rule.min_digits ?? 0,
      hint: rule.hint === undefined ? null : new RegExp(translate(rule.hint, classes), "u"),
      pattern: new RegExp(translate(rule.pattern, classes), "giu"),
      isPrivate: rule.check === undefined ? () => true : this.check(rule.check),
    }));
    this.ordinaryWords = new Set(tables.words.ordinary);
    this.ordinaryEndings = tables.words.ordinary_endings;
  }

  /** Return what a text seems to contain, such as "a password"; null if it does not seem to be private. */
  find(text: string): string | null {
    const form = this.folds.screening(text);
    const lowercase = form.toLowerCase();
    const digits = countDigits(form);
    for (const rule of this.rules) {
      if (digits < rule.minDigits || (rule.hint !== null && !rule.hint.test(lowercase))) continue;
      for (const match of form.matchAll(rule.pattern)) {
        if (rule.isPrivate(match as Match)) return rule.label;
      }
    }
    return null;
  }

  private check(name: string): Check {
    const checks: Record<string, Check> = {
      iban: (match) => this.isIban(match),
      "card number": (match) => this.hasCardNumber(match),
      "random word": (match) => this.isRandom(match),
      phrase: (match) => this.isSecret(match),
      "reversed phrase": (match) => this.isReversedSecret(match),
      "mixed word": (match) => resemblesPassword(match),
      "phone number": ([number]) =>
        isWithin(countDigits(number), PHONE_DIGITS) && number.search(this.patterns.date) < 0,
    };
    const check = checks[name];
    if (check === undefined) throw new Error(`rules.json: expected a check of ${Object.keys(checks)}, got ${name}`);
    return check;
  }

  private matchesWhole(name: string, text: string): boolean {
    return Array.from(text.matchAll(this.patterns[name])).some((match) => match[0].length === text.length);
  }

  private isIban(match: Match): boolean {
    const groups = match[1].split(this.patterns.separator);
    for (let count = 1; count <= groups.length; count++) {
      const group = groups[count - 1];
      if ((group.length <= 4 || count === 1) && hasCheckDigits(groups.slice(0, count).join(""))) return true;
      if (group.length !== 4) return false;  // only the last group may be shorter
    }
    return false;
  }

  private hasCardNumber(match: Match): boolean {
    const groups = match[0].match(/[0-9]+/g) ?? [];
    return groups.some((_, start) => {
      let digits = "";
      return groups.slice(start, start + Math.floor(CARD_DIGITS[1] / 3)).some((group) => {
        digits += group;
        return isWithin(digits.length, CARD_DIGITS) && passesLuhn(digits) && !this.matchesWhole("time", digits);
      });
    });
  }

  private isSecret(match: Match): boolean {
    const groups = match.groups!;
    if (groups.pass) return true;
    const value = groups.value.replace(/[.,;:!?]+$/, "");
    const minLength = (groups.pin ?? "").toLowerCase().startsWith("cv") ? 3 : 4;  // a CVV may have 3 digits
    if (groups.colon) return Boolean(groups.password) || (value.length >= minLength && /[0-9]/.test(value));
    const hasVerb = groups.verb !== undefined;
    if (groups.password) {
      const mayBeWord = hasVerb || groups.password.toLowerCase().startsWith("mot");
      return this.resemblesCode(value, 4) || (mayBeWord && !this.continuesSentence(value));
    }
    if (groups.pin) {
      if (!hasVerb && groups.pin.toLowerCase() === "code") return false;
      return isDigits(value) && minLength <= value.length && value.length <= 12;
    }
    return this.resemblesCode(value, hasVerb ? 6 : 8) && !isDigits(value);
  }

  private isReversedSecret(match: Match): boolean {
    const groups = match.groups!;
    const value = groups.value.replace(/^["'“‘„«(]+/, "").replace(/["'”’“»),]+$/, "");
    return this.resemblesCode(value, 4) || (Boolean(groups.password) && !this.continuesSentence(value));
  }

  private resemblesCode(value: string, minLength: number): boolean {
    if (isDigits(value)) return 4 <= value.length && value.length <= 12;
    const hasBoth = /[0-9]/.test(value) && /\p{L}/u.test(value);
    return Array.from(value).length >= minLength && hasBoth && !this.matchesWhole("technical_word", value);
  }

  private continuesSentence(value: string): boolean {
    const word = value.toLowerCase();
    const hasEnding = /^\p{L}+$/u.test(word) && this.ordinaryEndings.some((ending) => word.endsWith(ending));
    return this.ordinaryWords.has(word) || hasEnding || !/[\p{L}\p{N}]/u.test(word);
  }

  private isRandom(match: Match): boolean {
    const word = match[0].replace(this.patterns.uuid, "");
    if (word.length < MIN_KEY_LENGTH) return false;
    const changes = Array.from(word.matchAll(this.patterns.change)).length;
    if (changes >= Math.max(4, 0.18 * word.length)) return true;
    const part = word.split(/[-_]/).reduce((longest, next) => (next.length > longest.length ? next : longest));
    const hasForm = isAlphanumeric(part) && isMixed(part) && part.length >= MIN_KEY_LENGTH;
    return hasForm && part.length <= 2.5 * (part.match(this.patterns.run)?.length ?? 0);
  }
}

function hasCheckDigits(candidate: string): boolean {
  if (!isWithin(candidate.length, IBAN_LENGTHS) || countDigits(candidate) < MIN_IBAN_DIGITS) return false;
  let rest = 0;
  for (const letter of candidate.slice(4) + candidate.slice(0, 4)) {
    const value = parseInt(letter, 36);
    rest = (rest * (value > 9 ? 100 : 10) + value) % 97;
  }
  return rest === 1;
}

function passesLuhn(digits: string): boolean {
  let sum = 0;
  for (let place = 0; place < digits.length; place++) {
    const product = Number(digits[digits.length - 1 - place]) * (1 + (place % 2));
    sum += Math.floor(product / 10) + (product % 10);
  }
  return new Set(digits).size > 1 && sum % 10 === 0;
}

function resemblesPassword(match: Match): boolean {
  const word = match[0];
  if (word.includes("://") || !isMixed(word) || !/[0-9]/.test(word)) return false;
  return Array.from(word).some(
    (letter) => !/[\p{C}\p{Z}\p{L}\p{M}\p{N}]/u.test(letter) && !COMMON_PUNCTUATION.has(letter),
  );
}

/** A filter of suggestions, which may not contain a phrase; the rules are those of `BlockList` in Python. */
export class BlockList {
  private readonly pattern: RegExp | null;

  constructor(
    phrases: string[],
    tables: Rules["private"],
    private readonly folds: Folds,
  ) {
    const [hangul, unspaced] = [tables.ranges.hangul, tables.ranges.unspaced].map(characterClass);
    const letter = difference("\\p{Alphabetic}\\p{M}\\p{N}", unspaced + hangul);
    const begins = (border: string, text: string): boolean => new RegExp(`^${border}`, "u").test(text);
    const alternatives = phrases.map((phrase) => {
      const form = this.fold(phrase);
      const before = [letter, `[${hangul}]`].find((border) => begins(border, form));
      const last = Array.from(form).at(-1) ?? "";
      const after = begins(letter, last) ? letter : "\\p{M}";
      const text = form.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
      return form === "" ? "" : `${before === undefined ? "" : `(?<!${before})`}${text}(?!${after})`;
    });
    const source = alternatives.filter((alternative) => alternative !== "").join("|");
    this.pattern = source === "" ? null : new RegExp(source, "u");
  }

  /** Whether a text contains none of the phrases. */
  allows(text: string): boolean {
    return this.pattern === null || !this.pattern.test(this.fold(text));
  }

  private fold(text: string): string {
    const words = this.folds.screening(text, true).replaceAll("_", " ").split(/\s+/u);
    return words.filter((word) => word !== "").join(" ");
  }
}
