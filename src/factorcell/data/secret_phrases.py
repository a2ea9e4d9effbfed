"""Recognition of secrets that a text announces, such as "my password is hunter2" or "PIN 4821", in five languages.

A phrase consists of a name of a secret, a link and a value. The link decides which values count as secrets:

    link               password and the like                  PIN and the like       token, API key and the like
    : or =             every value                            4 characters, a digit  4 characters, a digit
    is, ist, est, ...  every value that continues no          4 to 12 digits         6 characters, letters and digits
                       sentence, unlike "wrong" or "stored"
    none               letters and digits, or 4 to 12 digits  4 to 12 digits         8 characters, letters and digits

A CVV may have 3 digits, and after the French "mot de passe" a value needs no link.
"""

import re

import regex

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

# Every name contains one of these parts; texts without them are not searched. `re` finds them faster than `regex`.
NAME_PART = re.compile(
    "pass|kennwort|mdp|pw|contrase|pin|puk|cv|otp|cod|cód|kod|clav|token|bearer|secret|key|schlüssel|geheim|jeton|clé"
    "|nøkkel|hemmelig|phrases? secr"
)
PHRASE = regex.compile(
    rf"(?:(?P<password>{PASSWORD_NAMES})|(?<![^\W_])(?:(?P<token>{TOKEN_NAMES})|(?P<pin>{PIN_NAMES})))"
    rf"(?:(?:{OWNERS})?(?:\s*+(?P<colon>[:=](?!>)|:=)\s*+"
    rf"|(?:\s++|(?=['’]))(?P<verb>{LINK_VERBS})\s++(?:(?:{FILLERS})\s++)?+)|[,;?]?+\s++(?:to\s++)?+)"
    rf"(?=[\"'“‘„«(<*`]*(?P<value>[^\s\"'”’“»)>*`]{{1,100}}))"
    rf"|(?<![^\W_])(?P<pass>pass)[:=]\s*+(?=\S)",
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


def has_secret(text: str) -> bool:
    """Return whether a text names a secret together with its value."""
    if not NAME_PART.search(text.lower()):
        return False
    phrases = PHRASE.finditer(text, overlapped=True)
    return any(map(_is_secret, phrases)) or any(map(_is_reversed_secret, REVERSED.finditer(text)))


def _is_secret(match: "regex.Match[str]") -> bool:
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


def _is_reversed_secret(match: "regex.Match[str]") -> bool:
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
