"""Mistakes with context adapters are refused in one line, or reported in a notice."""

import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import accelerate
import pytest
import torch
import transformers
from torch import Tensor

from factorcell import UserError
from factorcell.adapters.adapters import ADAPTERS, Adapter
from factorcell.hf import ContextConfig, ContextModel, get_context_model
from factorcell.io import files
from factorcell.nn.backbones.adapted_modules import AdaptedModules
from factorcell.nn.backbones.backbone import BackboneSizes
from tests.findings import expected_finding
from tests.nn.test_context_model import CONTEXTS, LAYERS, ROWS, SCHEMA, SIZES, new_base, new_model


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(3, 30, (4, 7), generator=torch.Generator().manual_seed(3))


def test_adapters_of_another_base_are_refused(tmp_path: Path) -> None:
    new_model().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"expected a base of type llama, as in training, got gpt2"):
        ContextModel.from_pretrained(new_base("gpt2"), tmp_path)
    larger = transformers.AutoModelForCausalLM.from_config(
        transformers.LlamaConfig(num_key_value_heads=1, **{**LAYERS, "num_hidden_layers": 3}, **SIZES)
    )
    with pytest.raises(UserError, match="does not fit this base"):
        ContextModel.from_pretrained(larger, tmp_path)
    with pytest.raises(UserError, match=r"context_config\.json"):
        ContextModel.from_pretrained(new_base("llama"), tmp_path / "absent")


def pass_without_context(model: ContextModel, tokens: Tensor, way: str) -> Any:
    """Train or evaluate without a context, in one of several ways."""
    if way == "labels":  # a loop that has not called `train`, as after `from_pretrained`
        return model.eval()(tokens, labels=tokens)
    if way == "Trainer":  # it removes columns that `forward` has no parameter for
        arguments = transformers.TrainingArguments("unused", use_cpu=True, report_to=[], max_steps=1, save_steps=9)
        rows = [{"input_ids": row, "labels": row, "context": None} for row in tokens]
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, data_collator=tokens_of_rows)
        return trainer.train()
    return model.train()(tokens)


def tokens_of_rows(rows: Any) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}


@pytest.mark.parametrize("way", ["train", "labels", "Trainer"])
def test_training_without_contexts_is_refused(
    way: str, tokens: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = new_model()
    with pytest.raises(UserError, match=r"context: expected .*ContextCollator.*remove_unused_columns=False.*got None"):
        pass_without_context(model, tokens, way)
    with torch.no_grad():
        model(tokens, labels=tokens)
    for context in (CONTEXTS, {}, {"city": None}):
        model(tokens, context=context, labels=tokens).loss.backward()
    with model.disable_adapter():
        pass_without_context(model, tokens, way="labels")
    without_columns = get_context_model(new_base("llama"), ContextConfig())
    pass_without_context(without_columns, tokens, way)


def with_other_forward(model: ContextModel, tokens: Tensor) -> Any:
    """Replace `forward` on the instance, as trainers of other libraries do."""

    def forward(self: Any, input_ids: Tensor, context: Any = None) -> Tensor:
        return self.lm_head(self.model(input_ids).last_hidden_state)  # type: ignore[no-any-return]

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]
    return model(tokens, context=CONTEXTS)


def computed_again(model: ContextModel, tokens: Tensor) -> Any:
    """Compute layers again without their context, in the backward pass."""
    model.base.activation_checkpointing_enable({"use_reentrant": True})
    model.base.enable_input_require_grads()
    loss: Tensor = model.train()(tokens, context=CONTEXTS, labels=tokens, use_cache=False).loss
    return torch.autograd.backward(loss)


def in_another_thread(model: ContextModel, tokens: Tensor) -> Any:
    """Compute a part in a thread that has no context, while this thread has one."""
    with ThreadPoolExecutor(1) as pool:
        hook = model.base.model.layers[1].register_forward_pre_hook(
            lambda layer, inputs: pool.submit(layer.mlp, inputs[0]).result()
        )
        try:
            return model(tokens, context=CONTEXTS)
        finally:
            hook.remove()


CALLS_WITHOUT_CONTEXT: dict[str, Callable[[ContextModel, Tensor], Any]] = {
    "base": lambda model, tokens: model.base(tokens),
    "layers of the base": lambda model, tokens: model.base.model(tokens),
    "layers by their name": lambda model, tokens: model.model(tokens),
    "generation of the base": lambda model, tokens: model.base.generate(tokens, max_new_tokens=1),
    "a layer": lambda model, tokens: model.base.model.layers[0].mlp(torch.zeros(1, 2, 16)),
    "a map": lambda model, tokens: model.base.model.layers[0].mlp.up_proj(torch.zeros(2, 16)),
    "a compiled base": lambda model, tokens: cast(Any, torch.compile(model.base, backend="eager"))(tokens),
    "another forward": with_other_forward,
    "computed again": computed_again,
    "another thread": in_another_thread,
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", list(CALLS_WITHOUT_CONTEXT))
def test_adapted_maps_without_a_context_are_refused(name: str, is_training: bool, tokens: Tensor) -> None:
    model = new_model().train(is_training)
    with pytest.raises(UserError, match="call the model that get_context_model returned, not its base or a part of it"):
        CALLS_WITHOUT_CONTEXT[name](model, tokens)


def test_maps_do_not_read_the_context_of_another_model(tokens: Tensor) -> None:
    model, other = new_model(), new_model("qwen2")
    expected = other(tokens, context=CONTEXTS).logits
    with model.disable_adapter():
        with pytest.raises(UserError, match="an adapted map has no context here"):
            other.base(tokens)
        torch.testing.assert_close(other(tokens, context=CONTEXTS).logits, expected, rtol=0, atol=0)
        with other.disable_adapter():
            for part in (model, other):
                plain = new_base("llama" if part is model else "qwen2")
                torch.testing.assert_close(part.base(tokens).logits, plain(tokens).logits, rtol=0, atol=0)


def test_maps_compute_as_the_base_where_the_adapters_are_disabled(tokens: Tensor) -> None:
    model, expected = new_model(), new_base("llama")(tokens).logits
    with model.disable_adapter():
        for compute in (model, model.base, torch.compile(model.base, backend="eager")):
            torch.testing.assert_close(compute(tokens, use_cache=False).logits, expected, rtol=0, atol=0)
        assert model.base.generate(tokens, max_new_tokens=2).shape == (4, 9)


def test_a_notice_says_that_all_values_of_a_column_are_rare() -> None:
    with expected_finding("uninformative column"):
        ContextConfig(["city"]).fit(ROWS)


def test_missing_columns_are_named_with_those_of_the_table() -> None:
    with pytest.raises(UserError, match=r"no column 'town'; it has city, age$"):
        ContextConfig(["town"]).fit([{"city": "Oslo", "age": 3}])
    with pytest.raises(UserError, match=r"no column 'age'; it has city$"):
        new_model().read_contexts([{"city": "Oslo"}])


def test_wrong_contexts_are_refused_in_one_line(tokens: Tensor) -> None:
    model = new_model()
    errors: list[tuple[Any, str]] = [
        (CONTEXTS[:2], r"context: expected one, or one for each of 4 texts, got 2"),
        ({"town": "Oslo"}, r"unknown context column 'town'; choose from city, age"),
        ({"city": "Olso"}, r"Olso.*; read_contexts\(rows, unknown=\"group\"\) reads unknown values"),
        ("Oslo", r"context: expected columns with their values or a table of them, got 'Oslo'"),
        ({"city": ["Oslo", "Rome"], "age": 3}, r"context: city is a list"),
        (torch.zeros(4, 3), r"context: expected vectors \(texts, \d+\), got a tensor \(4, 3\)"),
    ]
    for context, message in errors:
        with pytest.raises(UserError, match=message):
            model(tokens, context=context)
    for call in (model, model.generate):
        with pytest.raises(UserError, match="contexts: unknown argument; expected context"):
            call(tokens, contexts=CONTEXTS)
        with pytest.raises(UserError, match="context: expected one, or one for each of 4 texts, got 2"):
            call(inputs_embeds=model.base.get_input_embeddings()(tokens), context=CONTEXTS[:2])
    with pytest.raises(UserError, match=r"context: expected one, got 4"):
        model.merge_and_unload(CONTEXTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank is 0; it must be a "),
        ({"min_count": 0}, "min_count is 0; it must be a "),
        ({"alpha": -1.0}, "alpha is -1.0; it must be a "),
        ({"rank": True}, "rank is True; it must be a whole number"),
        ({"alpha": "8"}, "alpha is '8'; it must be a number"),
        ({"target_modules": ["query"]}, "target_modules: expected some of down_proj, .*, got query"),
        ({"target_modules": []}, r"target_modules: expected all-linear, an expression or a list of names, got \(\)"),
        ({"adapt": ["lora"]}, "lora"),
        *[({"adapt": value}, "adapt: expected a list of names, got ") for value in (5, None, (1,), ["factor", None])],
        ({"adapt": [["factor"]]}, "adapt: expected a list of names, got "),
        *[
            ({"target_modules": value}, "target_modules: expected all-linear, an expression or a list")
            for value in (5, None, (1,))
        ],
        ({"adapt": "factor"}, "adapt: expected a list of names, got 'factor'"),
        ({"adapt": ["factor", "names"]}, "adapt: expected adapters that change weights, such as factor, got names"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        get_context_model(new_base("llama"), ContextConfig(**options, schema=SCHEMA))


def test_other_objects_than_models_and_lists_are_refused_in_one_line(tmp_path: Path) -> None:
    for model in ("models/llama", torch.nn.Linear(2, 2), new_base("llama").model):
        with pytest.raises(
            UserError, match=f"expected a causal language model of transformers, got {type(model).__name__}"
        ):
            get_context_model(model, ContextConfig(schema=SCHEMA))
        with pytest.raises(UserError, match=f"model: expected a causal language model .*, got {type(model).__name__}"):
            ContextModel.from_pretrained(model, tmp_path)
    with pytest.raises(UserError, match=r"config: expected the result of its method fit\(table\)"):
        get_context_model(new_base("llama"), ContextConfig(["city"]))
    with pytest.raises(UserError, match="config: expected a ContextConfig, got ContextSchema"):
        get_context_model(new_base("llama"), SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="columns: expected a list of names, got 'city'"):
        ContextConfig("city")
    (tmp_path / "file").touch()
    for path, problem in (("file", "File exists"), ("file/adapters", "Not a directory")):
        with pytest.raises(UserError, match=rf"{path}: cannot be created \({problem}\)"):
            new_model().save_pretrained(tmp_path / path)
        with pytest.raises(UserError, match=rf"{path}: cannot be created \({problem}\)"):
            new_model(adapt=("factor",)).save_lora(tmp_path / path, {})


def test_a_model_gets_adapters_once() -> None:
    base = new_base("llama")
    get_context_model(base, ContextConfig(schema=SCHEMA))
    with pytest.raises(UserError, match="expected a model without context adapters"):
        get_context_model(base, ContextConfig(schema=SCHEMA))


def test_models_that_cannot_be_adapted_are_refused_in_one_line() -> None:
    offloaded = new_base("llama")
    accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu"))
    with pytest.raises(UserError, match="model: expected weights on devices, got weights that accelerate"):
        get_context_model(offloaded, ContextConfig(schema=SCHEMA))
    eight_bits = new_base("llama")
    eight_bits.model.layers[0].mlp.up_proj.weight.data = torch.zeros(24, 16, dtype=torch.float8_e4m3fn)
    with pytest.raises(UserError, match=r"up_proj: expected weights of floating-point numbers, got quantized weights"):
        get_context_model(eight_bits, ContextConfig(schema=SCHEMA))
    del eight_bits.model.layers[0].mlp.up_proj
    get_context_model(eight_bits, ContextConfig(schema=SCHEMA))  # the error has replaced no map
    longformer: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for base in (
        transformers.XLNetLMHeadModel(transformers.XLNetConfig(d_model=16, n_layer=1, n_head=2, vocab_size=30)),
        transformers.MambaForCausalLM(transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=30)),
        transformers.LongformerForMaskedLM(
            transformers.LongformerConfig(**longformer, attention_window=4, vocab_size=30)
        ),
    ):
        with pytest.raises(UserError, match=r"model: the linear maps of (XLNet|Mamba|Longformer)\w+ cannot be adapted"):
            get_context_model(base, ContextConfig(schema=SCHEMA))
    with pytest.raises(UserError, match="model: expected linear maps"):
        AdaptedModules(torch.nn.Sequential(torch.nn.Tanh()), BackboneSizes(0, 3, ("factor",), 1))


def state_of(model: Any) -> dict[str, Any]:
    """Return everything that context adapters change in a model: modules, tensors, hooks and checkpointing."""
    return {
        "modules": [(name, id(module), module.training) for name, module in model.named_modules()],
        "children": [list(dict(module.named_children())) for module in model.modules()],
        "hooks": [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()],
        "tensors": [(name, id(values), values.requires_grad) for name, values in model.named_parameters()],
        "values": [values.detach().float().tolist() for values in model.parameters()],
        "checkpointing": [getattr(module, "_gradient_checkpointing_func", None) for module in model.modules()],
    }


class BrokenAdapter(Adapter):
    """An adapter that fails for the maps of the second layer's feed-forward network."""

    count = 0

    def __init__(self, sizes: Any) -> None:
        super().__init__(sizes)
        BrokenAdapter.count += 1
        if BrokenAdapter.count % 10 == 0:
            raise MemoryError("no memory for an adapter")


def falcon() -> Any:
    """Return a model whose linear maps are of a class of its own."""
    config = transformers.FalconConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=30)
    return transformers.AutoModelForCausalLM.from_config(config)


def eight_bits() -> Any:
    """Return a model with quantized weights in its last layer, whose map has no method to compute with them."""
    base = new_base("llama")
    weight = base.model.layers[1].mlp.down_proj.requires_grad_(False).weight
    weight.data = weight.data.to(torch.float8_e4m3fn)
    return base


def get_with(**options: Any) -> Callable[[Any, Path], Any]:
    return lambda base, folder: get_context_model(base, ContextConfig(**options, schema=SCHEMA))


def change_files(change: Callable[[dict[str, Tensor], Path], Any]) -> Callable[[Any, Path], Any]:
    """Return a function that loads adapters after a `change` of their tensors or files."""

    def load(base: Any, folder: Path) -> Any:
        model = new_model()
        model.base.model.embed_tokens.weight.requires_grad_()
        model.save_pretrained(folder)
        tensors, facts = files.load_tensors(folder / "context_model.safetensors")
        change(tensors, folder)
        if (folder / "context_model.safetensors").stat().st_size > 100:
            files.save_tensors(folder / "context_model.safetensors", tensors, facts)
        return ContextModel.from_pretrained(base, folder)

    return load


def with_shape(name: str, *shape: int) -> Callable[[Any, Path], Any]:
    return change_files(lambda tensors, folder: tensors.update({name: torch.ones(shape)}))


FAILURES: dict[str, tuple[Callable[[], Any], Callable[[Any, Path], Any]]] = {
    "unknown adapter": (lambda: new_base("llama"), get_with(adapt=("factr",))),
    "unknown map": (lambda: new_base("gpt2"), get_with(target_modules=["q_proj"])),
    "columns that were not read": (
        lambda: new_base("llama"),
        lambda base, folder: get_context_model(base, ContextConfig(["city"])),
    ),
    "an adapter that fails": (lambda: new_base("llama"), get_with(adapt=("factor", "broken"))),
    "no memory": (lambda: new_base("llama"), get_with(context_size=10**15)),
    "no memory for the rank": (lambda: new_base("llama"), get_with(rank=10**15)),
    "own linear maps": (falcon, get_with()),
    "quantized": (eight_bits, get_with()),
    "no file": (
        lambda: new_base("llama"),
        change_files(lambda tensors, folder: (folder / "schema.json").unlink()),
    ),
    "a damaged file": (
        lambda: new_base("llama"),
        change_files(lambda tensors, folder: (folder / "context_model.safetensors").write_bytes(b"damaged")),
    ),
    "a missing tensor": (
        lambda: new_base("llama"),
        change_files(lambda tensors, folder: tensors.pop("encoder.joint.bias")),
    ),
    "an unknown tensor": (lambda: new_base("llama"), with_shape("base.model.other.weight", 2)),
    "a tensor of another size": (lambda: new_base("llama"), with_shape("encoder.joint.bias", 2)),
    "a tensor of the base of another size": (lambda: new_base("llama"), with_shape("base.model.norm.weight", 3)),
    "another architecture": (lambda: new_base("gpt2"), change_files(lambda tensors, folder: None)),
    "another size": (
        lambda: transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(num_key_value_heads=1, **{**LAYERS, "intermediate_size": 32}, **SIZES)
        ),
        change_files(lambda tensors, folder: None),
    ),
}


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("failure", list(FAILURES))
def test_an_error_leaves_the_base_as_it_was(
    failure: str, is_checkpointed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADAPTERS, "broken", BrokenAdapter)
    make, adapt = FAILURES[failure]
    base = make().train()
    base.lm_head.eval()
    next(base.parameters()).requires_grad_(False)
    if is_checkpointed:
        base.activation_checkpointing_enable({"use_reentrant": False})
    former = state_of(base)
    with pytest.raises((UserError, MemoryError, RuntimeError)):
        adapt(base, tmp_path)
    assert state_of(base) == former
    if failure not in ("own linear maps", "quantized"):
        get_context_model(base, ContextConfig(schema=SCHEMA))


@pytest.mark.filterwarnings("ignore:.*has no place for a bias")
def test_a_model_without_its_adapters_is_refused_in_one_line(tmp_path: Path, tokens: Tensor) -> None:
    model = new_model()
    model.save_pretrained(tmp_path)
    content = (tmp_path / "context_model.safetensors").read_bytes()
    model.merge_and_unload(CONTEXTS[0])
    for call in (
        lambda: model(tokens),
        lambda: model.generate(tokens),
        lambda: model.save_pretrained(tmp_path),
        model.merge_and_unload,
        model.unload,
    ):
        with pytest.raises(UserError, match="this model has lost its adapters; use the model that unload"):
            call()
    assert (tmp_path / "context_model.safetensors").read_bytes() == content


def test_methods_of_the_base_that_would_not_use_the_adapters_are_refused(tokens: Tensor) -> None:
    model = new_model()
    for method in (model.generate_batch, model.init_continuous_batching, model.continuous_batching_context_manager):
        with pytest.raises(UserError, match=r"batch.*: not supported; call generate$"):
            method(inputs=tokens.tolist(), context=CONTEXTS)
    former = model(tokens, context=CONTEXTS).logits
    assert model.resize_token_embeddings(40, mean_resizing=False).num_embeddings == 40
    torch.testing.assert_close(model(tokens, context=CONTEXTS).logits[..., :30], former)
