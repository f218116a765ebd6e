"""What checks have said of candidates: made once, noted, and found again by later runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leapgen.runtime.host import Shape
from leapgen.tune.bench import Bench, Config, Configs, Lost, Unfit
from leapgen.tune.candidates import Candidate
from leapgen.tune.journal import Journal


@dataclass
class Verdicts:
    """Checks of one bench, by way of the journal."""

    bench: Bench
    journal: Journal

    def canary(self, shape: Shape) -> Configs:
        """The default configs: what candidates are compared with."""
        return {kernel: self.bench.default(kernel, shape) for kernel in self.bench.kernels}

    def standard(self, shape: Shape, kernel: str, config: Config) -> bool:
        """Whether a config is a kernel's default."""
        return config == self.bench.default(kernel, shape)

    def wanted(self, shape: Shape, kernel: str, candidate: Candidate) -> tuple[Configs, bool]:
        """Configs that a candidate is checked at, and whether thoroughly: the default is the
        yardstick of all others, and is itself held against the oracle. A flush runs behind a step
        that leaves windows open."""
        step, config = self.bench.default("step", shape), candidate.config
        configs: Configs = {kernel: config}
        if kernel == "flush" and step.get("fused"):
            configs = {"step": {**step, "fused": 0}, kernel: config}
        if self.standard(shape, kernel, config):
            return {**self.canary(shape), **configs}, True
        return configs, False

    def known(self, shape: Shape, configs: Configs, thorough: bool) -> Any:
        """What a check has noted, or None."""
        return self.journal.get(what="check", **_parts(shape, configs, thorough))

    def make(self, shape: Shape, configs: Configs, thorough: bool) -> dict[str, Any]:
        """error: the largest over its bound; failure: empty if all is well. thorough: against the
        oracle, not the default. Errors: Lost."""
        parts = _parts(shape, configs, thorough)

        def check() -> dict[str, Any]:
            try:
                return {"error": self.bench.check(shape, configs, thorough), "failure": ""}
            except Unfit as error:
                return {"error": 0.0, "failure": str(error)[:400]}

        try:
            verdict: dict[str, Any] = self.journal.once(check, what="check", **parts)
        except Lost as error:
            self.journal.put({"error": 0.0, "failure": error.reason}, what="check", **parts)
            raise
        return verdict


def _parts(shape: Shape, configs: Configs, thorough: bool) -> dict[str, Any]:
    return {"shape": vars(shape), "configs": configs, "thorough": thorough}
