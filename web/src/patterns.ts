/**
 * Regular expressions of the Python library `regex` as regular expressions of JavaScript.
 *
 * JavaScript has no possessive quantifiers, and its \w, \d and \b know ASCII only. A possessive X*+ becomes
 * (?=(?<q1>X*))\k<q1>, because a lookahead never gives back what it has matched. A difference of classes becomes
 * (?:(?![y])[x]) instead of [x--[y]]: V8 11.3 finds no match of some patterns with the flag v.
 */

import type { Ranges } from "./format.js";

const WORD_CLASS = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
const WORD = `[${WORD_CLASS}]`;
const BOUNDARY = `(?:(?<=${WORD})(?!${WORD})|(?<!${WORD})(?=${WORD}))`;
const QUANTIFIER = /^(?:[*+?]|\{\d+(?:,\d*)?\})/;
const GROUP = /^\((?:\?V1\)|\?P<\w+>|\?[:=!]|\?<[=!])?/;

/** Return a class of characters, without brackets. */
export function characterClass(ranges: Ranges): string {
  return ranges.map(([first, last]) => `\\u{${first.toString(16)}}-\\u{${last.toString(16)}}`).join("");
}

/** Translate a pattern; {name} in a class of characters stands for the class of this name. */
export function translate(pattern: string, classes: Record<string, string> = {}): string {
  return new Translation(pattern, classes).result();
}

class Translation {
  private place = 0;
  private groups = 0;
  private possessive = 0;
  private output = "";

  constructor(
    private readonly pattern: string,
    private readonly classes: Record<string, string>,
  ) {}

  result(): string {
    const openGroups: number[] = [];
    let atom = 0;  // where in the output the last atom begins
    while (this.place < this.pattern.length) {
      const rest = this.pattern.slice(this.place);
      const quantifier = QUANTIFIER.exec(rest)?.[0];
      if (quantifier !== undefined) {
        this.quantify(quantifier, atom);
        continue;
      }
      if (rest[0] !== ")") atom = this.output.length;
      if (rest[0] === "(") {
        if (this.openGroup(rest)) openGroups.push(atom);
      } else if (rest[0] === ")") {
        atom = openGroups.pop()!;
        this.write(")", 1);
      } else if (rest[0] === "[") {
        this.output += this.readClass();
      } else if (rest[0] === "\\") {
        this.output += this.readEscape(false);
      } else {
        this.write("{}]".includes(rest[0]) ? `\\${rest[0]}` : rest[0], 1);
      }
    }
    return this.output;
  }

  private write(text: string, length: number): void {
    this.output += text;
    this.place += length;
  }

  private quantify(quantifier: string, atom: number): void {
    this.write(quantifier, quantifier.length);
    const next = this.pattern[this.place];
    if (next === "?") this.write("?", 1);
    if (next !== "+") return;
    this.place++;
    const name = `q${++this.possessive}`;
    this.output = `${this.output.slice(0, atom)}(?=(?<${name}>${this.output.slice(atom)}))\\k<${name}>`;
  }

  /** Write the beginning of a group, and return whether there is one: (?V1) is an option. */
  private openGroup(rest: string): boolean {
    const [begin] = GROUP.exec(rest)!;
    if (begin === "(?V1)") {
      this.place += begin.length;
      return false;
    }
    if (begin === "(" || begin.startsWith("(?P<")) this.groups++;
    this.write(begin === "(" ? `(?<g${this.groups}>` : begin.replace("(?P<", "(?<"), begin.length);
    return true;
  }

  /** Read a class of characters; `[^\W...]` and `[...--[...]]` are differences of two classes. */
  private readClass(): string {
    const isNegated = this.pattern[this.place + 1] === "^";
    this.place += isNegated ? 2 : 1;
    let text = "";
    let minuend = "";
    for (let first = true; ; first = false) {
      const character = this.pattern[this.place];
      const rest = this.pattern.slice(this.place);
      const name = /^\{(\w+)\}/.exec(rest);
      if (character === "]") {
        this.place++;
        if (minuend !== "") return difference(minuend, text);
        return `[${isNegated ? "^" : ""}${text}]`;
      }
      if (rest.startsWith("--[")) {
        this.place += 2;
        const subtrahend = this.readClass().slice(1, -1);
        this.place++;  // the outer bracket
        return difference(text, subtrahend);
      }
      if (rest.startsWith("\\W") && isNegated) {
        minuend = WORD_CLASS;
        this.place += 2;
      } else if (character === "\\") {
        text += this.readEscape(true);
      } else if (name !== null && name[1] in this.classes) {
        text += this.classes[name[1]];
        this.place += name[0].length;
      } else {
        const isLiteralDash = character === "-" && (first || rest[1] === "]");
        text += "(){}[/|".includes(character) || isLiteralDash ? `\\${character}` : character;
        this.place++;
      }
    }
  }

  private readEscape(isInClass: boolean): string {
    const escaped = this.pattern[this.place + 1];
    const property = /^\\[pP]\{[^}]*\}/.exec(this.pattern.slice(this.place));
    this.place += property === null ? 2 : property[0].length;
    if (property !== null) return property[0];
    if (escaped === "w") return isInClass ? WORD_CLASS : WORD;
    if (escaped === "W" && !isInClass) return `[^${WORD_CLASS}]`;
    if (escaped === "d") return "\\p{Nd}";
    if (escaped === "b") return BOUNDARY;
    if ("sSnt".includes(escaped)) return `\\${escaped}`;
    if (/[0-9]/.test(escaped)) return `\\k<g${escaped}>`;
    const isSyntax = "^$\\.*+?()[]{}|/".includes(escaped) || (isInClass && escaped === "-");
    return isSyntax ? `\\${escaped}` : escaped;
  }
}

/** Return a pattern of the characters of one class that are not in another one. */
export function difference(minuend: string, subtrahend: string): string {
  return `(?:(?![${subtrahend}])[${minuend}])`;
}
