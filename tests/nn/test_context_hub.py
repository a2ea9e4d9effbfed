"""Context adapters on the hub, against a local server with its interface; in checkpoints, and in pipelines."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers

from factorcell.errors import UserError
from factorcell.hf import ContextConfig, ContextModel, get_context_model
from tests import docs_files
from tests.nn.test_context_model import CONTEXTS, ROWS, new_base, new_model

COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """A hub with one model repository, as far as an upload and a download of files need it.

    With `upload_mode` "lfs", it takes files as Git LFS does: their contents by digest, and then a commit of digests.
    """

    files: ClassVar[dict[str, bytes]] = {}
    contents: ClassVar[dict[str, bytes]] = {}  # digest -> content
    upload_mode, token = "regular", ""

    def answer(self, content: Any, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        type(self).token = self.headers.get("Authorization", "")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/repos/create"):
            name = json.loads(body)["name"]
            self.answer({"url": f"http://{self.headers['Host']}/user/{name}", "id": f"user/{name}"})
        elif "/preupload/" in self.path:
            paths = [entry["path"] for entry in json.loads(body)["files"]]
            mode = {"uploadMode": self.upload_mode, "shouldIgnore": False}
            self.answer({"files": [{"path": path, **mode} for path in paths]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            digests = [(entry["oid"], entry["size"]) for entry in json.loads(body)["objects"]]
            url = f"http://{self.headers['Host']}/lfs"
            uploads = [
                {"oid": digest, "size": size, "actions": {"upload": {"href": f"{url}/{digest}"}}}
                for digest, size in digests
            ]
            self.answer({"transfer": "basic", "objects": uploads})
        else:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[value["path"]] = self.contents[value["oid"]]
            self.answer({"commitUrl": f"http://{self.headers['Host']}/user/name/commit/{COMMIT}", "commitOid": COMMIT})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.contents[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def do_GET(self) -> None:
        if "/resolve/" in self.path:
            content = self.files[self.path.rpartition("/")[2]]
            self.answer(content, ETag=f'"{hash(content):x}"')
        elif "/tree/" in self.path:
            self.answer(
                [{"type": "file", "path": name, "size": len(self.files[name]), "oid": COMMIT} for name in self.files]
            )
        else:
            files = [{"rfilename": name} for name in self.files]
            self.answer({"id": "user/name", "sha": COMMIT, "siblings": files})

    do_HEAD = do_GET  # noqa: N815, a name of the base class

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import huggingface_hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("constants", "hf_api", "file_download"):
            module = getattr(huggingface_hub, name)
            if hasattr(module, "ENDPOINT"):
                monkeypatch.setattr(module, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(Hub, "files", {})
        monkeypatch.setattr(Hub, "contents", {})
        yield
        server.shutdown()


def trained_model() -> ContextModel:
    model = new_model()
    with torch.no_grad():
        for values in model.parameters():
            if values.requires_grad:
                values.normal_(0, 0.2)
    return model


def assert_same_logits(first: Any, second: Any) -> None:
    tokens = torch.arange(3, 11).reshape(4, 2)
    with torch.no_grad():
        assert torch.equal(*(model(tokens, context=CONTEXTS).logits for model in (first, second)))


@pytest.mark.usefixtures("hub")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the library of the hub
@pytest.mark.parametrize("upload_mode", ["regular", "lfs"])
def test_adapters_are_uploaded_and_opened_by_the_name_of_their_repository(
    upload_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "upload_mode", upload_mode)
    model = trained_model()
    result = model.push_to_hub("user/name", token="hf_test", commit_message="add adapters")
    assert result.oid == COMMIT
    assert Hub.token == "Bearer hf_test"
    assert set(Hub.files) == {"context_config.json", "schema.json", "context_model.safetensors"}
    assert len(Hub.contents) == (3 if upload_mode == "lfs" else 0)
    assert_same_logits(ContextModel.from_pretrained(new_base("llama"), "user/name"), model)


def test_a_hub_that_does_not_answer_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("no route to host\nand a traceback")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(
        UserError, match=r"^user/name: expected a folder or a repository of the hub, got neither \(no route to host\)$"
    ):
        ContextModel.from_pretrained(new_base("llama"), "user/name")


def test_a_hub_that_refuses_files_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("401 Unauthorized\nand a traceback")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", fail)
    with pytest.raises(UserError, match=r"^user/name: cannot be written \(401 Unauthorized\)$"):
        trained_model().push_to_hub("user/name")


def test_options_of_the_hub_do_not_apply_to_folders(tmp_path: Path) -> None:
    trained_model().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"^revision: expected a repository of the hub, got the folder "):
        ContextModel.from_pretrained(new_base("llama"), tmp_path, revision="main")


def test_a_folder_that_does_not_exist_is_not_a_repository(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        ContextModel.from_pretrained(new_base("llama"), tmp_path / "missing" / "folder")


def test_checkpoint_of_the_trainer_is_opened_with_its_options(tmp_path: Path) -> None:
    model = trained_model()
    data = [{"input_ids": [3, 4], "labels": [3, 4], "context": row} for row in ROWS[:2]]
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True)
    transformers.Trainer(model, arguments, train_dataset=data).save_model(str(tmp_path / "checkpoint-1"))
    base = new_base("llama")
    with pytest.raises(UserError, match="config"):
        ContextModel.from_pretrained(base, tmp_path / "checkpoint-1")
    opened = ContextModel.from_pretrained(base, tmp_path / "checkpoint-1", config=model.context_config)
    assert_same_logits(opened, model)
    with pytest.raises(UserError, match="expected the tensors of a checkpoint"):
        ContextModel.from_pretrained(new_base("llama"), tmp_path, config=model.context_config)


def test_pipeline_generates_in_a_context(tmp_path: Path) -> None:
    docs_files.write_base(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    model = get_context_model(base, ContextConfig(["city"], min_count=1).fit(ROWS))
    torch.manual_seed(0)
    for values in model.parameters():
        if values.requires_grad:
            torch.nn.init.normal_(values)
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    prompt = tokenizer("the room", return_tensors="pt").input_ids
    texts = set()
    for row in CONTEXTS[:2]:
        context = {"city": row["city"]}
        (result,) = pipeline("the room", context=context, max_new_tokens=6, do_sample=False)
        tokens = model.generate(prompt, context=context, max_new_tokens=6, do_sample=False)[0]
        assert result["generated_text"] == tokenizer.decode(tokens, skip_special_tokens=True)
        texts.add(result["generated_text"])
    assert len(texts) == 2
