// Plays a script, a list of calls [method, ...arguments], and returns the results. A second completer with the same
// storage, like one in another tab, answers the methods that begin with "other "; "reopen" opens the first one again.
export async function play(open, script) {
  let completer = await open();
  const other = await open();
  const results = [];
  for (const [method, ...values] of script) {
    if (method === "reopen") {
      completer.close?.();
      completer = await open(...values);
      results.push(null);
      continue;
    }
    const [player, name] = method.startsWith("other ") ? [other, method.slice(6)] : [completer, method];
    results.push((await player[name](...values)) ?? null);
  }
  completer.close?.();
  other.close?.();
  return results;
}
