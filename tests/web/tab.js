// Plays scripts in a browser, with completers in workers; scripts and results are JSON.
import { play } from "./play.mjs";
import { open } from "./runtime/index.js";

window.play = async (script) => {
  try {
    return JSON.stringify({ results: await play((options) => open("./", options), JSON.parse(script)) });
  } catch (error) {
    return JSON.stringify({ error: error.message });
  }
};
