"""config.json of every family and spelling."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from oxinfer_web import ConfigError
from oxinfer_web.models import config_from_folder, config_from_json, read_config


def e2b(fixtures: Path) -> dict[str, Any]:
    return json.loads((fixtures / "hub_config_e2b.json").read_text())


def test_hub_e2b(fixtures: Path) -> None:
    cfg = read_config(e2b(fixtures))
    assert (cfg.family, cfg.hidden_size, cfg.num_hidden_layers, cfg.vocab_size) == ("gemma4", 1536, 35, 262144)
    assert [i for i in range(35) if not cfg.is_sliding(i)] == [4, 9, 14, 19, 24, 29, 34]
    assert (cfg.layer_head_dim(0), cfg.layer_head_dim(4)) == (256, 512)
    assert (cfg.layer_n_kv(0), cfg.layer_n_kv(4)) == (1, 1)
    assert (cfg.layer_intermediate(14), cfg.layer_intermediate(15)) == (6144, 12288)
    assert [cfg.kv_source(i) for i in (0, 14, 15, 18, 19, 34)] == [0, 14, 13, 13, 14, 14]
    assert cfg.has_ple and cfg.eos_token_ids == (1, 106) and cfg.final_logit_softcapping == 30
    assert cfg.sliding_window == 512 and cfg.attention_scale == 1.0


def test_hub_e4b(fixtures: Path) -> None:
    cfg = read_config(json.loads((fixtures / "hub_config_e4b.json").read_text()))
    assert (cfg.hidden_size, cfg.num_hidden_layers, cfg.num_kv_shared_layers) == (2560, 42, 18)
    assert cfg.layer_n_kv(0) == 2 and not cfg.use_double_wide_mlp and cfg.layer_intermediate(41) == 10240
    assert [i for i in range(12) if not cfg.is_sliding(i)] == [5, 11]


def test_both_spellings_of_gemma4_agree(fixtures: Path) -> None:
    """transformers' per_layer_config says what the hub's global_head_dim and num_global_key_value_heads say."""
    new = json.loads((fixtures / "gemma4_31b" / "config.json").read_text())
    old = {k: v for k, v in new.items() if k != "per_layer_config"}
    old |= {"global_head_dim": 64, "num_global_key_value_heads": 1}
    a, b = read_config(new), read_config({"model_type": "gemma4", "text_config": old})
    for i in range(6):
        assert a.layer_head_dim(i) == b.layer_head_dim(i) and a.layer_n_kv(i) == b.layer_n_kv(i)
        assert a.rope_spec(i) == b.rope_spec(i) and a.layer_k_eq_v(i) == b.layer_k_eq_v(i)
    assert [a.layer_k_eq_v(i) for i in range(6)] == [False, False, True, False, False, True]


def test_proportional_rope_turns_the_first_quarter_of_the_pairs(fixtures: Path) -> None:
    cfg = read_config(e2b(fixtures))
    full = cfg.rope_spec(4).inv_freq
    assert len(full) == 256 and all(f > 0 for f in full[:64]) and not any(full[64:])
    assert math.isclose(full[3], 1e6 ** (-6 / 512))
    sliding = cfg.rope_spec(0).inv_freq
    assert len(sliding) == 128 and math.isclose(sliding[-1], 1e4 ** (-254 / 256))


def test_gemma3_multimodal_config_leaves_sizes_out() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    cfg = read_config({"model_type": "gemma3", "text_config": text})
    assert (cfg.vocab_size, cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim) == (262208, 8, 4, 256)
    assert cfg.is_sliding(4) and not cfg.is_sliding(5)
    assert math.isclose(cfg.rope_spec(5).inv_freq[1], 1e6 ** (-2 / 256) / 8)
    assert math.isclose(cfg.rope_spec(0).inv_freq[1], 1e4 ** (-2 / 256))


def test_llama3_rope_scaling() -> None:
    """Against the definition: short wavelengths stay, long ones are divided by the factor."""
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    cfg = read_config(LLAMA | {"rope_theta": 500000.0, "rope_scaling": scaling})
    plain = [500000.0 ** (-2 * j / 64) for j in range(32)]
    got = cfg.rope_spec(0).inv_freq
    assert got[0] == plain[0] and math.isclose(got[-1], plain[-1] / 32)
    middle = [g / p for g, p in zip(got, plain, strict=True)]
    assert middle == sorted(middle, reverse=True) and any(1 / 32 < m < 1 for m in middle)


LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "vocab_size": 100, "hidden_size": 128, "intermediate_size": 256},
    **{"num_hidden_layers": 2, "num_attention_heads": 2},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported are gemma3"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": "big"}, "big"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope_type 'yarn' is not supported"),
        ({"num_key_value_heads": 3, "num_attention_heads": 4}, "KV heads divide the heads"),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
    ],
)
def test_what_cannot_run_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as e:
        read_config(LLAMA | change)
    assert str(e.value).startswith("config.json: ")


@pytest.mark.parametrize("missing", ["vocab_size", "hidden_size", "num_attention_heads"])
def test_missing_sizes_are_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        read_config({k: v for k, v in LLAMA.items() if k != missing})


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff\xfe", b"null"])
def test_not_a_config(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: not"):
        config_from_json(text)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: not in"):
        config_from_folder(tmp_path)


def test_moe_is_rejected(fixtures: Path) -> None:
    config = e2b(fixtures)
    config["text_config"]["enable_moe_block"] = True
    with pytest.raises(ConfigError, match="enable_moe_block"):
        read_config(config)
