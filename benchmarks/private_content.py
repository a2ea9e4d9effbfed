"""How often private content is missed, and how often ordinary texts are withheld.

    python -m benchmarks.private_content TABLE [TABLE ...]

It prints a row per kind of made texts with private content (`made_texts`), and a row per table with the share of texts
that `find_private_content` withholds. Every text in the column `text` of a table counts as ordinary, so that an e-mail
address in a table counts as a false alarm; --show prints the withheld texts.
"""

import argparse
import random
import string
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from factorcell.commands.cli import terminal
from factorcell.data.private_content import find_private_content
from factorcell.data.tables.tables import open_table

WORDS = (
    "apple anchor basket breeze candle copper dolphin dragon ember falcon forest garden harbor island jungle kettle "
    "lantern marble meadow monkey orange pepper planet puzzle rabbit raven river saddle shadow silver sparrow sunshine "
    "thunder tiger tulip velvet walnut willow winter zebra"
).split()
PEOPLE = "anna ben carla david emma frank grete hugo ida jonas".split()
PASSWORD_PHRASES = (
    "my password is {}",
    "The password is {}",
    "password: {}",
    "password={}",
    "Password {}",
    "hi, the wifi password is {}, see you later",
    "my password for the router is {}",
    "the passphrase is still {}",
    "passcode is {}",
    "login {name} password {}",
    "user: {name} pwd: {}",
    "DB_PASSWORD={}",
    "{} is my password",
    "mein Passwort ist {}",
    "das WLAN-Passwort lautet {}",
    "Kennwort: {}",
    "mon mot de passe est {}",
    "le mot de passe du wifi est {}",
    "mdp: {}",
    "mi contraseña es {}",
    "la contraseña del wifi es {}",
    "passordet mitt er {}",
    "passord: {}",
    "I changed my password to {}",
    "new password = {}",
    "set password {} for root",
    "log in with {name} and {}",
    "the password I use is {}",
    "password for netflix? {}",
    "my password, {}, does not work",
    "the password of my mail account is {}",
    "Guest wifi, password {}",
    "our wifi passphrase: {}",
    "pwd for the printer is {}",
    "why is {} not accepted as my password",
    "Passwort fürs WLAN: {}",
    "das neue Passwort vom Server ist {}",
    "mein altes Kennwort war {}",
    "le mdp c'est {}",
    "mot de passe wifi {}",
    "mon nouveau mot de passe : {}",
    "la nueva contraseña es {}",
    "mi contraseña de correo es {}",
    "passordet på nettet er {}",
    "nytt passord {}",
)
PIN_PHRASES = (
    "my pin is {}",
    "PIN {}",
    "pin: {}",
    "the door code is {}",
    "pin code {}",
    "your verification code is {}",
    "use the access code {} at the gate",
    "meine PIN ist {}",
    "Geheimzahl {}",
    "mon code pin est {}",
    "le code secret est {}",
    "mi pin es {}",
    "la clave es {}",
    "pinkoden min er {}",
    "koden til døren er {}",
    "the pin for my card is {}",
    "sim card pin {}",
    "the code for the front door is {}",
    "enter {} to confirm",
    "one-time code: {}",
    "G-{} is your verification code",
    "PIN der Karte: {}",
    "der Türcode ist {}",
    "mon code de carte est {}",
    "le code de la porte est {}",
    "el pin de la tarjeta es {}",
    "el código es {}",
    "alarmkoden er {}",
    "min pin er {}",
)
TOKEN_PHRASES = (
    "my api key is {}",
    "api_key={}",
    "API key: {}",
    "token {}",
    "export ACCESS_TOKEN={}",
    "the client secret is {}",
    "Authorization: Bearer {}",
    "my key {} does not work",
    "{}",
    "der API-Schlüssel lautet {}",
    "la clé API est {}",
    "la clave API es {}",
    "api-nøkkelen er {}",
    "here is the token: {}",
    "use {} as key",
    "auth header with {}",
    "secret key {} was leaked",
    "https://example.org/?token={}",
    "aws key {}",
    "webhook secret is {}",
    "mein Token ist {}",
    "mi token es {}",
)
BANK_PHRASES = ("{}", "my account is {}", "IBAN {}", "please pay to {} until Monday", "Konto: {}", "mon IBAN est {}")
CARD_PHRASES = ("{}", "my card is {}", "visa {} 12/29", "pay with {} please", "Kreditkarte {}", "carte bancaire : {}")
PHONE_PHRASES = ("{}", "call me at {}", "my number is {}", "phone: {}", "ruf mich an: {}", "tel. {}", "ring meg på {}")
# Country code -> length and number of letters that follow the check digits (ISO 13616).
IBANS = {"DE": (22, 0), "FR": (27, 0), "ES": (24, 0), "NO": (15, 0), "GB": (22, 4), "NL": (18, 4), "AT": (20, 0)}
PHONES = (
    *("+49 30 #######", "+49 171 #######", "0171 #######", "030/#######", "0049 30 #######", "+33 6 ## ## ## ##"),
    *("06 ## ## ## ##", "+34 6## ### ###", "+47 9## ## ###", "+1 (2##) ###-####", "(4##) ###-####", "4##-###-####"),
    *("+44 7### ######", "07### ######", "+4917########"),
)


def make_password(rng: random.Random) -> str:
    """Return a password as users choose it: words with digits, altered words, two or three words, or random letters."""
    word, other = rng.choice(WORDS), rng.choice(WORDS)
    return rng.choice(
        (
            f"{word}{rng.randrange(10, 10_000)}",
            f"{word.title()}{rng.randrange(1960, 2026)}!",
            f"{word.translate(str.maketrans('aeio', '4310'))}{rng.choice('!$#%')}",
            word,
            f"{word}-{other}-{rng.randrange(100)}",
            f"{word}{other.title()}",
            str(rng.randrange(10**5, 10**8)),
            "".join(rng.choices(string.ascii_letters + string.digits + "!$%&*", k=rng.randrange(9, 15))),
        )
    )


def make_token(rng: random.Random) -> str:
    """Return a random key: hexadecimal, base 36, base 62, base64 or with a known prefix."""
    letters = rng.choice(
        (string.hexdigits[:16], string.ascii_lowercase + string.digits, string.ascii_letters + string.digits)
    )
    word = "".join(rng.choices(letters, k=rng.choice((20, 24, 32, 40, 64))))
    return rng.choice(("", "", "", "sk-", "ghp_", "key_")) + word


def make_pin(rng: random.Random) -> str:
    return f"{rng.randrange(10**4):04}" if rng.random() < 0.7 else f"{rng.randrange(10**6):06}"


def make_iban(rng: random.Random) -> str:
    """Return an IBAN with valid check digits, half of them in groups of four."""
    country = rng.choice(sorted(IBANS))
    length, letter_count = IBANS[country]
    account = "".join(rng.choices(string.ascii_uppercase, k=letter_count))
    account += "".join(rng.choices(string.digits, k=length - 4 - letter_count))
    number = int("".join(str(int(letter, 36)) for letter in f"{account}{country}00"))
    iban = f"{country}{98 - number % 97:02}{account}"
    return iban if rng.random() < 0.5 else " ".join(iban[start : start + 4] for start in range(0, length, 4))


def make_card(rng: random.Random) -> str:
    """Return a card number with a valid check digit, half of them in groups of four."""
    digits = rng.choice("3456") + "".join(rng.choices(string.digits, k=14))
    doubled = sum(int(digit) if place % 2 else sum(divmod(2 * int(digit), 10)) for place, digit in enumerate(digits))
    card = f"{digits}{-doubled % 10}"
    return card if rng.random() < 0.5 else " ".join(card[start : start + 4] for start in range(0, 16, 4))


def make_phone(rng: random.Random) -> str:
    return "".join(rng.choice(string.digits) if letter == "#" else letter for letter in rng.choice(PHONES))


# Kind of private content -> its phrases, and the function that makes its value.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[random.Random], str]]] = {
    "password": (PASSWORD_PHRASES, make_password),
    "PIN or code": (PIN_PHRASES, make_pin),
    "token or key": (TOKEN_PHRASES, make_token),
    "IBAN": (BANK_PHRASES, make_iban),
    "card number": (CARD_PHRASES, make_card),
    "phone number": (PHONE_PHRASES, make_phone),
}


def made_texts(kind: str, count: int, seed: int = 0) -> list[str]:
    """Return `count` different made texts with one kind of private content."""
    phrases, make_value = KINDS[kind]
    rng = random.Random(f"{kind} {seed}")
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[rng.choice(phrases).format(make_value(rng), name=rng.choice(PEOPLE))] = None
    return list(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path, help="tables of ordinary texts")
    parser.add_argument("--count", type=int, default=2000, help="number of made texts of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="number of missed and of withheld texts to print per row")
    arguments = parser.parse_args()
    rows = []
    for kind in KINDS:
        texts = made_texts(kind, arguments.count, arguments.seed)
        missed = [text for text in texts if find_private_content(text) is None]
        rows.append({"made texts": kind, "texts": f"{len(texts):,}", "missed": f"{len(missed) / len(texts):.1%}"})
        terminal.notify(*missed[: arguments.show])
    terminal.show_table(rows, ("made texts", "texts", "missed"))
    rows = []
    for path in arguments.tables:
        texts = [str(text) for chunk in open_table(path).read(("text",)) for text in chunk["text"]]
        labels = {text: label for text in texts if (label := find_private_content(text))}
        counts = ", ".join(f"{label} {count}" for label, count in Counter(labels.values()).most_common())
        withheld = sum(text in labels for text in texts)
        rows.append(
            {
                "table": path.parent.name,
                "texts": f"{len(texts):,}",
                "withheld": f"{withheld / len(texts):.2%}",
                "labels": counts,
            }
        )
        terminal.notify(*(f"{label}: {text}" for text, label in list(labels.items())[: arguments.show]))
    terminal.show_table(rows, ("table", "texts", "withheld", "labels"))


if __name__ == "__main__":
    main()
