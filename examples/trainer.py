"""Train context adapters for a causal language model with the `Trainer` of the library transformers.

    python examples/trainer.py --base HuggingFaceTB/SmolLM2-135M --table train.parquet --dev dev.parquet \
        --text review --context stars city --output-dir adapters

The tables are CSV, JSON lines or Parquet files. OUTPUT_DIR gets the adapters, which `ContextModel.from_pretrained`
opens, and a folder `checkpoint-N` for each checkpoint. All options of `TrainingArguments` are options of this script,
such as `--num-train-epochs 3`, `--activation-checkpointing`, `--bf16` and
`--resume-from-checkpoint adapters/checkpoint-50`.
`torchrun --nproc-per-node 2 examples/trainer.py ...` trains with two processes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import datasets
from factorcell.data.columns.schema import ContextSchema
from factorcell.hf import ContextCollator, ContextConfig, get_context_model, read_names

MAX_TOKENS = 255  # of a text with its end token, and of names
FILE_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def open_table(path: str) -> datasets.Dataset:
    """Open a table; processes on the same machine share its memory."""
    return datasets.load_dataset(FILE_FORMATS[Path(path).suffix], data_files=path, split="train")


def tokenize(
    table: datasets.Dataset,
    tokenizer: transformers.PreTrainedTokenizerBase,
    text: str,
    schema: ContextSchema,
    *,
    with_names: bool = False,
) -> datasets.Dataset:
    """Return a data set with the tokens of each text, a start and an end token, and the context columns of a schema.

    A text that has more than `MAX_TOKENS` tokens, its end token included, is cut, and then has no end token. With
    `with_names`, the names of the category values, such as "city: Oslo", are before the text; they are read, but not
    predicted.
    """
    columns, end = schema.columns(), tokenizer.eos_token_id
    start = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id

    def split(texts: Sequence[str]) -> list[list[int]]:
        options = {"add_special_tokens": False, "truncation": True, "max_length": MAX_TOKENS}
        ids: list[list[int]] = tokenizer(texts, **options)["input_ids"]
        return ids

    def convert(rows: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        texts = [[start, *[*ids, end][:MAX_TOKENS]] for ids in split(rows[text])]
        if not with_names:
            return {"input_ids": texts, "labels": texts}
        names = [[start, *ids] for ids in split(read_names({name: rows[name] for name in columns}, schema))]
        return {
            "input_ids": [name + ids for name, ids in zip(names, texts, strict=True)],
            "labels": [[-100] * (len(name) + 1) + ids[1:] for name, ids in zip(names, texts, strict=True)],
        }

    return table.map(convert, batched=True, remove_columns=[name for name in table.column_names if name not in columns])


def main(words: Sequence[str] | None = None) -> transformers.Trainer:
    """Train with the options `words`, or those of the command line, and return the trainer."""
    parser = transformers.HfArgumentParser(transformers.TrainingArguments, description=__doc__)
    parser.add_argument("--base", required=True, help="folder or name of the model")
    parser.add_argument("--table", required=True, help="the texts for training")
    parser.add_argument("--dev", required=True, help="the texts for evaluation")
    parser.add_argument("--text", required=True, help="the column with the texts")
    parser.add_argument("--context", nargs="+", default=[], help="the context columns, NAME or NAME:KIND")
    parser.add_argument("--names", action="store_true", help="put the names of the categories before each text")
    parser.set_defaults(
        output_dir="adapters",
        learning_rate=3e-3,
        warmup_steps=0.1,  # a share of the steps; without it, some trainings diverge in the first steps
        remove_unused_columns=False,  # the contexts are in columns that `forward` has no parameters for
        ddp_find_unused_parameters=False,  # all trained tensors have gradients
        eval_strategy="epoch",
        save_strategy="epoch",
        dataloader_pin_memory=torch.accelerator.is_available(),
    )
    arguments, options = parser.parse_args_into_dataclasses(words)

    transformers.set_seed(arguments.seed)  # all processes start with the same adapters
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.base)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with arguments.main_process_first():
        table, dev = open_table(options.table), open_table(options.dev)
        config = ContextConfig(options.context).fit(table)
        schema = config.schema
        data = [tokenize(part, tokenizer, options.text, schema, with_names=options.names) for part in (table, dev)]

    dtype = "auto" if torch.accelerator.is_available() else "float32"  # bfloat16 is slow on many processors
    base = transformers.AutoModelForCausalLM.from_pretrained(options.base, dtype=dtype)
    model = get_context_model(base, config)
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=data[0],
        eval_dataset=data[1],
        # This collator pads the labels so that padding has no loss, also if the end token serves as padding.
        data_collator=ContextCollator(transformers.DataCollatorForSeq2Seq(tokenizer), schema),
    )
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # complete, also if processes share the weights
    model.save_pretrained(arguments.output_dir, state_dict=state, is_main_process=arguments.should_save)
    return trainer


if __name__ == "__main__":
    main()
