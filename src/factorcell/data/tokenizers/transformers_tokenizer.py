"""Tokenizers in the format of the library `transformers`, for models that other programs read.

Such a tokenizer puts the start token before each text, as the models of factorcell read texts.
"""

import json
from typing import Any

from factorcell.data.text_folds import FINAL_SIGMA
from factorcell.data.tokenizers.bpe import BpeTokenizer, import_library
from factorcell.data.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from factorcell.data.tokenizers.tokenizer import (
    GRAPHEME,
    WORD,
    CharacterTokenizer,
    GraphemeTokenizer,
    SpaceTokenizer,
    Tokenizer,
    WordTokenizer,
)
from factorcell.io import pretrained


def to_transformers(tokenizer: Tokenizer, vocabulary_size: int, start_id: int) -> Any:
    """Return `tokenizer` as a tokenizer of `transformers`; None if that library cannot express it.

    The result has the first `vocabulary_size` tokens, and `start_id` before each text. Only special tokens that a run
    has added to the tokens of a pretrained model may be left out.

    It cannot express tokenizers of other packages, and those that drop punctuation. The ids are the same for all texts,
    except texts of the tokenizer `space` that contain a special token such as `<s>`.
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
