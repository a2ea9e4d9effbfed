"""Tokenizers of pieces of words: byte-pair encoding of the bytes of a text (Sennrich et al. 2016; Radford et al. 2019).

`BpeTokenizer` wraps a tokenizer of the library `tokenizers`, which `train` learns from the words of the training texts;
`PretrainedTokenizer` wraps that of a pretrained model. The token strings are those of the library: each stands for a
sequence of bytes, so every text has tokens, and a character may be cut. Byte-level tokenizers (GPT-2, Llama 3, Qwen)
write a byte as one letter of a fixed alphabet, such as `Ġ` for a space. Tokenizers with byte fallback (Llama 2, Gemma)
write a space as `▁` and a byte without a token of its own as `<0xE2>`.
"""

import bisect
import codecs
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import regex

from factorcell.config import BpeOptions, Config, HuggingFaceOptions, PretrainedTokenizerOptions, TokenizerOptions
from factorcell.data.text_folds import lower_case
from factorcell.data.tokenizers.tokenizer import SPECIAL_IDS, SPECIAL_TOKENS, Specials, Tokenizer
from factorcell.errors import UserError
from factorcell.io import pretrained
from factorcell.io.extras import import_extra

if TYPE_CHECKING:
    import tokenizers

# Words, numbers of at most three digits, and punctuation, each with the space before it; other white space.
WORD_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
MIN_VOCABULARY, MAX_VOCABULARY = 1_000, 32_000  # bounds of the vocabulary that `default_vocabulary` chooses
MAX_TRAINING_WORDS = 20_000_000  # counts of words are scaled down to this sum, which takes a minute to learn from
SPECIAL_KEYS = ("unk_token", "bos_token", "eos_token")  # keys of the file of special tokens, in the order of `Specials`
# Special tokens that are added if a pretrained model has no such token, or uses one token for two purposes.
ADDED = ADDED_UNKNOWN, ADDED_START, ADDED_END = "<unknown token>", "<start of text>", "<end of text>"
SPACE = "\u2581"  # ▁, a space in tokenizers with byte fallback
BYTE_TOKEN = regex.compile("<0x([0-9A-F]{2})>")
SURROGATE = regex.compile("[\ud800-\udfff]")
# The end of a text whose tokens may change with the characters that follow, because patterns such as `\s+(?!\S)` and
# `'re` look at them.
UNSTABLE_END = regex.compile(r"(?:\s+|['’]\w{0,2})$")


# The byte of each letter of the byte-level alphabet, as in GPT-2
_VISIBLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
BYTE_BY_LETTER = {chr(byte): byte for byte in _VISIBLE} | {chr(256 + rank): byte for rank, byte in enumerate(_OTHERS)}


def default_vocabulary(word_count: int) -> int:
    """Return the size of the vocabulary for training texts of `word_count` words in total."""
    # Of 1,000, 4,000 and 16,000, the largest size had the fewest bits per byte on 0.9 million words of news.
    size = 16_000 * math.sqrt(max(1, word_count) / 1e6)
    return int(min(MAX_VOCABULARY, max(MIN_VOCABULARY, size)) / 500) * 500


def import_library() -> Any:
    """Return the module `tokenizers`, or raise a `UserError` that tells how to install it."""
    return import_extra("tokenizers", "the tokenizer bpe", "bpe")


class BpeTokenizer(Tokenizer):
    """Splits into pieces of words by byte-pair encoding; no text has an out-of-vocabulary token.

    Args:
        options: The options.
        library_tokenizer: A tokenizer of the library whose tokens stand for bytes; without it, the tokenizer can only
            `split` into words and `train`.
        specials: The ids of the special tokens, three different ones; they may be anywhere in the vocabulary. By
            default, those of a tokenizer that `train` made.

    Attributes:
        bytes_by_id: The bytes for which each token stands; none for special tokens.

    Raises:
        UserError: The tokens do not stand for bytes, or the special ids are not three ids of the vocabulary.
    """

    Options: ClassVar[type[TokenizerOptions]] = BpeOptions
    FILES: ClassVar[tuple[str, ...]] = ("tokenizer.json", "special_tokens_map.json")
    is_subword = True
    unit = "piece"

    def __init__(
        self, options: Any, library_tokenizer: "tokenizers.Tokenizer | None" = None, specials: Specials = SPECIAL_IDS
    ) -> None:
        super().__init__(options)
        self.specials = specials
        self._library = _new_library_tokenizer() if library_tokenizer is None else library_tokenizer
        self._library.encode_special_tokens = True  # a text that contains "<s>" does not contain a special token
        self._library.no_truncation()
        self._library.no_padding()
        self.is_trained, self.bytes_by_id = library_tokenizer is not None, list[bytes]()
        if self.is_trained:
            if len({*specials}.intersection(range(len(self)))) < len(specials):
                size = f"of {len(self):,} tokens"
                raise UserError(f"tokenizer: expected three different special ids {size}, got {tuple(specials)}")
            self.bytes_by_id = self._find_bytes()

    @cached_property
    def tokens(self) -> Sequence[str]:
        # An added token that is normalized has another text in `get_vocab`.
        size = 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)
        return [self._library.id_to_token(token_id) or "" for token_id in range(size)]

    @cached_property
    def _id_by_token(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens) if token}

    def _find_bytes(self) -> list[bytes]:
        content = json.loads(self._library.to_str())
        is_byte_level = '"ByteLevel"' in json.dumps([content["pre_tokenizer"], content["decoder"]])
        if not is_byte_level and not content["model"].get("byte_fallback"):
            expected = "expected a byte-level tokenizer, or one with byte fallback"
            raise UserError(f"tokenizer: {expected}, got {content['model'].get('type')}")
        is_special = {token["id"]: token["special"] for token in content["added_tokens"]}

        def bytes_of(token_id: int, token: str) -> bytes:
            if token_id in self.specials or is_special.get(token_id):
                return b""
            if is_byte_level and token_id not in is_special:
                return bytes(BYTE_BY_LETTER[letter] for letter in token if letter in BYTE_BY_LETTER)
            if token_id not in is_special and (match := BYTE_TOKEN.fullmatch(token)):
                return bytes.fromhex(match[1])
            return (token if is_byte_level else token.replace(SPACE, " ")).encode()

        return [bytes_of(token_id, token) for token_id, token in enumerate(self.tokens)]

    @cached_property
    def adds_space(self) -> bool:
        """Whether the tokens of a text begin with a space that the text does not contain, as in Llama 2."""
        return self._to_bytes(self._library.encode("a", add_special_tokens=False).tokens) == b" a"

    @cached_property
    def is_lossless(self) -> bool:
        """Whether the pieces of each text are certainly those of exactly its normalized text."""
        if not self.is_trained:
            return True
        is_byte_level = "ByteLevel" in json.dumps(json.loads(self._library.to_str())["pre_tokenizer"])
        has_all_bytes = BYTE_BY_LETTER.keys() <= self._id_by_token.keys()
        return is_byte_level and has_all_bytes and not self.adds_space and self._library.normalizer is None

    def split(self, text: str) -> list[str]:
        return self.split_all([text])[0]

    def split_all(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each text, or its words if the tokenizer has no vocabulary."""
        normalized = [self.normalize(text) for text in texts]
        if not self.is_trained:
            split_words = self._library.pre_tokenizer.pre_tokenize_str
            return [[word for word, _ in split_words(text)] for text in normalized]
        encodings = self._library.encode_batch(normalized, add_special_tokens=False)
        return [encoding.tokens for encoding in encodings]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of `tokens`, without a character at its end whose bytes are incomplete."""
        content = self._to_bytes(tokens)
        if self.is_trained and self.adds_space:
            content = content.removeprefix(b" ")
        return codecs.getincrementaldecoder("utf-8")("replace").decode(content)

    def _to_bytes(self, tokens: Iterable[str]) -> bytes:
        return b"".join(self.bytes_by_id[token_id] for token_id in self.encode(tokens))

    def readable(self, token: str) -> str:
        """Return the text of a token, with a byte of an incomplete character in hexadecimal, or a special token.

        The end token is `</s>`, as in other tokenizers, also if a pretrained tokenizer has another one.
        """
        if token == self.tokens[self.specials.end]:
            return SPECIAL_TOKENS[SPECIAL_IDS.end]
        return self._to_bytes([token]).decode("utf-8", "backslashreplace") or token

    def encode_words(self, words: Iterable[str]) -> list[Sequence[int]]:
        cut = self._library.model.tokenize
        return [tuple(piece.id for piece in cut(word)) for word in words]

    def normalize(self, text: str) -> str:
        """Return `text` in lower case if the options require it, with U+FFFD in place of halves of surrogate pairs."""
        text = SURROGATE.sub("\ufffd", text)
        return lower_case(text) if self.options.lowercase else text

    def may_begin(self, tokens: Sequence[str]) -> bool:
        """Return whether a text may have tokens that begin with `tokens`; false only if certainly no text has.

        The first tokens of a text are the tokens of its beginning, because byte-pair encoding merges the pairs within a
        word in an order that does not depend on what follows. Last tokens that end within a character or in an
        `UNSTABLE_END` may change, and are not compared.
        """
        contents = [self.bytes_by_id[token_id] for token_id in self.encode(tokens)]
        if not all(contents):
            return False  # a special token
        for count in range(len(tokens), 0, -1):
            content = b"".join(contents[:count])
            try:
                text = content.decode()
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data":
                    return False
                continue
            if not UNSTABLE_END.search(text):
                return self._may_be_tokens(list(tokens[:count]))
        return True

    def _may_be_tokens(self, tokens: list[str]) -> bool:
        """Return whether these are the tokens of their text, or may be so if its last word continues."""
        text = self.normalize(self.join(tokens))
        expected = self._library.encode(text, add_special_tokens=False)
        if expected.tokens == tokens or self._merging_library is None:
            return bool(expected.tokens == tokens)
        # A longer word need not be whole: its tokens begin with the merged tokens of this beginning.
        merged = self._merging_library.encode(text, add_special_tokens=False)
        first, first_merged = (words.index(words[-1]) for words in (expected.word_ids, merged.word_ids))
        return bool(expected.tokens[:first] + merged.tokens[first_merged:] == tokens)

    @cached_property
    def _merging_library(self) -> "tokenizers.Tokenizer | None":
        """A tokenizer that merges all words, for one that leaves the words of its vocabulary whole, as Llama 3 does."""
        if not getattr(self._library.model, "ignore_merges", False):
            return None
        merging: tokenizers.Tokenizer = import_library().Tokenizer.from_str(self._library.to_str())
        merging.model.ignore_merges = False
        merging.encode_special_tokens = True
        return merging

    def certain_tokens(self, text: str) -> list[str]:
        """Return the first tokens of every text that begins with `text`: those before its last two words."""
        unstable = UNSTABLE_END.search(text)
        encoding = self._library.encode(text[: unstable.start()] if unstable else text, add_special_tokens=False)
        word_numbers = [number for number in encoding.word_ids if number is not None]
        count = bisect.bisect_left(word_numbers, word_numbers[-1] - 1) if word_numbers else 0
        return encoding.tokens[:count]

    def train(self, counts: Mapping[str, int]) -> Self:
        """Return a tokenizer whose pieces are learned from the words of the training texts."""
        library = import_library()
        total = sum(counts.values())
        size = self.options.max_vocabulary or default_vocabulary(total)
        trained = _new_library_tokenizer()
        pre_tokenizer, trained.pre_tokenizer = trained.pre_tokenizer, library.pre_tokenizers.WhitespaceSplit()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size + len(SPECIAL_TOKENS),
            min_frequency=self.options.min_count,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        divisor = max(1.0, total / MAX_TRAINING_WORDS)
        lines = (" ".join([word] * round(count / divisor)) for word, count in sorted(counts.items()))
        trained.train_from_iterator(lines, trainer)
        trained.pre_tokenizer = pre_tokenizer
        return type(self)(self.options, trained)

    def to_transformers(self, vocabulary_size: int, start_id: int) -> Any:
        """Return a tokenizer of `transformers` with the same ids, which puts `start_id` before each text.

        It has the first `vocabulary_size` tokens; only special tokens that a run has added to those of a pretrained
        model may be left out.
        """
        library = import_library()
        content = json.loads(self._library.to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocabulary_size]
        splitter, normalizers = library.Tokenizer.from_str(json.dumps(content)), library.normalizers
        if self.options.lowercase:  # as `normalize`
            without_dots = normalizers.Replace(library.Regex("i\u0307+"), "i")
            steps = [normalizers.NFC(), normalizers.Lowercase(), normalizers.Replace("ς", "σ"), without_dots]
            others = [] if splitter.normalizer is None else [splitter.normalizer]
            splitter.normalizer = normalizers.Sequence([*steps, normalizers.NFC(), *others])
        unknown_id, _, end_id = self.specials
        unknown = self.tokens[unknown_id] if unknown_id < vocabulary_size else None
        start, end = self.tokens[start_id], self.tokens[end_id]
        splitter.post_processor = library.processors.TemplateProcessing(
            single=[start, "$A"], pair=[start, "$A", start, "$B"], special_tokens=[(start, start_id)]
        )
        splitter.add_special_tokens([name for name in dict.fromkeys((unknown, start, end)) if name is not None])
        return pretrained.transformers().PreTrainedTokenizerFast(
            tokenizer_object=splitter,
            unk_token=unknown,
            bos_token=start,
            eos_token=end,
            split_special_tokens=True,  # a text that contains "<s>" does not contain a special token
        )

    def contents(self) -> dict[str, bytes]:
        names = {key: self.tokens[token_id] for key, token_id in zip(SPECIAL_KEYS, self.specials, strict=True)}
        texts = (self._library.to_str(pretty=True), json.dumps(names, indent=2, ensure_ascii=False) + "\n")
        return {name: text.encode() for name, text in zip(self.FILES, texts, strict=True)}

    @classmethod
    def from_contents(cls, options: Any, contents: Mapping[str, bytes]) -> Self:
        library_tokenizer, names = (contents[name].decode() for name in cls.FILES)
        library = import_library()
        try:
            wrapped = library.Tokenizer.from_str(library_tokenizer)
            ids = [wrapped.token_to_id(json.loads(names)[key]) for key in SPECIAL_KEYS]
        except Exception as error:  # the library raises `Exception` itself
            raise ValueError(f"{error}") from None
        if None in ids:
            raise ValueError("a special token is not in the vocabulary")
        return cls(options, wrapped, Specials(*ids))


class PretrainedTokenizer(BpeTokenizer):
    """The tokenizer of a pretrained model; training on a table does not change it."""

    Options = PretrainedTokenizerOptions

    @classmethod
    def of_base(cls, config: Config) -> Self:
        """Return the tokenizer of the base of `config`; raise a `UserError` if there is no base or tokenizer."""
        backbone = config.backbone
        if not (isinstance(backbone, HuggingFaceOptions) and backbone.is_pretrained):
            raise UserError("tokenizer pretrained: expected a pretrained model (base), got none; set base, or use bpe")
        library_tokenizer, (unknown, start, end) = pretrained.read_tokenizer(pretrained.find_source(backbone.base))

        def add(token: str) -> int:
            library_tokenizer.add_special_tokens([token])
            return int(library_tokenizer.token_to_id(token))

        # Three different ids are required.
        end = add(ADDED_END) if end is None else end
        start = add(ADDED_START) if start in (None, end) else start
        unknown = add(ADDED_UNKNOWN) if unknown in (None, start, end) else unknown
        return cls(config.tokenizer, library_tokenizer, Specials(*map(int, (unknown, start, end))))

    # The vocabulary exists before training, so that words are tokens already.
    encode_words = Tokenizer.encode_words

    def train(self, counts: Mapping[str, int]) -> Self:
        return self

    @property
    def known_count(self) -> int:
        # The special tokens that were added are the last ones.
        return min((special for special in self.specials if self.tokens[special] in ADDED), default=len(self))


def _new_library_tokenizer() -> Any:
    """Return a byte-level tokenizer of the library without pieces."""
    library = import_library()
    tokenizer = library.Tokenizer(library.models.BPE())
    words = library.pre_tokenizers.Split(library.Regex(WORD_PATTERN), "isolated")
    letters = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([words, letters])
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer
