// Plays a script with an exported folder in Node; prints the results as JSON.
// node session.mjs FOLDER_OF_THE_PACKAGE EXPORTED_FOLDER < SCRIPT
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { play } from "./play.mjs";

const [packageFolder, folder] = process.argv.slice(2);
const { DeviceCompleter, MemoryStorage } = await import(pathToFileURL(join(packageFolder, "index.js")).href);
const wasm = await readFile(join(packageFolder, "factorcell.wasm"));
const readExported = async (name) => new Uint8Array(await readFile(join(folder, name)));
try {
  const storage = new MemoryStorage();
  const openCompleter = (options) => DeviceCompleter.open(readExported, wasm, storage, options);
  const input = await new Promise((resolve) => {
    let text = "";
    process.stdin.on("data", (part) => (text += part)).on("end", () => resolve(text));
  });
  console.log(JSON.stringify(await play(openCompleter, JSON.parse(input))));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
