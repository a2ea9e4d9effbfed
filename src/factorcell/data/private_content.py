"""Recognition of private content: secrets, bank data, e-mail addresses and phone numbers in texts that users type.

    find_private_content("my password is hunter2")      # "a password"

Such texts are neither learned online nor suggested. The recognizers are heuristics; when in doubt, they withhold a
text. `docs/results/privacy.md` lists how often they miss a secret, and how often they withhold an ordinary text.

A secret may be announced, in five languages, by a phrase of a name of a secret, a link and a value. The link decides
which values count as secrets:

    link               password and the like                  PIN and the like       token, API key and the like
    : or =             every value                            4 characters, a digit  4 characters, a digit
    is, ist, est, ...  every value that continues no          4 to 12 digits         6 characters, letters and digits
                       sentence, unlike "wrong" or "stored"
    none               letters and digits, or 4 to 12 digits  4 to 12 digits         8 characters, letters and digits

A CVV may have 3 digits, and after the French "mot de passe" a value needs no link.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, TypeAlias

import regex

from factorcell.data.text_folds import HANGUL, UNSPACED, screening
from factorcell.options import limits

Match: TypeAlias = "regex.Match[str]"

MIN_CARD_DIGITS, MAX_CARD_DIGITS = 13, 19  # minimum and maximum length of a card number
MIN_PHONE_DIGITS, MAX_PHONE_DIGITS = 8, 15  # maximum of ITU-T E.164
MIN_IBAN_LENGTH, MAX_IBAN_LENGTH = 15, 34  # ISO 13616
MIN_IBAN_DIGITS = 8  # every country has more; words after two letters and two digits have fewer
MIN_KEY_LENGTH = 16  # characters of a random word
COMMON_PUNCTUATION = set("'’-.,:;()[]/\"?&#_")  # common in ordinary text, and therefore not a sign of a password

# Repetitions are possessive or bounded; therefore the search takes milliseconds even in the longest text.
_EMAIL = regex.compile(r"(?<=[^\s@<>()\[\]{},;:`'\"])@[^\s@<>()\[\]{},;:`'\"/]+\.\p{L}[^\s@<>()\[\]{},;:`'\"/]")
SEPARATORS = r" ._/⁄∕|~·•\-"
SEPARATOR = f"[{SEPARATORS}]{{1,3}}"  # between the groups of a number, such as " - "
_DIGITS = regex.compile(rf"\d{{3,}}(?:{SEPARATOR}\d{{3,}})*")  # groups of digits, as on payment cards
_IBAN_START = regex.compile(
    rf"(?<![^\W_])(?=([a-z]{{2}}[0-9]{{2}}[a-z0-9{SEPARATORS}]{{11,60}}))", regex.IGNORECASE | regex.ASCII
)
# Letters and digits that must not touch a phone number: not those of scripts that attach words to each other
_WORD = rf"[\w--[{UNSPACED}{HANGUL}]]"
_GAP = rf"[{SEPARATORS}()]{{0,4}}"
# Each alternative begins with a lookahead, because the lookbehinds take longer.
_PHONE = regex.compile(
    rf"(?=[+0])(?<!\+|{_WORD})(?:\+|00(?=[1-9]))\d(?:{_GAP}\d){{6,14}}+(?!{_WORD})"  # with the code of a country
    rf"|(?=[(0])(?<![.,:/+\-]|{_WORD})\(?0[1-9]\d{{0,4}}\)?"  # with the 0 of a national number
    rf"(?:[{SEPARATORS}]{{0,3}}\d){{5,12}}+(?!{_WORD}|%|[.,:]\d)"
    rf"|(?=[(1-9])(?<![.,:/+\-]|{_WORD})(?:1[ .·•\-])?"  # North America
    rf"(?:\([2-9]\d\d\)[ .·•\-]?\d{{3}}[ .·•\-]|[2-9]\d\d([ .·•\-])\d{{3}}\1)\d{{4}}(?!{_WORD}|[.,:\-]\d)"
    rf"|(?=[cfhmptw])(?<!{_WORD})"
    r"(?:tel|telefon|telefonnummer|telephone|téléphone|teléfono|phone|phone number|(?:call|text) me (?:at|on)"
    r"|handy|handynummer|mobil|mobile|mobilnummer|móvil|portable|cell|whatsapp|fax|tlf|mob)\b\W{0,3}"
    rf"(?:(?:is|ist|est|es|er|number|no|nr)\b\W{{0,3}}){{0,2}}\d(?:{_GAP}\d){{6,14}}+(?!{_WORD})",
    regex.IGNORECASE | regex.V1,
)
_TIME = regex.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])[0-2]\d[0-5]\d[0-5]\d\d{0,3}")  # 20240131235959
_DATE = regex.compile(
    r"(?<!\d)(?:\d{1,2}[ ./-]\d{1,2}[ ./-](?:19|20)\d\d|(?:19|20)\d\d[ ./-]\d{1,2}[ ./-]\d{1,2})(?!\d)"
)
_KEY_FORMAT = regex.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\."  # a JSON web token
    r"|\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|sk[-_][\w-]{20,}|[rp]k_live_\w{16,}"
    r"|xox[abprs]-[\w-]{11,}|AIza[\w-]{30,})"
    r"|://[^\s/:@]{1,100}:[^\s/@]{1,100}@",  # a URL with a password
    regex.IGNORECASE,
)
_KEY_WORD = regex.compile(rf"[A-Za-z0-9+/_=-]{{{MIN_KEY_LENGTH},}}+")
_RUN = regex.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")  # as in identifiers: parseHTTP2Request is parse, HTTP, 2, Request
_CHANGE = regex.compile(r"(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_UUID = regex.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", regex.IGNORECASE)

# Names of secrets that are usually words, of secrets that are usually digits, and of random secrets. The languages are
# English, German, French, Spanish and Norwegian.
PASSWORD_NAMES = (
    r"pass[ -]?words?|passwd|pwd|pass[ -]?phrases?|pass[ -]?codes?|passwort(?:er|es)?|kennwort(?:es)?|passord(?:et)?"
    r"|mots? de passe|(?<!\w)(?:mdp|pw(?!\w))|phrases? de passe|phrases? secrètes?|contrase[ñn]as?"
)
# A code without an adjective, as in "the code is 4821", needs a link.
PIN_NAMES = (
    r"pin(?:[ -]?(?:code|number|nummer|kode|koden))?|code pin|código pin|geheimzahl|puk|cv[vc]2?|otp"
    r"|(?:zugangs|sicherheits|bestätigungs|tür)code|code (?:secret|d['’]accès)|código (?:secreto|de acceso)|código"
    r"|(?:access|security|door|gate|entry|login|verification|unlock|recovery|backup|alarm|sms|2fa|one-time)[ -]code"
    r"|(?<!(?:error|status|exit|return|response|source|zip|area|country|postal|promo|coupon|voucher|discount) )code"
    r"|clave|(?:sikkerhets|tilgangs|engangs|dør|alarm)?koden?"
)
TOKEN_NAMES = (
    r"token|bearer|secret|secreto|geheimnis|jeton|hemmelighet(?:en)?"
    r"|(?:api|access|secret|private|licen[cs]e|encryption|wi-?fi|wlan|wpa2?|auth|recovery|master)[ _-]?key"
    r"|(?:api|zugangs|netzwerk|lizenz)[ -]?schlüssel|clé (?:d['’])?(?:api|secrète|wi-?fi|accès)"
    r"|clave (?:api|secreta|de api|del? wi-?fi)|(?:api|tilgangs|krypterings)[ -]?nøkkel(?:en)?"
)
LINK_VERBS = (
    r"is|was|equals|will be|should be|ist|war|lautet|heißt|heisst|est|était|c['’]est|es|era|será|er|var|heter"
    r"|['’]s|=>|->"
)
FILLERS = r"now|still|currently|just|simply|also|jetzt|noch|immer|einfach|maintenant|toujours|ahora|todavía|nå|fortsatt"
# "password for the router", "mot de passe du wifi", "passordet mitt": words between a name and a link
OWNERS = (
    r"\s+(?:mitt|min)|\s+(?:for|to|of|on|at|für|fürs|der|des|zu|zum|zur|von|vom|im|am|pour|du|de|del|para|til|på|av|i)"
    r"(?:\s+[\w.'’-]{1,20}){1,3}?"
)
# Words after "the password is" that continue a sentence and are not passwords, and the endings of such words.
ORDINARY_WORDS = frozenset(
    # English
    "a about after again all already always an and any as at available bad because been before being blank broken but "
    "by case clear correct default different done down easy either empty for free from good gone hard has have here "
    "hidden how i if in incorrect insecure invalid it its kept known less long lost mandatory missing more much my "
    "necessary needed never new no none not now null of off ok okay old on one only optional or our out over plain "
    "plaintext private public ready really right safe same secret secure sent set short so strong stupid than that the "
    "their there this to too true false unknown unset unsafe up useless valid very visible wanted weak what when where "
    "which who why with without wrong your "
    # German
    "abgelaufen alt anders auch auf aus bei bekannt da das dein den der die ein eine erforderlich falsch geändert gut "
    "zurückgesetzt "
    "gleich gültig ihr im kein keine korrekt kurz lang leer mein nicht nie nötig notwendig nur okay richtig schlecht "
    "schwach sehr sein sicher stark unbekannt ungültig unsicher unser vergessen verloren weg wichtig wie zu "
    # French
    "au aussi avec bon bonne c ce ces cette changé correct court dans des du elle en et expiré facile faible faux fort "
    "il inconnu incorrect incorrecte invalide la le les ma mauvais modifié mon ne nouveau obligatoire oublié oubliée "
    "où par pas perdu perdue pour que qui requis sans son sur ton trop un une valide vide vos votre "
    # Spanish
    "buena como con contra corta correcta de débil del demasiado diferente el ella está fuerte igual incorrecta "
    "incorrecto inválida larga los mala más mi muy necesaria ni nueva obligatoria olvidada para pero por requerida "
    "segura su tan tu una vacía válida vieja y "
    # Norwegian
    "at av blitt dårlig ditt eller en endret er et feil fra før gammel gammelt glemt gyldig hva ikke kort lagret langt "
    "med men mitt nødvendig nytt nå og om på påkrevd riktig sikkert som sterkt svakt til tom tomt ugyldig ukjent ved "
    "viktig".split()
)
ORDINARY_ENDINGS = ("ed", "ing", "able", "ible", "ably", "ly")
# Names of methods and versions, such as sha256 in "password sha256 support"
TECHNICAL_WORD = regex.compile(
    r"(?:sha|md|base|utf|ipv|oauth|http|aes|rsa|ed|hs|rs|es|pbkdf|x|v|py|python|win|windows|java|php|mysql|k8|s|i)"
    r"-?\d[\w.]*|\d+[a-z]{1,3}|\w*\d+x\d+",
    regex.IGNORECASE,
)

# Every name contains one of these parts.
NAME_PART = re.compile(
    "pass|kennwort|mdp|pw|contrase|pin|puk|cv|otp|cod|cód|kod|clav|token|bearer|secret|key|schlüssel|geheim|jeton|clé"
    "|nøkkel|hemmelig|phrases? secr"
)
PHRASE = regex.compile(  # a lookahead, because phrases may overlap
    rf"(?=(?:(?P<password>{PASSWORD_NAMES})|(?<![^\W_])(?:(?P<token>{TOKEN_NAMES})|(?P<pin>{PIN_NAMES})))"
    rf"(?:(?:{OWNERS})?(?:\s*+(?P<colon>[:=](?!>)|:=)\s*+"
    rf"|(?:\s++|(?=['’]))(?P<verb>{LINK_VERBS})\s++(?:(?:{FILLERS})\s++)?+)|[,;?]?+\s++(?:to\s++)?+)"
    rf"(?=[\"'“‘„«(<*`]*(?P<value>[^\s\"'”’“»)>*`]{{1,100}}))"
    rf"|(?<![^\W_])(?P<pass>pass)[:=]\s*+(?=\S))",
    regex.IGNORECASE,
)
# "hunter2 is my password"
REVERSED = regex.compile(
    r"(?<!\S)(?P<value>[^\s]{4,100}) (?:is|was|ist|war|est|es|era|er|var) "
    r"(?:my|your|our|the|mein|dein|unser|das|die|mon|ton|votre|notre|le|mi|tu|su|nuestra|la|el|mitt|ditt|vårt|min|din)"
    r" (?:\w{1,20} )?"
    rf"(?:(?P<password>{PASSWORD_NAMES})|(?:{TOKEN_NAMES}|{PIN_NAMES})(?![^\W_]))",
    regex.IGNORECASE,
)


def find_private_content(text: str, context: Mapping[str, Any] | None = None) -> str | None:
    """Return what a text or its context seems to contain, such as "a password"; None if neither seems to be private.

    Args:
        text: The text of a user.
        context: Column -> value. The values that are texts, bytes or containers of them are searched.
    """
    return next(filter(None, map(_find_in_text, (text, *texts_in([*(context or {}).values()])))), None)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts of a value: itself, if it is text or bytes, or those in a mapping, a list or the like."""
    value = limits.plain(value.as_py() if hasattr(value, "as_py") else value)  # `as_py`: a scalar of Arrow
    if isinstance(value, (bytes, bytearray)):
        yield value.decode(errors="replace")
    elif isinstance(value, str):
        yield value
    elif isinstance(value, Iterable):
        for item in [*value, *value.values()] if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def is_public(text: str) -> bool:
    """Return whether a text seems to contain no private content, so that it may be suggested."""
    return _find_in_text(text) is None


def _find_in_text(text: str) -> str | None:
    text = screening(text)
    lowercase, digit_count = text.lower(), sum(map(str.isdigit, text))
    for label, min_digits, hint, pattern, is_private in RECOGNIZERS:
        if digit_count >= min_digits and hint.search(lowercase) and any(map(is_private, pattern.finditer(text))):
            return label
    return None


def _is_iban(match: Match) -> bool:
    """Return whether an IBAN begins here, written without separators or in groups of four characters."""
    groups = regex.split(SEPARATOR, match[1])
    for count, group in enumerate(groups, 1):
        has_valid_form = len(group) <= 4 or count == 1
        if has_valid_form and _has_check_digits("".join(groups[:count])):
            return True
        if len(group) != 4:  # only the last group may be shorter
            break
    return False


def _has_check_digits(candidate: str) -> bool:
    """Return whether letters and digits, without separators, have the check digits of ISO 7064 (MOD 97-10)."""
    is_long_enough = MIN_IBAN_LENGTH <= len(candidate) <= MAX_IBAN_LENGTH
    if not is_long_enough or sum(map(str.isdigit, candidate)) < MIN_IBAN_DIGITS:
        return False
    digits = "".join(str(int(letter, 36)) for letter in candidate[4:] + candidate[:4])
    return int(digits) % 97 == 1


def _has_card_number(match: Match) -> bool:
    """Return whether consecutive groups of digits form a number that passes the Luhn check and is not a time."""
    groups = regex.findall(r"\d+", match[0])
    return any(
        MIN_CARD_DIGITS <= len(digits) <= MAX_CARD_DIGITS and _passes_luhn(digits) and not _TIME.fullmatch(digits)
        for start in range(len(groups))
        for digits in accumulate(groups[start : start + MAX_CARD_DIGITS // 3])  # a group has 3 digits or more
    )


def _passes_luhn(digits: str) -> bool:
    """Return whether digits pass the Luhn check of ISO/IEC 7812-1 and are not all equal."""
    # Every second digit from the right is doubled, and a product of two digits counts as the sum of these digits.
    products = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits)))
    return len(set(digits)) > 1 and sum(product // 10 + product % 10 for product in products) % 10 == 0


def _is_phone_number(match: Match) -> bool:
    """Return whether the number has the length of a phone number and is not a date."""
    count = sum(map(str.isdigit, match[0]))
    return MIN_PHONE_DIGITS <= count <= MAX_PHONE_DIGITS and not _DATE.search(match[0])


def _is_secret(match: Match) -> bool:
    """Return whether the value of a phrase counts as a secret, by the table at the head of this module."""
    if match["pass"]:
        return True
    value = match["value"].rstrip(".,;:!?")
    min_length = 3 if (match["pin"] or "").lower().startswith("cv") else 4  # a CVV may have 3 digits
    if match["colon"]:
        return bool(match["password"]) or (len(value) >= min_length and any(map(str.isdigit, value)))
    has_verb = match["verb"] is not None
    if match["password"]:
        # French writes no link: "mot de passe soleil".
        may_be_word = has_verb or match["password"].lower().startswith("mot")
        return _resembles_code(value, 4) or (may_be_word and not _continues_sentence(value))
    if match["pin"]:
        if not has_verb and match["pin"].lower() == "code":  # as in "Summer of Code 2012"
            return False
        return value.isdigit() and min_length <= len(value) <= 12
    return _resembles_code(value, 6 if has_verb else 8) and not value.isdigit()


def _is_reversed_secret(match: Match) -> bool:
    """Return whether the value before "is my password" counts as a secret."""
    value = match["value"].lstrip("\"'“‘„«(").rstrip("\"'”’“»),")
    return _resembles_code(value, 4) or (bool(match["password"]) and not _continues_sentence(value))


def _resembles_code(value: str, min_length: int) -> bool:
    """Return whether a value has letters and digits, or 4 to 12 digits."""
    if value.isdigit():
        return 4 <= len(value) <= 12
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return len(value) >= min_length and has_both and TECHNICAL_WORD.fullmatch(value) is None


def _continues_sentence(value: str) -> bool:
    """Return whether a word is an ordinary continuation of "the password is"."""
    word = value.lower()
    is_ordinary = word in ORDINARY_WORDS or (word.isalpha() and word.endswith(ORDINARY_ENDINGS))
    return is_ordinary or not any(map(str.isalnum, word))


def _resembles_password(match: Match) -> bool:
    """Return whether a word has letters in both cases, a digit, and a character that is rare in ordinary text."""
    word = match[0]
    if "://" in word or not _is_mixed(word) or not any(map(str.isdigit, word)):  # words with :// are URLs
        return False
    return any(letter.isprintable() and not letter.isalnum() and letter not in COMMON_PUNCTUATION for letter in word)


def _is_mixed(word: str) -> bool:
    """Return whether a word has letters in both cases."""
    return any(map(str.islower, word)) and any(map(str.isupper, word))


def _is_random(match: Match) -> bool:
    """Return whether letters and digits alternate as in random words, such as API keys, and not as in identifiers.

    A UUID alone is not a secret: most of them are identifiers.
    """
    word = _UUID.sub("", match[0])
    if len(word) < MIN_KEY_LENGTH:
        return False
    # Changes between letters and digits: at least 4, and at least 0.18 per character
    if len(_CHANGE.findall(word)) >= max(4, 0.18 * len(word)):
        return True
    part = max(regex.split("[-_]", word), key=len)
    has_form = part.isalnum() and _is_mixed(part) and len(part) >= MIN_KEY_LENGTH
    return has_form and len(part) <= 2.5 * len(_RUN.findall(part))  # runs, such as Ab, cde, XYZ and 12, are short


# For each kind of private content: its label, the minimum number of digits of the text, a part of the lower-case text,
# and a pattern with a condition of its matches. The first kind that is found determines the label. Most texts pass
# within microseconds, because `re` finds the parts quickly; every suggestion of a search is checked.
RECOGNIZERS: tuple[tuple[str, int, "re.Pattern[str]", "regex.Pattern[str]", Callable[[Match], bool]], ...] = (
    ("an e-mail address", 0, re.compile("@"), _EMAIL, bool),
    ("an IBAN", MIN_IBAN_DIGITS, re.compile("[a-z]"), _IBAN_START, _is_iban),
    ("a card number", MIN_CARD_DIGITS, re.compile(""), _DIGITS, _has_card_number),
    ("a key", 0, re.compile(rf"\S{{{MIN_KEY_LENGTH}}}|private key"), _KEY_FORMAT, bool),
    ("a key", 0, re.compile(rf"\S{{{MIN_KEY_LENGTH}}}"), _KEY_WORD, _is_random),
    ("a password", 0, NAME_PART, PHRASE, _is_secret),
    ("a password", 0, NAME_PART, REVERSED, _is_reversed_secret),
    ("a password", 1, re.compile(r"\S{8}"), regex.compile(r"\S{8,}"), _resembles_password),
    ("a phone number", MIN_PHONE_DIGITS, re.compile(""), _PHONE, _is_phone_number),
)
