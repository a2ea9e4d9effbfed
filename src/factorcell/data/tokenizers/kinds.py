"""The kinds of tokenizers: how a config and a run folder select one, and how other programs read it.

The kinds are `word`, `space` (split at white space only), `char` (Unicode code points after NFC), `grapheme` (grapheme
clusters, such as a letter with its accents, a flag or a family emoji), `bpe` (pieces of words) and `pretrained`.
"""

import json
from pathlib import Path
from typing import Any

from factorcell.config import EXTENSIBLE, KIND_CHECKS, Config, PretrainedTokenizerOptions
from factorcell.data.text_folds import FINAL_SIGMA
from factorcell.data.tokenizers.bpe import BpeTokenizer, PretrainedTokenizer, import_library
from factorcell.data.tokenizers.tokenizer import (
    GRAPHEME,
    WORD,
    CharacterTokenizer,
    GraphemeTokenizer,
    SpaceTokenizer,
    Tokenizer,
    WordTokenizer,
)
from factorcell.errors import UserError
from factorcell.io import input_files, pretrained

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "word": WordTokenizer,
    "space": SpaceTokenizer,
    "char": CharacterTokenizer,
    "grapheme": GraphemeTokenizer,
    "bpe": BpeTokenizer,
    "pretrained": PretrainedTokenizer,
}


def register_tokenizer(name: str, cls: type[Tokenizer]) -> None:
    """Make a tokenizer of another package available in this process.

    Args:
        name: The kind of the tokenizer, which selects it as in `--tokenizer NAME`.
        cls: The class of the tokenizer.

    Raises:
        UserError: The name is in use, or the class does not define `Options` for this kind.
    """
    EXTENSIBLE["tokenizer"].register(name, cls, KIND_CHECKS["tokenizer"])


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """Return the class of the tokenizer `kind`, which is built in, registered, or defined by an installed package."""
    cls: type[Tokenizer] = EXTENSIBLE["tokenizer"].find_class(kind, TOKENIZERS, KIND_CHECKS["tokenizer"])
    return cls


def tokenizer_files() -> tuple[str, ...]:
    """Return the names of all files that a built-in or registered tokenizer writes into a run folder."""
    classes: list[Any] = [*TOKENIZERS.values(), *EXTENSIBLE["tokenizer"].registered.values()]
    return tuple(dict.fromkeys(name for cls in classes for name in cls.FILES))


def new_tokenizer(config: Config) -> Tokenizer:
    """Return a tokenizer of the kind that `config` selects; only that of a pretrained model has a vocabulary."""
    if config.tokenizer.kind == PretrainedTokenizerOptions.kind:
        return PretrainedTokenizer.of_base(config)
    return tokenizer_class(config.tokenizer.kind)(config.tokenizer)


def load_tokenizer(config: Config, folder: Path) -> Tokenizer:
    """Return the tokenizer whose files `Tokenizer.save` wrote into `folder`.

    Raises:
        UserError: A file is missing or damaged.
    """
    cls = tokenizer_class(config.tokenizer.kind)
    contents = {name: input_files.read_bytes(folder / name) for name in cls.FILES}
    try:
        return cls.from_contents(config.tokenizer, contents)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{folder / cls.FILES[0]}: damaged ({error})") from None


def to_transformers(tokenizer: Tokenizer, vocabulary_size: int, start_id: int) -> Any:
    """Return `tokenizer` as a tokenizer of `transformers`; None if that library cannot express it.

    The result puts `start_id` before each text, as the models of factorcell read texts. It has the first
    `vocabulary_size` tokens; only special tokens that a run has added to those of a pretrained model may be left out.
    The library cannot express tokenizers of other packages. The ids are the same for
    all texts, except texts of the tokenizer `space` that contain a special token such as `<s>`.
    """
    splitter = _splitter(tokenizer)
    if splitter is None:
        return None
    library = import_library()
    if vocabulary_size < len(tokenizer):
        content = json.loads(splitter.to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocabulary_size]
        splitter = library.Tokenizer.from_str(json.dumps(content))
    unknown_id, _, end_id = tokenizer.specials
    unknown = tokenizer.tokens[unknown_id] if unknown_id < vocabulary_size else None
    start, end = (tokenizer.tokens[special] for special in (start_id, end_id))
    processors = library.processors
    splitter.post_processor = processors.TemplateProcessing(
        single=[start, "$A"],
        pair=[start, "$A", start, "$B"],
        special_tokens=[(start, start_id)],
    )
    splitter.add_special_tokens([name for name in dict.fromkeys((unknown, start, end)) if name is not None])
    return pretrained.transformers().PreTrainedTokenizerFast(
        tokenizer_object=splitter,
        unk_token=unknown,
        bos_token=start,
        eos_token=end,
        split_special_tokens=True,  # a text that contains "<s>" does not contain a special token
    )


def _splitter(tokenizer: Tokenizer) -> Any:
    """Return a tokenizer of the library `tokenizers` without special tokens; None if there is no equivalent."""
    library = import_library()
    normalizers, pre_tokenizers = library.normalizers, library.pre_tokenizers
    lowercase = []
    if tokenizer.options.lowercase:  # as `Tokenizer.normalize`
        replacements = [normalizers.Replace("ς", "σ"), normalizers.Replace(library.Regex("i\u0307+"), "i")]
        if not tokenizer.restores_texts:
            replacements.append(normalizers.Replace(library.Regex(FINAL_SIGMA.pattern), "ς"))
        lowercase = [normalizers.NFC(), normalizers.Lowercase(), *replacements, normalizers.NFC()]
    if type(tokenizer) in (BpeTokenizer, PretrainedTokenizer):
        splitter = library.Tokenizer.from_str(tokenizer.contents()[tokenizer.FILES[0]].decode())
        if lowercase:
            other = [] if splitter.normalizer is None else [splitter.normalizer]
            splitter.normalizer = normalizers.Sequence([*lowercase, *other])
        return splitter
    pre_tokenizer = {
        WordTokenizer: pre_tokenizers.Split(library.Regex(WORD.pattern), "removed", invert=True),
        SpaceTokenizer: pre_tokenizers.WhitespaceSplit(),
        CharacterTokenizer: pre_tokenizers.Split(library.Regex("(?m)."), "isolated"),  # also matches line breaks
        GraphemeTokenizer: pre_tokenizers.Split(library.Regex(GRAPHEME.pattern), "isolated"),
    }.get(type(tokenizer))
    if pre_tokenizer is None:
        return None
    ids = {token: token_id for token_id, token in enumerate(tokenizer.tokens)}
    splitter = library.Tokenizer(library.models.WordLevel(ids, unk_token=tokenizer.tokens[tokenizer.specials.unknown]))
    splitter.normalizer = normalizers.Sequence(lowercase or [normalizers.NFC()])
    splitter.pre_tokenizer = pre_tokenizer
    if tokenizer.is_character_level:
        splitter.decoder = library.decoders.Fuse()
    return splitter
