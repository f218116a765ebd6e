"""A hand-written module that keeps the kernel ABI: an exact integer state without decay.

The state of a head is payload[k, v] (int8) plus one record a token, and a step adds
round(key_k) * value_v to it; the output is the cursor before the step plus bias. Enough to
exercise the host's binding, strides, rows, windows and refusals on the cpu target.
"""

# fmt: off
# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func.
import tilelang.language as T

try:
    from . import _host  # noqa: TID252
except ImportError:
    import _host


def flat(name, dtype):
    return T.Tensor((T.dynamic(f"n_{name}", "int64"),), dtype)


def build_step(K, V, H, HV, P, R, *, unroll=1, fused=0):
    # fused: only a promise here, for what the host launches.
    group = HV // H

    @T.prim_func
    def step(
        record_key: flat("record_key", "uint16"),
        record_u: flat("record_u", "float32"),
        cursor: flat("cursor", "int32"),
        status: flat("status", "int32"),
        slots: flat("slots", "int32"),
        key_in: flat("key", "uint16"),
        value_in: flat("value", "float32"),
        bias_in: flat("bias", "float32"),
        out: flat("out", "float32"),
        record_key_slot: T.int64, record_key_head: T.int64, record_u_slot: T.int64,
        record_u_head: T.int64, cursor_slot: T.int64, slots_row: T.int64, key_row: T.int64,
        key_head: T.int64, key_axis: T.int64, value_row: T.int64, value_head: T.int64,
        value_axis: T.int64, bias_head: T.int64, out_row: T.int64, out_head: T.int64,
        out_axis: T.int64, num_rows: T.int32, num_slots: T.int32, first_slot: T.int32,
    ):
        with T.Kernel(num_rows * HV) as bid:
            row = T.alloc_var("int64")
            head = T.alloc_var("int64")
            slot = T.alloc_var("int64")
            now = T.alloc_var("int32")
            active = T.alloc_var("int32")
            row = T.cast(bid // HV, "int64")
            head = T.cast(bid % HV, "int64")
            slot = T.cast(slots[row * slots_row], "int64")
            active = T.if_then_else(slot >= first_slot, 1, 0)
            now = 0
            if slot >= num_slots:
                active = 0
                status[0] = 1
            if active == 1:
                now = cursor[slot * cursor_slot * 4 + head]
                if now < 0 or now > P - 1:
                    active = 0
                    status[1] = 1
            if active == 1:
                for v in T.serial(V):
                    record_u[slot * record_u_slot * 4 + head * record_u_head * 4 + now * V + v] = (
                        value_in[row * value_row + head * value_head + v * value_axis]
                    )
                if head % group == 0:
                    for k in T.serial(K):
                        record_key[
                            slot * record_key_slot * 8
                            + (head // group) * record_key_head * 8
                            + now * K
                            + k
                        ] = key_in[row * key_row + (head // group) * key_head + k * key_axis]
                cursor[slot * cursor_slot * 4 + head] = now + 1
            for v in T.serial(V):
                out[row * out_row + head * out_head + v * out_axis] = T.if_then_else(
                    active == 1, T.cast(now, "float32") + bias_in[head * bias_head], 0.0
                )

    return step


def build_flush(K, V, H, HV, P, R):
    group = HV // H

    @T.prim_func
    def flush(
        payload: flat("payload", "int8"),
        record_key: flat("record_key", "uint16"),
        record_u: flat("record_u", "float32"),
        cursor: flat("cursor", "int32"),
        phase: flat("phase", "int32"),
        slots: flat("slots", "int32"),
        payload_slot: T.int64, payload_head: T.int64, record_key_slot: T.int64,
        record_key_head: T.int64, record_u_slot: T.int64, record_u_head: T.int64,
        cursor_slot: T.int64, phase_slot: T.int64, slots_row: T.int64, num_rows: T.int32,
        num_slots: T.int32, first_slot: T.int32,
    ):
        with T.Kernel(num_rows * HV) as bid:
            head = T.alloc_var("int64")
            slot = T.alloc_var("int64")
            sum = T.alloc_var("float32")
            head = T.cast(bid % HV, "int64")
            slot = T.cast(slots[T.cast(bid // HV, "int64") * slots_row], "int64")
            due = T.alloc_var("int32")
            due = 0
            if slot >= first_slot and slot < num_slots:
                due = phase[slot * phase_slot * 4 + head] + cursor[slot * cursor_slot * 4 + head]
            if due >= P:
                for v in T.serial(V):
                    for k in T.serial(K):
                        at = slot * payload_slot * 16 + head * payload_head * 16 + v * K + k
                        sum = T.cast(payload[at], "float32")
                        for j in T.serial(cursor[slot * cursor_slot * 4 + head]):
                            bits = record_key[
                                slot * record_key_slot * 8
                                + (head // group) * record_key_head * 8
                                + j * K
                                + k
                            ]
                            sum += (
                                T.reinterpret(T.cast(bits, "uint32") << 16, "float32")
                                * record_u[
                                    slot * record_u_slot * 4 + head * record_u_head * 4 + j * V + v
                                ]
                            )
                        payload[at] = T.cast(sum, "int8")
                phase[slot * phase_slot * 4 + head] = 0
                cursor[slot * cursor_slot * 4 + head] = 0

    return flush


def build_state(K, V, H, HV, P, R, load):
    """materialize (payload only) and load_state."""

    @T.prim_func
    def state_kernel(
        payload: flat("payload", "int8"),
        cursor: flat("cursor", "int32"),
        phase: flat("phase", "int32"),
        slots: flat("slots", "int32"),
        position: flat("position", "int32"),
        state: flat("state", "float32"),
        payload_slot: T.int64, payload_head: T.int64, cursor_slot: T.int64, phase_slot: T.int64,
        slots_row: T.int64, position_row: T.int64, state_row: T.int64, state_head: T.int64,
        state_key: T.int64, state_value: T.int64, num_rows: T.int32, num_slots: T.int32,
        first_slot: T.int32,
    ):
        with T.Kernel(num_rows * HV) as bid:
            row = T.alloc_var("int64")
            head = T.alloc_var("int64")
            slot = T.alloc_var("int64")
            row = T.cast(bid // HV, "int64")
            head = T.cast(bid % HV, "int64")
            slot = T.cast(slots[row * slots_row], "int64")
            if slot >= first_slot and slot < num_slots:
                for v in T.serial(V):
                    for k in T.serial(K):
                        payload[slot * payload_slot * 16 + head * payload_head * 16 + v * K + k] = (
                            T.cast(
                                state[
                                    row * state_row
                                    + head * state_head
                                    + k * state_key
                                    + v * state_value
                                ],
                                "int8",
                            )
                        )
                cursor[slot * cursor_slot * 4 + head] = 0
                phase[slot * phase_slot * 4 + head] = position[row * position_row] % P

    @T.prim_func
    def materialize(
        payload: flat("payload", "int8"),
        slots: flat("slots", "int32"),
        state: flat("state", "float32"),
        payload_slot: T.int64, payload_head: T.int64, slots_row: T.int64, state_row: T.int64,
        state_head: T.int64, state_key: T.int64, state_value: T.int64, num_rows: T.int32,
        num_slots: T.int32, first_slot: T.int32,
    ):
        with T.Kernel(num_rows * HV) as bid:
            row = T.alloc_var("int64")
            head = T.alloc_var("int64")
            slot = T.alloc_var("int64")
            row = T.cast(bid // HV, "int64")
            head = T.cast(bid % HV, "int64")
            slot = T.cast(slots[row * slots_row], "int64")
            for v in T.serial(V):
                for k in T.serial(K):
                    at = row * state_row + head * state_head + k * state_key + v * state_value
                    state[at] = 0.0
                    if slot >= first_slot and slot < num_slots:
                        state[at] = T.cast(
                            payload[
                                slot * payload_slot * 16 + head * payload_head * 16 + v * K + k
                            ],
                            "float32",
                        )

    return state_kernel if load else materialize


def build_copy(K, V, H, HV, P, R):
    @T.prim_func
    def copy(
        payload: flat("payload", "int8"),
        cursor: flat("cursor", "int32"),
        source: flat("source", "int32"),
        target: flat("target", "int32"),
        payload_slot: T.int64, payload_head: T.int64, cursor_slot: T.int64, source_row: T.int64,
        target_row: T.int64, num_rows: T.int32, num_slots: T.int32, first_slot: T.int32,
    ):
        with T.Kernel(num_rows * HV) as bid:
            head = T.alloc_var("int64")
            a = T.alloc_var("int64")
            b = T.alloc_var("int64")
            head = T.cast(bid % HV, "int64")
            a = T.cast(source[T.cast(bid // HV, "int64") * source_row], "int64")
            b = T.cast(target[T.cast(bid // HV, "int64") * target_row], "int64")
            if a >= first_slot and a < num_slots and b >= first_slot and b < num_slots:
                for i in T.serial(K * V):
                    payload[b * payload_slot * 16 + head * payload_head * 16 + i] = payload[
                        a * payload_slot * 16 + head * payload_head * 16 + i
                    ]
                cursor[b * cursor_slot * 4 + head] = cursor[a * cursor_slot * 4 + head]

    return copy


def build_reset(K, V, H, HV, P, R):
    @T.prim_func
    def reset(
        payload: flat("payload", "int8"),
        factor: flat("factor", "float16"),
        cursor: flat("cursor", "int32"),
        phase: flat("phase", "int32"),
        slots: flat("slots", "int32"),
        payload_slot: T.int64, payload_head: T.int64, factor_slot: T.int64, factor_head: T.int64,
        cursor_slot: T.int64, phase_slot: T.int64, slots_row: T.int64, num_rows: T.int32,
        num_slots: T.int32, first_slot: T.int32,
    ):
        with T.Kernel(num_rows * HV) as bid:
            head = T.alloc_var("int64")
            slot = T.alloc_var("int64")
            head = T.cast(bid % HV, "int64")
            slot = T.cast(slots[T.cast(bid // HV, "int64") * slots_row], "int64")
            if slot >= first_slot and slot < num_slots:
                for i in T.serial(K * V):
                    payload[slot * payload_slot * 16 + head * payload_head * 16 + i] = T.int8(0)
                for i in T.serial(R * K):
                    factor[slot * factor_slot * 8 + head * factor_head * 8 + i] = T.float16(0)
                cursor[slot * cursor_slot * 4 + head] = 0
                phase[slot * phase_slot * 4 + head] = 0

    return reset


def offset(k, v, K, V):
    return v * K + k


def config(K, V, H, HV, P, R):
    return {}


def _kernel(build, **fixed):
    return _host.Kernel(lambda *a, **c: build(*a, **fixed, **c), config)


MODULE = _host.Module(
    name="tiny",
    arch="cpu",
    target="c",
    digest="0123",
    spec="abcd",
    format="exact",
    defaults={"K": 8, "V": 8, "P": 4, "R": 2},
    buffers=(
        _host.Buffer("payload", "HV", ("K*V",), "int8", "payload"),
        _host.Buffer("factor", "HV", ("R", "K"), "fp16", "compensator"),
        _host.Buffer("record_key", "H", ("P", "K"), "bf16", "record"),
        _host.Buffer("record_u", "HV", ("P", "V"), "fp32", "record"),
        _host.Buffer("cursor", "HV", (), "int32", "cursor"),
        _host.Buffer("phase", "HV", (), "int32", "cursor"),
    ),
    inputs=(
        _host.Input("key", "key", "K", "bf16"),
        _host.Input("value", "value", "V", "fp32"),
        _host.Input("bias", "value", "", "fp32", constant=True),
    ),
    output="fp32",
    kernels={
        "step": _host.Kernel(build_step, lambda *a: {"unroll": 1}),
        "flush": _kernel(build_flush),
        "reset": _kernel(build_reset),
        "copy": _kernel(build_copy),
        "materialize": _kernel(build_state, load=False),
        "load_state": _kernel(build_state, load=True),
    },
    layout=_host.Layout("plain", offset),
)
