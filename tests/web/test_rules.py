"""A device folds texts, recognizes private content and blocks phrases as Python does."""

import json
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.private_content import KINDS, made_texts
from factorcell.completion.device import export_to_device
from factorcell.completion.online import LearningRule
from factorcell.data.private_content import find_private_content
from factorcell.data.text_folds import lower_case, same_prefix, same_text, screening
from factorcell.runs.run import Run
from factorcell.service.privacy import BlockList
from tests.data.test_private_content import LOOK_ALIKES, ORDINARY, SECRETS
from tests.kernels import compiled
from tests.web.device_runs import NODE, save_run

BLOCKED = ["bad word", "straße", "東京", "서울", "😀", "c++", "naïve_word", ""]
BLOCKED_TEXTS = [
    "a Bad  word!", "badword", "bad words", "STRASSE", "strassen", "in 東京都", "서울에서", "서울", "x😀y", "c++",
    "c+++", "Naïve word", "naive word", "ｂａｄ word", "bad\u200b word", "ba\u0301d word", "bad_word",
]  # fmt: skip


def random_texts(count: int) -> list[str]:
    """Return short texts of characters of all kinds that this version of Unicode has."""
    random = np.random.default_rng(0)
    assigned = [chr(code) for code in range(0x30000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
    marks = [character for character in assigned if unicodedata.category(character)[0] in "MCZ"]
    emoji = [chr(code) for code in (*range(0x1F1E6, 0x1F200), *range(0x1F3FB, 0x1F400), 0x200D, 0xFE0F, 0x20E3)]
    sources = [assigned, marks, emoji, list("aAbBiI09 _-.")]
    texts = []
    for _ in range(count):
        kinds = random.integers(0, len(sources), random.integers(1, 7))
        texts.append("".join(str(random.choice(sources[kind])) for kind in kinds))
    return texts


@pytest.mark.slow
@compiled
def test_rules_of_a_device_are_those_of_python(package: Path, tmp_path: Path) -> None:
    run = Run.open(save_run(tmp_path / "run", LearningRule()), precision="float32")
    export_to_device(run, tmp_path / "device", blocked=BLOCKED)
    secrets = [text for texts in SECRETS.values() for text in texts]
    texts = [*secrets, *ORDINARY, *(text for kind in KINDS for text in made_texts(kind, 40)), *BLOCKED_TEXTS]
    texts += [change(text) for change in LOOK_ALIKES.values() for text in secrets[::4]]
    texts += random_texts(4000)
    command = [*NODE, str(Path(__file__).with_name("folds.mjs")), str(package), str(tmp_path / "device")]
    process = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=300)
    allows = BlockList(BLOCKED)
    folds: dict[str, Any] = {
        "label": find_private_content,
        "same": same_text,
        "prefix": same_prefix,
        "screening": screening,
        "folded": lambda text: screening(text, ignore_case=True),
        "lower": lower_case,
        "allowed": allows,
    }
    wrong = [
        (name, text, result[name], fold(text))
        for text, result in zip(texts, json.loads(process.stdout), strict=True)
        for name, fold in folds.items()
        if result[name] != fold(text)
    ]
    assert not wrong, f"{len(wrong)} of {len(texts)}: {wrong[:5]}"
    labels = {find_private_content(text) for text in texts}
    assert {*SECRETS, None} <= labels
    assert not all(map(allows, BLOCKED_TEXTS))
