"""Random rational data for a recurrence."""

from __future__ import annotations

import random
from fractions import Fraction

from leapgen.algebra.exact import Token
from leapgen.algebra.rational import Number
from leapgen.algebra.recurrence import Recurrence
from leapgen.tensors import Axis


def random_number(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(-6, 6), rng.randint(1, 4))


def random_vector(rng: random.Random, size: int) -> tuple[Fraction, ...]:
    return tuple(random_number(rng) for _ in range(size))


def random_matrix(rng: random.Random, keys: int, columns: int) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(random_vector(rng, columns) for _ in range(keys))


def random_decay(rng: random.Random) -> Fraction:
    return Fraction(rng.randint(0, 8), 8)


def random_tokens(
    rng: random.Random, recurrence: Recurrence, count: int, keys: int, columns: int
) -> list[Token]:
    """Inputs whose name starts with g are log decays and are given by their exponential."""
    sizes = {Axis.KEY: keys, Axis.VALUE: columns}
    fixed: dict[str, Number] = {}  # a constant is the same for every token
    tokens = []
    for _ in range(count):
        values: dict[str, Number] = {}
        decays: dict[str, Number] = {}
        for item in recurrence.inputs:
            draw = random_decay if item.name.startswith("g") else random_number
            number: Number = draw(rng)
            if item.axis is not Axis.SCALAR:
                number = tuple(draw(rng) for _ in range(sizes[item.axis]))
            if item.constant:
                number = fixed.setdefault(item.name, number)
            (decays if item.name.startswith("g") else values)[item.name] = number
        tokens.append(Token(values, decays))
    return tokens
