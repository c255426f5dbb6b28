"""`homefires export --gguf`: the model as one file for llama.cpp, Ollama and LM Studio.

The file does not say everything. How a tokenizer splits text before it merges is a name that the program must know;
the order of a head's rotary values and the activation follow from the architecture. A model that differs there would
load and answer nonsense, so whatever is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dht.errors import BadInput
from peer.schema.artifact_options import Digits
from peer.schema.extras import require_extra
from peer.schema.spec import RunSpec
from peer.tools.export.gguf_vocabulary import Vocabulary, vocabulary_of

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter
    from transformers import GenerationConfig, PreTrainedTokenizerBase

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""By transformers' name of a model type, what llama.cpp computes it as. It pairs the rotary values of `llama` side by
side, transformers half a head apart."""
FILE = "model-{digits}.gguf"


def require_convertible(spec: RunSpec) -> None:
    """Raises BadInput where llama.cpp would compute something else than the run's model, or the extra is missing."""
    model, config = spec.model, spec.model.config
    if model.architecture not in ARCHITECTURES:
        raise BadInput(
            f"--gguf knows {', '.join(ARCHITECTURES)}, and not {model.architecture}; "
            "export without it, and convert the folder with llama.cpp's own script"
        )
    if model.tokenizer == "bytes":
        raise BadInput(
            "--gguf needs a tokenizer that merges bytes or characters (BPE), and the tokens of this run are plain "
            "bytes; export without it"
        )
    windowed = config.get("sliding_window", 0) if model.architecture == "mistral" else config.get("use_sliding_window")
    unknown = {
        "a sliding window": windowed,
        "another activation than silu": config.get("hidden_act", "silu") not in ("silu", "swish"),
        "biases of attention": config.get("attention_bias") and model.architecture == "qwen3",
        "scaled positions": config.get("rope_type", "default") not in _ropes(model.architecture),
    }
    if found := [what for what, is_there in unknown.items() if is_there]:
        raise BadInput(f"--gguf does not know a {model.architecture} with {' and '.join(found)}; export without it")
    require_extra("gguf", "--gguf")


def _ropes(architecture: str) -> tuple[str, ...]:
    """llama.cpp divides rotary frequencies by what the file says for `llama` alone."""
    return ("default", "linear", "llama3") if ARCHITECTURES[architecture] == "llama" else ("default",)


def write(
    path: Path, model: nn.Module, name: str, tokenizer: PreTrainedTokenizerBase, digits: Digits
) -> None:  # fmt: skip
    """The file `path` with a causal language model of transformers. One matrix is in memory at a time."""
    from gguf import GGUFWriter

    causal: Any = model
    writer = GGUFWriter(path, ARCHITECTURES[causal.config.model_type])
    _add_shape(writer, causal.config, name, digits)
    _add_vocabulary(writer, vocabulary_of(tokenizer, causal.config.vocab_size), tokenizer, causal.generation_config)
    for tensor, values in _tensors(causal):
        kind, packed = _packed(values, digits)
        writer.add_tensor_info(tensor, packed.shape, packed.dtype, packed.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, values in _tensors(causal):
        writer.write_tensor_data(_packed(values, digits)[1])
    writer.close()


def _add_shape(writer: GGUFWriter, config: Any, name: str, digits: Digits) -> None:
    from gguf import LlamaFileType

    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kinds = {"f32": LlamaFileType.ALL_F32, "f16": LlamaFileType.MOSTLY_F16, "q8_0": LlamaFileType.MOSTLY_Q8_0}
    writer.add_name(name)
    writer.add_file_type(kinds[digits])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_vocabulary(
    writer: GGUFWriter, vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig
) -> None:
    writer.add_tokenizer_model(vocabulary.kind)
    writer.add_tokenizer_pre(vocabulary.pre_tokenizer)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.kind == "llama":
        writer.add_token_scores(vocabulary.scores)
        writer.add_add_space_prefix(vocabulary.space_first)
        writer.add_add_eos_token(False)
        if tokenizer.unk_token_id is not None:
            writer.add_unk_token_id(tokenizer.unk_token_id)
    else:
        writer.add_token_merges(vocabulary.merges)
    writer.add_add_bos_token(vocabulary.begins)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    stops: Any = generation.eos_token_id
    end = tokenizer.eos_token_id
    writer.add_eos_token_id(end)
    if others := [token for token in (stops if isinstance(stops, list) else [stops]) if token != end]:
        writer.add_eot_token_id(others[-1])  # the one that closes an answer
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


def _tensors(model: Any) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """(name in the file, float32 values) of each. A head that is the embedding is not there twice."""
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

    config = model.config
    kind = {name: number for number, name in MODEL_ARCH_NAMES.items()}[ARCHITECTURES[config.model_type]]
    names = get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.named_parameters():
        called = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert called is not None, name
        values: npt.NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).numpy()
        turned = heads.get(name.split(".")[-2]) if kind == MODEL_ARCH.LLAMA else None
        yield called, values if turned is None else side_by_side(values, turned)
    if (factors := _rope_factors(model)) is not None:
        yield "rope_freqs.weight", factors


def side_by_side(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of queries or keys: the two that one rotation turns lie half a head apart, and are neighbours then."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _rope_factors(model: Any) -> npt.NDArray[np.float32] | None:
    """By what each rotary frequency is divided, if they are."""
    rotary = model.model.rotary_emb
    if rotary.rope_type == "default":
        return None
    assert rotary.attention_scaling == 1
    scaled: torch.Tensor = rotary.inv_freq.double().cpu()
    steps = torch.arange(len(scaled), dtype=torch.float64) / len(scaled)
    factors: npt.NDArray[np.float32] = (model.config.rope_parameters["rope_theta"] ** -steps / scaled).float().numpy()
    return factors


def _packed(values: npt.NDArray[np.float32], digits: Digits) -> tuple[GGMLQuantizationType, npt.NDArray[Any]]:
    """As they lie in the file. Rows whose length 32 does not divide stay in two bytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import quantize

    if digits == "f32" or values.ndim == 1:
        return GGMLQuantizationType.F32, values
    eight = GGMLQuantizationType.Q8_0
    if digits == "q8_0" and values.shape[-1] % GGML_QUANT_SIZES[eight][0] == 0:
        return eight, quantize(values, eight)
    return GGMLQuantizationType.F16, values.astype(np.float16)
