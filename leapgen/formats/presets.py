"""The named compositions, one row each: the paper's, and ours.

The rows of `table`, which templates of their own serve, are not repeated. Where the paper leaves
something open the row takes the default that is named beside it, and the choice itself can be
replaced in a spec's state.
"""

from __future__ import annotations

from leapgen.formats.choices import Choices
from leapgen.formats.composed import Composed, composed

STEP = "step"
SMOOTH = "mean_abs_sqrt"


def _leapquant(bits: int, rank: int) -> Choices:
    """LeapQuant section 3: smoothing, scales a value channel, FP16 factors."""
    return Choices(
        "window", f"int{bits}", "value", SMOOTH, rank, "fp16"
    )  # scale formats at 6 and 4 bits are not stated: FP32, as at 8


ROWS: tuple[tuple[str, Choices, str], ...] = (
    # At every step. FP8's "best granularity" is not stated: per value channel, as for the integers.
    ("fp16-step", Choices(STEP, "fp16"), "FP16 state"),
    ("fp8-step", Choices(STEP, "e4m3", "value"), "FP8 E4M3, scale per value channel"),
    ("int6-step", Choices(STEP, "int6", "value"), "INT6, scale per value channel"),
    ("int4-step", Choices(STEP, "int4", "value"), "INT4, scale per value channel"),
    # Blocks lie along the keys, the axis of the products; E8M0 as OCP MX v1.0 rounds it.
    ("mxfp8", Choices(STEP, "e4m3", "keys32-e8m0-floor"), "OCP MXFP8, blocks of 32 keys"),
    ("mxfp6", Choices(STEP, "e2m3", "keys32-e8m0-floor"), "OCP MXFP6 (E2M3), blocks of 32 keys"),
    ("mxfp4", Choices(STEP, "e2m1", "keys32-e8m0-floor"), "OCP MXFP4, blocks of 32 keys"),
    # No public format is called NVFP6: NVFP4's scales with the 6-bit element of its exponent range.
    ("nvfp6", Choices(STEP, "e2m3", "keys16-e4m3"), "E2M3, E4M3 scales of 16 keys, FP32 of a head"),
    ("nvfp4", Choices(STEP, "e2m1", "keys16-e4m3"), "E2M1, E4M3 scales of 16 keys, FP32 of a head"),
    # Symmetric codes of the key-rotated state; levels with the RMS (the norm over sqrt(K)) in BF16.
    *(
        (f"quarot-{b}", Choices(STEP, f"int{b}", "value", "rotation"), f"rotated keys, INT{b}")
        for b in (8, 6, 4)
    ),
    *(
        (
            f"turboquant-{b}",
            Choices(STEP, f"levels{b}", "value-bf16", "rotation"),
            f"rotated keys, {2**b} Lloyd-Max levels, norm per value channel",
        )
        for b in (8, 6, 4)
    ),
    *(
        (
            f"kvquant-{b}",
            Choices(STEP, f"fitted{b}", "value", outliers=1),
            f"{2**b} fitted levels, one FP16 outlier a value channel",
        )
        for b in (8, 6, 4)
    ),
    ("bf16-step-sr", Choices(STEP, "bf16", rounding="stochastic"), "BF16, stochastic rounding"),
    (
        "int8-step-sr",
        Choices(STEP, "int8", "value", rounding="stochastic"),
        "INT8, scale per value channel, stochastic rounding",
    ),
    (
        "int8-step-ef",
        Choices(STEP, "int8", "value", feedback="two-level"),
        "INT8 and an INT4 residual, both read by the next token",
    ),
    # Once a window.
    ("fp16-window", Choices(payload="fp16"), "FP16 state, written once per window"),
    ("fp8-window", Choices(payload="e4m3", scale="value"), "FP8 E4M3, scale per value channel"),
    ("leapquant-int6", _leapquant(6, 4), "LeapQuant at 6 bits, rank-4 FP16 compensators"),
    ("leapquant-int4", _leapquant(4, 8), "LeapQuant at 4 bits, rank-8 FP16 compensators"),
    # Ours, each at no more bytes than the paper's of its row (leap5 and leap4: that of INT4), by
    # measurement (`leapgen drift SPEC... --format "leap8,leap8[transform=rotation]"` and the like).
    # State and output error below the paper's row, in times: at 8 bits smoothing 3.1 and 2.7,
    # rotation 2.4 and 3.6; at 6 bits 3.1 and 2.8, 2.4 and 3.8; at 5 bits 11.9 and 9.1, with
    # rotation 9.3 and 12.6, which scales to nearest make 12.2 and 16.6 (at 8 bits clipped maxima
    # cost more than finer steps gain). One scale a value channel and smoothing keep 9.6 and 7.3 of
    # that, and a token takes 7% less time: no rotation, no sum a block. With four compensators in
    # place of eight, 4.4 and 3.4. At 4 bits levels gain 8.4 and 10.4 at rank 16; at rank 8, 3.1
    # and 3.8 in a fifth fewer bytes. INT4 in rotated blocks keeps 2.1 and 2.7 of that, in 260 bytes
    # more; it is read by one product where levels take two, and a token takes 12% less time.
    (
        "leap8",
        Choices("window", "int8", "keys32-e4m3-up", "rms_power", 8, "int8"),
        "INT8 in blocks of 32 keys, smoothing, rank-8 INT8 compensators",
    ),
    (
        "leap6",
        Choices("window", "int6", "keys32-e4m3-up", "rms_power", 8, "int8"),
        "INT6 in blocks of 32 keys, smoothing, rank-8 INT8 compensators",
    ),
    (
        "leap5",
        Choices("window", "int5", "value-bf16", "rms_power", 8, "int8"),
        "INT5, BF16 scale per value channel, smoothing, rank-8 INT8 compensators",
    ),
    (
        "leap4",
        Choices("window", "int4", "keys32-e4m3", "rotation", 8, "int8"),
        "INT4 in blocks of 32 rotated keys, rank-8 INT8 compensators",
    ),
    (
        "leap4-levels",
        Choices("window", "levels4", "value-bf16", "rotation", 8, "int8"),
        "16 Lloyd-Max levels of rotated keys, rank-8 INT8 compensators",
    ),
)

PRESETS: dict[str, Composed] = {name: composed(name, doc, c) for name, c, doc in ROWS}

KERNELS: dict[str, Choices] = {
    "leapquant-int8": _leapquant(8, 4),
    "int8-window": Choices(payload="int8", scale="value"),
    "int8-window-comp": Choices(payload="int8", scale="value", compensators=4, factors="fp16"),
    "bf16-window": Choices(payload="bf16"),
    "fp32-window": Choices(),
    "fp32-step": Choices(STEP),
    "bf16-step": Choices(STEP, "bf16"),
    "int8-step": Choices(STEP, "int8", "value"),
}
"""What the rows of `table` are made of."""
