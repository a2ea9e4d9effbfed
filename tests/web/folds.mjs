// Prints, for each of the texts of the standard input, what it seems to contain, its folds, and whether it is allowed.
// node folds.mjs FOLDER_OF_THE_PACKAGE EXPORTED_FOLDER < TEXTS
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [packageFolder, folder] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(join(packageFolder, name)).href);
const [{ Folds, lowerCase }, { BlockList, PrivateContent }] = await Promise.all([load("folds.js"), load("privacy.js")]);
const rules = JSON.parse(await readFile(join(folder, "rules.json"), "utf8"));
const folds = new Folds(rules.text);
const privateContent = new PrivateContent(rules.private, folds);
const blockList = new BlockList(rules.blocked, rules.private, folds);
let input = "";
for await (const part of process.stdin.setEncoding("utf8")) input += part;
const results = JSON.parse(input).map((text) => ({
  label: privateContent.find(text),
  same: folds.sameText(text),
  prefix: folds.samePrefix(text),
  screening: folds.screening(text),
  folded: folds.screening(text, true),
  lower: lowerCase(text),
  allowed: blockList.allows(text),
}));
console.log(JSON.stringify(results));
