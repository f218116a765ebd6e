"""SGLang's own pools, backends and layers with the plugin, on the CPU; its GPU kernels are stood in
by plain functions. Optional: skipped, and counted, where the engine is not installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_imports
import sglang_kernels as kernels
import torch

if not sglang_imports.installed():
    pytest.skip("needs the package sglang", allow_module_level=True)
sglang_imports.prepare()

from leapgen.integrations.sglang import engine  # noqa: E402
from leapgen.runtime.host import ArgumentError  # noqa: E402

CONTEXT = importlib.import_module("sglang.srt.runtime_context").get_context()
LINEAR = "sglang.srt.layers.attention.linear"
SLOTS, WIDTH = 8, 4
FAMILIES = {"gdn": (2, 4, 16, 24), "kda": (2, 2, 16, 16)}  # H, HV, K, V
CHOSEN = {
    "linear_attn_decode_backend": "leapgen",
    "linear_attn_prefill_backend": "triton",
    "mamba_radix_cache_strategy": "no_buffer",
}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """As `load_plugins` does."""
    engine.install()
    engine.install()
    importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the kernels."""
    names = {
        "gdn_backend": ("fused_gdn_gating", "causal_conv1d_fn", "causal_conv1d_update"),
        "kda_backend": ("causal_conv1d_fn", "causal_conv1d_update"),
        "kernels.gdn_triton": ("chunk_gated_delta_rule",),
        "kernels.kda_triton": ("chunk_kda",),
    }
    for module, functions in names.items():
        place = importlib.import_module(f"{LINEAR}.{module}")
        for name in functions:
            monkeypatch.setattr(place, name, getattr(kernels, name))
    for spec, name in (("gdn", "gated_delta_rule"), ("kda", "kda")):
        place = importlib.import_module(f"{LINEAR}.kernels.{spec}_triton")
        monkeypatch.setattr(place, f"fused_recurrent_{name}_packed_decode", kernels.packed_decode)


def config_of(spec: str) -> Any:
    H, HV, K, V = FAMILIES[spec]
    if spec == "gdn":
        configs = importlib.import_module("sglang.srt.configs.qwen3_next")
        sizes = {"linear_num_key_heads": H, "linear_num_value_heads": HV}
        sizes |= {"linear_key_head_dim": K, "linear_value_head_dim": V}
        return configs.Qwen3NextConfig(
            num_hidden_layers=4, linear_conv_kernel_dim=WIDTH, full_attention_interval=4, **sizes
        )
    configs = importlib.import_module("sglang.srt.configs.kimi_linear")
    linear = {"num_heads": H, "head_dim": K, "short_conv_kernel_size": WIDTH}
    linear |= {"kda_layers": [1, 2, 3], "full_attn_layers": [4]}
    return configs.KimiLinearConfig(num_hidden_layers=4, linear_attn_config=linear)


class Served:
    """Pool, backend and layers of one family as the engine builds them."""

    def __init__(self, spec: str, **options: Any) -> None:
        self.spec, self.config = spec, config_of(spec)
        self.override = CONTEXT.override_server_args(device="cpu", **options)
        self.override.install()
        pools = importlib.import_module("sglang.srt.mem_cache.memory_pool")
        self.params = self.config.mamba2_cache_params
        self.pool = pools.HybridReqToTokenPool(
            size=SLOTS,
            mamba_size=SLOTS,
            mamba_spec_state_size=SLOTS,
            max_context_len=512,
            device="cpu",
            enable_memory_saver=False,
            cache_params=self.params,
            mamba_layer_ids=self.params.layers,
            enable_mamba_extra_buffer=False,
        )
        utils = importlib.import_module(f"{LINEAR}.utils")
        model = SimpleNamespace(hf_config=self.config, hf_text_config=self.config)
        self.runner = SimpleNamespace(
            server_args=CONTEXT.server_args,
            device="cpu",
            is_draft_worker=False,
            req_to_token_pool=self.pool,
            token_to_kv_pool=None,
            model_config=model,
            linear_attn_backends=utils.resolve_linear_attn_backends(),
        )
        name = {"gdn": "GDNAttnBackend", "kda": "KDAAttnBackend"}[spec]
        self.backend = getattr(importlib.import_module(f"{LINEAR}.{spec}_backend"), name)(
            self.runner
        )
        self.layers = [self.layer(i) for i in self.params.layers]

    def layer(self, index: int) -> Any:
        H, HV, K, V = FAMILIES[self.spec]
        g = torch.Generator().manual_seed(index)
        layers = importlib.import_module("sglang.srt.layers.radix_linear_attention")
        bias = (HV,) if self.spec == "gdn" else (HV * K,)
        return layers.RadixLinearAttention(
            layer_id=index,
            num_q_heads=H,
            num_k_heads=H,
            num_v_heads=HV,
            head_q_dim=K,
            head_k_dim=K,
            head_v_dim=V,
            conv_weights=torch.randn(2 * H * K + HV * V, WIDTH, generator=g),
            A_log=torch.rand(HV, generator=g) * 3 - 4,
            dt_bias=torch.randn(bias, generator=g),
        )

    def start(self, rows: int) -> torch.Tensor:
        """Slots of new requests, cleared as the engine does; request i is row i."""
        slots = self.pool.mamba_allocator.alloc(rows)
        self.pool.mamba_pool.clear_slots(slots)
        return slots

    def forward(self, slots: torch.Tensor, lengths: list[int], before: list[int]) -> torch.Tensor:
        """A batch through all layers, [tokens, HV * V]: decodes where all have one token."""
        modes = importlib.import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
        decode = max(lengths) == 1 and min(before) > 0
        mode = modes.DECODE if decode else modes.EXTEND
        rows = torch.arange(len(lengths))
        self.pool.req_index_to_mamba_index_mapping[rows] = slots.int()
        ends = torch.tensor(lengths).cumsum(0)
        batch = SimpleNamespace(
            batch_size=len(lengths),
            req_pool_indices=rows,
            forward_mode=mode,
            logical_forward_mode=mode,
            seq_lens=torch.tensor(before) + torch.tensor(lengths),
            extend_start_loc=ends - torch.tensor(lengths),
            extend_seq_lens=torch.tensor(lengths),
            extend_seq_lens_cpu=lengths,
            extend_prefix_lens=torch.tensor(before),
            extend_prefix_lens_cpu=before,
            **dict.fromkeys(
                ("mamba_track_indices", "mamba_track_mask", "mamba_prefill_track_mask_cpu")
            ),
            **dict.fromkeys(("mamba_track_seqlens_cpu", "multi_item_delimiter_indices")),
            **dict.fromkeys(("tbo_parent_token_range", "spec_info", "seq_lens_cpu")),
        )
        self.backend.init_forward_metadata(batch)
        outs = []
        for layer in self.layers:
            tokens = self.tokens(layer.layer_id, lengths, before)
            call = self.backend.forward_decode if decode else self.backend.forward_extend
            outs.append(call(layer, batch, *tokens)[0].flatten(1).float())
        return torch.cat(outs, dim=1)

    def tokens(self, layer: int, lengths: list[int], before: list[int]) -> list[torch.Tensor]:
        """Of row r at position t the same, whatever the batch: mixed_qkv, a, b."""
        H, HV, K, V = FAMILIES[self.spec]
        sizes = (2 * H * K + HV * V, HV if self.spec == "gdn" else HV * K, HV)
        parts: list[list[torch.Tensor]] = [[], [], []]
        for row, (count, start) in enumerate(zip(lengths, before, strict=True)):
            for t in range(start, start + count):
                g = torch.Generator().manual_seed(100000 * layer + 1000 * row + t)
                for part, size in zip(parts, sizes, strict=True):
                    part.append(torch.randn(size, generator=g))
        qkv, a, b = (torch.stack(part).bfloat16() for part in parts)
        return [qkv, a, b] if self.spec == "gdn" else [qkv, a[None], b[None]]

    def close(self) -> None:
        self.override.restore()


@pytest.fixture
def served() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def serve(spec: str, **options: Any) -> Served:
        made.append(Served(spec, **options))
        return made[-1]

    yield serve
    for one in reversed(made):
        one.close()


def run(one: Served, before: Callable[[], None] | None = None) -> torch.Tensor:
    """Two prompts, the second in two chunks; 37 decodes; a third request joins; 20 decodes."""
    slots, outs, at = one.start(2), [], [21, 30]
    one.forward(slots[1:], [13], [0])
    # Row numbers pick the tokens: the chunk above is of row 0, so only states of row 1 differ.
    one.pool.mamba_pool.clear_slots(slots)
    one.forward(slots, at, [0, 0])
    for step in range(57):
        if step == 37:
            slots = torch.cat([slots, one.start(1)])
            one.forward(slots[2:], [9], [0])
            one.pool.mamba_pool.clear_slots(slots[2:])
            outs.append(one.forward(slots, [4, 2, 9], [*at, 0]))
            at = [at[0] + 4, at[1] + 2, 9]
        if before is not None:
            before()
        outs.append(one.forward(slots, [1] * len(at), at))
        at = [n + 1 for n in at]
    return torch.cat(outs)


def emptied(one: Served) -> Callable[[], None]:
    return lambda: one.pool.mamba_pool.mamba_cache.temporal.zero_()


@pytest.mark.parametrize("spec", FAMILIES)
def test_batches(
    served: Callable[..., Served], record_property: Callable[[str, object], None], spec: str
) -> None:
    """Beside the engine's own path on FP32 states, and with states that are lost."""
    want = run(served(spec))
    one = served(spec, **CHOSEN)
    found = run(one)
    lost = served(spec, **CHOSEN)
    broken = run(lost, emptied(lost))
    errors = [float((x - want).norm() / want.norm()) for x in (found, broken)]
    record_property(spec, f"error {errors[0]:.4f}, with lost states {errors[1]:.3f}")
    assert errors[0] < 0.01
    assert errors[1] > 0.3
    assert one.backend.kernel_dispatcher.decode_kernel.steps == 57 * len(one.layers)
    assert one.pool.mamba_pool.mamba_cache.temporal.dtype == torch.int8


def test_bytes_of_a_slot(served: Callable[..., Served]) -> None:
    """What the engine counts for a request, at the size of a published model."""
    configs = importlib.import_module("sglang.srt.configs.qwen3_next")
    config = configs.Qwen3NextConfig(full_attention_interval=4)
    served("gdn")
    plain = config.mamba2_cache_params
    served("gdn", **CHOSEN)
    paged = config.mamba2_cache_params
    conv, state = 3 * (2 * 16 * 128 + 32 * 128) * 2, 32 * 128 * 128 * 4
    assert plain.mamba_cache_per_req == 36 * (conv + state)
    slot = engine.page_of(config).module.bytes_per_slot(H=16, HV=32, K=128, V=128)
    assert paged.mamba_cache_per_req == 36 * (conv + slot)
    assert slot < 0.42 * state


def test_slots_that_are_copied(served: Callable[..., Served]) -> None:
    """A cache hit in the midst of a window, and a slot that was away in the host's memory, go on
    bit for bit; a copy without the state does not."""
    one = served("gdn", **CHOSEN)
    first, hit, away, lost = one.start(4).split(1)
    one.forward(first, [21], [0])
    for at in range(21, 31):
        one.forward(first, [1], [at])
    one.pool.copy_mamba_state(first, hit)
    one.pool.mamba_pool.load_cpu_copy(one.pool.mamba_pool.get_cpu_copy(first), away)
    one.pool.copy_mamba_state(first, lost)
    one.pool.mamba_pool.mamba_cache.temporal[:, lost] = 0
    outs = []
    for slot in (first, hit, away, lost):
        steps = [one.forward(slot, [1], [at]) for at in range(31, 51)]
        outs.append(torch.cat([*steps, one.forward(slot, [6], [51])]))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert float((outs[3] - outs[0]).norm() / outs[0].norm()) > 0.3


def test_padded_rows(served: Callable[..., Served]) -> None:
    """Slot 0 in eager batches, -1 in graphs: zeros come out and no page is written."""
    one = served("gdn", **CHOSEN)
    slots = one.start(1)
    one.forward(slots, [5], [0])
    temporal = one.pool.mamba_pool.mamba_cache.temporal
    before = temporal.clone()
    out = one.forward(torch.cat([slots, torch.tensor([0, -1])]), [1, 1, 1], [5, 5, 5])
    changed = (temporal != before).any(-1).any(0)
    assert changed.nonzero().flatten().tolist() == slots.tolist()
    assert out[0].any()
    assert not out[1:].any()


REFUSED = [
    ("speculative_algorithm", "NGRAM"),
    ("enable_linear_replayssm", True),
    ("enable_int8_mamba_checkpoint", True),
    ("enable_page_major_kv_layout", True),
    ("enable_unified_memory", True),
    ("enable_hierarchical_cache", True),
    ("enable_mis", True),
    ("enable_lora", True),
    ("disaggregation_mode", "prefill"),
    ("mamba_radix_cache_strategy", "extra_buffer"),
    ("linear_attn_prefill_backend", "flashinfer"),
]


@pytest.mark.parametrize(("option", "value"), REFUSED)
def test_refused_options(
    record_property: Callable[[str, object], None], option: str, value: object
) -> None:
    """Before the pool is made."""
    config, said = config_of("gdn"), f"^{option}: expected .*, found {value}"
    override = CONTEXT.override_server_args(device="cpu", **{**CHOSEN, option: value})
    with override, pytest.raises(ArgumentError, match=said) as error:
        config.mamba2_cache_params  # noqa: B018
    record_property("refused", error.value)


def test_refused_models_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    other = config_of("gdn")
    other.__class__ = type("OtherConfig", (type(other),), {})
    override = CONTEXT.override_server_args(device="cpu", **CHOSEN)
    said = r"model: expected Qwen3NextConfig or .*, found OtherConfig"
    with override, pytest.raises(ArgumentError, match=said):
        other.mamba2_cache_params  # noqa: B018
    for found in ("0.5.22", "0.5.24", "0.6.0rc1"):
        monkeypatch.setattr(engine.metadata, "version", lambda _, v=found: v)
        with pytest.raises(ArgumentError, match=f"sglang: expected the version .* found {found}"):
            engine.install()
