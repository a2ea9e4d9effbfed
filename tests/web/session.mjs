// Plays a script, a list of methods with arguments, with an exported folder in Node; prints the results as JSON. A second
// completer, like one in another tab, with the same storage answers the methods that begin with "other ".
// node session.mjs FOLDER_OF_THE_PACKAGE EXPORTED_FOLDER < SCRIPT
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [packageFolder, folder] = process.argv.slice(2);
const { DeviceCompleter, MemoryStorage } = await import(pathToFileURL(join(packageFolder, "index.js")).href);
const wasm = await readFile(join(packageFolder, "factorcell.wasm"));
const readExported = async (name) => new Uint8Array(await readFile(join(folder, name)));
try {
  const storage = new MemoryStorage();
  const openCompleter = () => DeviceCompleter.open(readExported, wasm, storage);
  const [completer, other] = [await openCompleter(), await openCompleter()];
  const input = await new Promise((resolve) => {
    let text = "";
    process.stdin.on("data", (part) => (text += part)).on("end", () => resolve(text));
  });
  const results = [];
  for (const [method, ...values] of JSON.parse(input)) {
    const [player, name] = method.startsWith("other ") ? [other, method.slice(6)] : [completer, method];
    results.push((await player[name](...values)) ?? null);
  }
  console.log(JSON.stringify(results));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
