"""The engine's layers with a quantized state: one mixin, and what differs between the families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from leapgen.integrations.page import Page
from leapgen.integrations.vllm import engine
from leapgen.integrations.vllm.engine import Batch
from leapgen.integrations.vllm.recipe import check_blocks, page_of
from leapgen.integrations.vllm.settings import read
from leapgen.runtime.bound import BoundStep
from leapgen.runtime.host import Pool

FIRST_SLOT = 1  # block 0 is the engine's null block, which padded rows name


class PagedState:
    """Mixed into a layer of the engine. Without the plugin's option the layer is the engine's own.

    page   the layout of its pages, None without the option
    pool   the pages as a pool of blocks, once the engine has bound them
    steps  calls of the step so far
    layout axes of the FP32 states that the engine's prefill takes, as in `Module.materialize`
    """

    recipe: str
    page: Page | None = None
    pool: Pool | None = None
    steps: int = 0
    layout = "VK"
    _bare = False
    _step: BoundStep | None = None  # for the last batch's number of rows
    _constants: tuple[Any, tuple[torch.Tensor, ...]] = ((), ())

    def __init__(self, config: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        settings = read(vllm_config)
        super().__init__(config, vllm_config, *args, **kwargs)  # type: ignore[call-arg]
        if settings is None:
            return
        engine.require_tested_version()
        shapes, dtypes = self.get_state_shape(), self.get_state_dtype()
        self.page = page_of(self.recipe, settings, self.key_heads(), shapes, dtypes, config)

    # -- pages

    def get_state_shape(self) -> Any:
        """Of the page's states; the engine's own while its code runs."""
        if self.page is None or self._bare:
            return super().get_state_shape()  # type: ignore[misc]
        return self.page.shapes

    def get_state_dtype(self) -> Any:
        """See `get_state_shape`."""
        if self.page is None or self._bare:
            return super().get_state_dtype()  # type: ignore[misc]
        return self.page.dtypes

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """The engine's, of the page's states; by now it knows its blocks. Errors: ArgumentError."""
        settings = read(vllm_config)
        if self.page is not None and settings is not None:
            check_blocks(settings, self.page, vllm_config)
        return super().get_kv_cache_spec(vllm_config)  # type: ignore[misc]

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """The engine's pages, as tensors and as a pool. All kernels are compiled here, before the
        first request and before graphs are captured."""
        super().bind_kv_cache(kv_cache)  # type: ignore[misc]
        if self.page is not None:
            self.pool, self._step = self.page.pool(self.kv_cache[1:]), None
            self.page.module.prepare(self.pool)
            self.constants()  # made now, not while a graph is captured

    @contextmanager
    def as_in_tree(self, states: tuple[torch.Tensor, ...]) -> Iterator[None]:
        """The engine's own layer, on these states."""
        held = getattr(self, "kv_cache", ())
        self.kv_cache, self._bare = states, True
        try:
            yield
        finally:
            self.kv_cache, self._bare = held, False

    # -- what the families have

    def key_heads(self) -> int:
        """On this rank."""
        raise NotImplementedError

    def constants(self) -> tuple[torch.Tensor, ...]:
        """The step's constant inputs, FP32."""
        raise NotImplementedError

    def kept_constants(self, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """FP32 copies, made anew when the weights were loaded again."""
        key = tuple((w.data_ptr(), w._version) for w in weights)
        if self._constants[0] != key:
            self._constants = (key, tuple(w.detach().float() for w in weights))
        return self._constants[1]

    # -- a forward pass

    def decode(
        self, batch: Batch, qkv: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor
    ) -> None:
        """One token a row: convolution by the engine's kernel, then the module's step.

        qkv  [rows, channels]; a, b the raw gate and step size; out [rows, HV, V]
        """
        pool, page = self._bound()
        slots = batch.slots[: batch.decodes]
        x = engine.convolve(self, qkv, self.kv_cache[0], slots)
        s = page.shape
        q, k, v = torch.split(x, [s.H * s.K, s.H * s.K, s.HV * s.V], dim=-1)
        tokens = (q.view(-1, s.H, s.K), k.view(-1, s.H, s.K), v.view(-1, s.HV, s.V))
        given = (*tokens, a, b, *self.constants())
        if self._step is None or self._step.rows != batch.decodes:
            self._step = BoundStep(page.module, pool, slots, given, out, FIRST_SLOT)
            self._step.run()
        else:
            self._step.step(slots, *given, out)
        self.steps += 1

    @contextmanager
    def prefill(self, batch: Batch) -> Iterator[None]:
        """The engine's own layer on FP32 states of the prefills' rows, which are quantized into
        their pages afterwards. The engine's code finds its null block in front of them."""
        pool, page = self._bound()
        rows, s, module = batch.prefills, page.shape, page.module
        slots = batch.slots[batch.decodes :][:rows]
        old = torch.where(batch.known, slots, 0)  # new rows get zeros, whatever their page holds
        layout, device = self.layout, slots.device
        states = torch.zeros((rows + 1, s.HV, s.V, s.K), dtype=torch.float32, device=device)
        axes = (s.V, s.K) if layout == "VK" else (s.K, s.V)
        used = states[1:].view(rows, s.HV, *axes)
        module.materialize(pool, old, out=used, layout=layout, first_slot=FIRST_SLOT)
        position = self._position(pool, old) + batch.starts.diff()
        index = slots.long()
        conv = self.kv_cache[0]
        scratch = torch.cat([torch.zeros_like(conv[:1]), conv[index]])
        places = torch.arange(1, rows + 1, dtype=torch.int32, device=device)
        with self.as_in_tree((scratch, states)), engine.prefill_only(self.prefix, batch, places):
            yield
        conv[index] = scratch[1:]
        module.load_state(pool, slots, used, position.int(), layout=layout, first_slot=FIRST_SLOT)

    def _position(self, pool: Pool, slots: torch.Tensor) -> torch.Tensor:
        """Tokens so far modulo the window, int32 [rows], without asking the host; 0 in slot 0."""
        index = slots.long()
        if "cursor" not in pool:
            return torch.zeros_like(slots)
        seen = pool["cursor"][index, 0] + pool["phase"][index, 0]
        return torch.where(slots >= FIRST_SLOT, seen, 0)

    def _bound(self) -> tuple[Pool, Page]:
        if self.pool is None or self.page is None:
            raise RuntimeError(f"{self.prefix}: the engine has bound no pages")
        return self.pool, self.page

    prefix: str
    kv_cache: Sequence[torch.Tensor]


class DeltaRuleState(PagedState):
    """Mixed into layers of the gated delta rule, whose core takes a batch's packed tokens."""

    recipe = "gdn"

    def key_heads(self) -> int:
        """On this rank."""
        return int(self.num_k_heads) // int(self.tp_size)

    def constants(self) -> tuple[torch.Tensor, ...]:
        """A_log, dt_bias."""
        return self.kept_constants(self.A_log, self.dt_bias)

    def _forward_core(
        self, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor
    ) -> None:
        """Convolution and recurrence of a batch: tokens [tokens, ...] into [tokens, HV, V]."""
        if self.page is None or self._bare:
            super()._forward_core(mixed_qkv, b, a, core_attn_out)  # type: ignore[misc]
            return
        batch = engine.batch_of(self.prefix)
        if batch is None:
            self._warm_up(mixed_qkv)
            return
        n, end = batch.decodes, batch.decodes + batch.tokens
        if n:
            self.decode(batch, mixed_qkv[:n], a[:n], b[:n], core_attn_out[:n])
        if batch.prefills:
            with self.prefill(batch):
                self._in_tree(mixed_qkv[n:end], b[n:end], a[n:end], core_attn_out[n:end])

    def _warm_up(self, mixed_qkv: torch.Tensor) -> None:
        """What the engine's layer does in a pass without states."""

    def _in_tree(self, *tokens: torch.Tensor) -> None:
        super()._forward_core(*tokens)  # type: ignore[misc]

    A_log: torch.Tensor
    dt_bias: torch.Tensor
    num_k_heads: int
    tp_size: int


class QwenPagedState(DeltaRuleState, engine.layer_class("QwenGatedDeltaNetAttention")):  # type: ignore[misc]
    """The gated delta rule of Qwen3-Next and Qwen3.5."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.page is not None and engine.on_cpu():
            # The CPU's own path never comes to `_forward_core`; the GPU's has no GPU code outside.
            self._forward_method = self.forward_cuda
            # Its kernels take a tensor of shape [.., V, K] and read it as [.., K, V].
            self.layout = "KV"

    def _warmup_prefill_kernels(self, *args: Any) -> None:
        with self.as_in_tree(()):
            super()._warmup_prefill_kernels(*args)

    def _warm_up(self, mixed_qkv: torch.Tensor) -> None:
        if not engine.on_cpu():
            self._warmup_prefill_kernels(mixed_qkv, 0)

    def _in_tree(self, *tokens: torch.Tensor) -> None:
        if engine.on_cpu():
            torch.ops.vllm.cpu_gdn_attention_core(*tokens, self.prefix)
        else:
            super()._in_tree(*tokens)


class OlmoPagedState(DeltaRuleState, engine.layer_class("OlmoHybridGatedDeltaNetAttention")):  # type: ignore[misc]
    """The gated delta rule of OLMo-Hybrid, whose step size may have the range 2."""


class KimiPagedState(PagedState, engine.layer_class("KimiGatedDeltaNetAttention")):  # type: ignore[misc]
    """Kimi Delta Attention."""

    recipe = "kda"

    def key_heads(self) -> int:
        """On this rank."""
        return int(self.local_num_heads)

    def constants(self) -> tuple[torch.Tensor, ...]:
        """A_log, and dt_bias [HV, K]."""
        A_log, dt_bias = self.kept_constants(self.A_log, self.dt_bias)
        return A_log, dt_bias.view(len(A_log), -1)

    @engine.eager_in_capture
    def _forward(
        self,
        mixed_qkv: torch.Tensor,
        g1: torch.Tensor,
        g2: torch.Tensor,
        beta: torch.Tensor,
        core_attn_out: torch.Tensor,
    ) -> None:
        """Convolution, recurrence and norm: g1 [1, tokens, H, K], beta [1, tokens, H], g2 as the
        output, [1, tokens, H, K]."""
        if self.page is None or self._bare:
            super()._forward(mixed_qkv, g1, g2, beta, core_attn_out)
            return
        batch = engine.batch_of(self.prefix)
        if batch is None:
            return
        n, end = batch.decodes, batch.decodes + batch.tokens
        if n:
            out = core_attn_out[:, :n]
            self.decode(batch, mixed_qkv[:n], g1[0, :n], beta[0, :n], out[0])
            out.copy_(self.o_norm(out, g2[:n]))
        if batch.prefills:
            part = slice(n, end)
            with self.prefill(batch):
                super()._forward(
                    mixed_qkv[part], g1[:, part], g2[part], beta[:, part], core_attn_out[:, part]
                )


def install() -> None:
    """Let the engine build these layers. They are its own where the option is not set."""
    engine.replace_layer("QwenGatedDeltaNetAttention", QwenPagedState)
    engine.replace_layer("KimiGatedDeltaNetAttention", KimiPagedState)
    engine.replace_layer("OlmoHybridGatedDeltaNetAttention", OlmoPagedState)
