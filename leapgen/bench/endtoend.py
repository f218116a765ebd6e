"""Whole decode steps of models with the state in FP32 and quantized, in one run.

    python -m leapgen.bench.endtoend --budget 330

For each model: agreement of the two; the time of a step by batch; the largest batch in the model's
share of the memory, computed from measured bytes and tried; a replay of a reasoning workload. What
is done is written at once; what does not fit into the budget is left out and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from leapgen.bench import endtoend_results as results
from leapgen.bench.allocator import held_to, peak, reset_peak
from leapgen.bench.decoder import Arm, Decoder, Full, Quantized, spread
from leapgen.bench.replay import lengths, replay
from leapgen.integrations import decode_models
from leapgen.integrations.decode_arms import fp32_call, module_for, sizes_of
from leapgen.integrations.decode_models import DecodeModel
from leapgen.integrations.transformers_hooks import install

BATCHES = (1, 8, 32, 64, 128, 256, 512)
CONTEXT = 4096
CHECKED = (8, 24)
"""Rows and tokens of the agreement."""
REPLAY_SHARE = 0.3
"""Of a model's time, for both replays together."""
MARGIN = 0.97
"""Of the memory, when the largest batch is computed; and the factor of each further try."""
OUT_OF_MEMORY: tuple[type[Exception], ...] = (torch.OutOfMemoryError,)


@dataclass(frozen=True)
class Request:
    """What to measure.

    batches  rows; context: positions that every row attends to
    memory   bytes that each model may use in place of its share of the device's
    tiny     shapes of a test
    """

    models: tuple[DecodeModel, ...]
    batches: tuple[int, ...] = BATCHES
    context: int = CONTEXT
    format: str = "leapquant-int8"
    budget: float = 330.0
    memory: int | None = None
    tiny: bool = False
    command: str = ""


@dataclass
class _Run:
    """One model's measurements. until: end of its time; note: says what was done."""

    shape: DecodeModel
    request: Request
    device: torch.device
    report: dict[str, Any]
    until: float
    save: Callable[[], None]
    note: Callable[[str], None]
    model: Any = field(init=False)
    arms: list[Arm] = field(init=False)

    def __post_init__(self) -> None:
        install(self.shape.family)
        self.model = decode_models.build(self.shape, self.device, tiny=self.request.tiny)
        sizes = sizes_of(self.shape, self.model.config)
        module = module_for(self.shape, self.device, self.request.format)
        call, title, how = fp32_call(self.shape, self.device)
        ours = Quantized(self.request.format, f"leapgen {self.request.format}", module, sizes)
        self.arms = [Full("fp32", title, call, module.inputs, sizes), ours]
        self.report["fp32"] = {"title": title, "state": how}
        self.report["weights"] = sum(p.nbytes for p in self.model.parameters())
        self.report["heads"] = sizes

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.perf_counter()

    def decoder(self, arm: Arm, rows: int) -> Decoder:
        return Decoder(self.model, arm, rows, self.request.context)

    def all(self) -> None:
        """Every part, in the order of their worth, while there is time."""
        parts: tuple[tuple[str, float, Callable[[], None]], ...] = (
            ("agreement", 0.0, self.agreement),
            ("batches", 0.0, self.batches),
            ("largest", 10.0, self.largest),
            ("replay", 10.0, self.replays),
        )
        for name, least, run in parts:
            if self.left < least:
                self.report["left_out"].append(name)
                continue
            run()
            self.save()

    def agreement(self) -> None:
        """Logits of both on the same tokens, and of ours with its states emptied at every token."""
        rows, tokens = CHECKED
        fp32, ours = self.arms
        want = self._logits(fp32, rows, tokens)
        found = {"found": self._logits(ours, rows, tokens)}
        found["emptied"] = self._logits(ours, rows, tokens, broken=True)
        self.report["agreement"] = {
            name: {
                "error": float((x - want).norm() / want.norm()),
                "same_best": float((x.argmax(-1) == want.argmax(-1)).float().mean()),
            }
            for name, x in found.items()
        }
        self.note(f"{self.shape.name}: agreement {self.report['agreement']}")

    def _logits(self, arm: Arm, rows: int, tokens: int, broken: bool = False) -> torch.Tensor:
        decoder, found = self.decoder(arm, rows), []
        every = torch.arange(rows, dtype=torch.int32, device=self.device)
        vocabulary = self.model.config.vocab_size
        for token in range(tokens):
            if broken:
                for held in decoder.held.values():
                    arm.reset(held, every)
            decoder.tokens.copy_((every[:, None] * 31 + token * 17) % vocabulary)
            found.append(decoder.step().float())
        decoder.close()
        return torch.stack(found)

    def batches(self) -> None:
        """The time of a step, both arms in turn at each batch."""
        for rows in self.request.batches:
            for arm in self.arms:
                if self.left < 5:
                    self.report["left_out"].append(f"{arm.name} at {rows}")
                    continue
                self._point(arm, rows)
            self.save()

    def _point(self, arm: Arm, rows: int) -> None:
        """Measures one batch, or notes that it does not fit."""
        reset_peak()
        decoder = None
        try:
            decoder = self.decoder(arm, rows)
            decoder.capture()
            found = decoder.time()
        except OUT_OF_MEMORY:
            self.report["points"].append({"arm": arm.name, "rows": rows, "fits": False})
            if decoder is not None:
                decoder.close()
            reset_peak()
            return
        point = {"arm": arm.name, "rows": rows, "fits": True, "microseconds": spread(found)}
        point["tokens_per_second"] = rows / spread(found)["median"] * 1e6
        point["bytes"] = decoder.bytes()
        point["peak"] = peak()
        self.report["points"].append(point)
        self.note(f"{self.shape.name}: {arm.name}, {rows} rows: {spread(found)['median']:.0f} us")
        decoder.close()

    # -- the largest batch

    def limit(self) -> int:
        """Bytes for the model: its layers' share of the device."""
        if self.request.memory is not None:
            return self.request.memory
        total = torch.cuda.get_device_properties(self.device).total_memory
        return int(total * len(self.model.config.layer_types) / self.shape.layers)

    def capacity(self, arm: Arm) -> int:
        """Rows that should fit, from the bytes of the batches that were measured: what a row adds
        to the peak, temporary tensors included, or (no allocator to ask) what it allocates."""
        points = [p for p in self.report["points"] if p["arm"] == arm.name and p["fits"]]
        if not points:
            return 0
        last = points[-1]
        each, base = sum(last["bytes"].values()) / last["rows"], float(self.report["weights"])
        if last["peak"] and len(points) > 1:
            grown = last["peak"] - points[-2]["peak"]
            if grown > 0:  # the allocator hands out whole pages
                each = grown / (last["rows"] - points[-2]["rows"])
                base = last["peak"] - each * last["rows"]
        return int((self.limit() * MARGIN - base) / each)

    def largest(self) -> None:
        """Computed, then tried with the allocator held to the limit."""
        limit = self.limit()
        self.report["largest"] = {"limit": limit, "arms": {}}
        with held_to(limit, self.device):
            for arm in self.arms:
                rows = computed = self.capacity(arm)
                while rows > 0 and self.left > 5:
                    count = len(self.report["points"])
                    self._point(arm, rows)
                    if self.report["points"][count]["fits"]:
                        break
                    rows = int(rows * MARGIN)
                else:
                    rows = 0
                self.report["largest"]["arms"][arm.name] = {"computed": computed, "fits": rows}
                self.save()

    def replays(self) -> None:
        """The same requests for both, each with as many rows as fit."""
        found = self.report.get("largest", {}).get("arms", {})
        rows = {arm.name: found.get(arm.name, {}).get("fits", 0) for arm in self.arms}
        if not all(rows.values()):
            self.report["left_out"].append("replay: no largest batch")
            return
        slowest = self._rate("fp32", rows["fp32"])
        seconds = min(
            self.request.budget * REPLAY_SHARE / len(self.request.models) / 2, self.left / 3
        )
        tokens = max(int(slowest * seconds), 4 * max(rows.values()))
        wanted, factor = lengths(4 * max(rows.values()), tokens)
        self.report["replay"] = {"requests": len(wanted), "tokens": sum(wanted), "factor": factor}
        self.report["replay"]["arms"] = {}
        with held_to(self.limit(), self.device):
            for arm in self.arms:
                decoder = self.decoder(arm, rows[arm.name])
                decoder.capture()
                outcome = replay(decoder, wanted, seconds=max(self.left - 5, 5))
                decoder.close()
                self.report["replay"]["arms"][arm.name] = outcome.data()
                self.note(f"{self.shape.name}: replay, {arm.name}: {outcome.steady:.0f} tokens/s")
                self.save()

    def _rate(self, arm: str, rows: int) -> float:
        points = [p for p in self.report["points"] if p["arm"] == arm and p["rows"] == rows]
        return float(points[-1]["tokens_per_second"])

    def close(self) -> None:
        """Frees the model."""
        self.model = None
        self.arms = []
        reset_peak()


def run(request: Request, path: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Measures everything and writes `path` after each part; the report."""
    start = time.perf_counter()
    gpu = torch.cuda.is_available() and not request.tiny
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    report = results.head(device, request.command, request.context, request.format)
    for place, shape in enumerate(request.models):
        part: dict[str, Any] = {"name": shape.name, "title": shape.title, "points": []}
        part["left_out"] = []
        report["models"].append(part)
        until = start + request.budget * (place + 1) / len(request.models)
        job = _Run(shape, request, device, part, until, lambda: results.save(report, path), note)
        results.save(report, path)
        job.all()
        job.close()
    report["seconds"] = time.perf_counter() - start
    report["complete"] = not any(part["left_out"] for part in report["models"])
    results.save(report, path)
    return report


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    options = results.parse(arguments, [m.name for m in decode_models.MODELS])
    chosen = tuple(m for m in decode_models.MODELS if m.name in options.models)
    request = Request(
        models=chosen,
        batches=tuple(options.batches or ((1, 4) if options.tiny else BATCHES)),
        context=options.context or (16 if options.tiny else CONTEXT),
        format=options.format,
        budget=options.budget,
        memory=options.memory or ((8 << 20) if options.tiny else None),
        tiny=options.tiny,
        command=options.command,
    )
    results.finish(options, lambda path, note: run(request, path, note))


if __name__ == "__main__":
    main()
