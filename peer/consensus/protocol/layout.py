"""How a model is cut: layers into fragments and parts, and parts onto reducers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A run of elements of one layer: what one message carries and one reducer averages."""

    layer: int
    start: int
    """First element in the flat parameter vector."""
    size: int
    """Elements."""


def cut(layer_sizes: Sequence[int], part_elements: int) -> tuple[Part, ...]:
    """Parts in model order, at most `part_elements` each, never across a layer."""
    parts = []
    start = 0
    for layer, size in enumerate(layer_sizes):
        pieces = -(-size // part_elements)
        for piece in range(pieces):
            first, last = size * piece // pieces, size * (piece + 1) // pieces
            parts.append(Part(layer, start + first, last - first))
        start += size
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Fragment:
    """What one round averages: some whole layers of the model. A round counts its parts from 0."""

    parts: tuple[Part, ...]
    """In model order, with the numbers that their layers have in the model."""
    numbers: tuple[int, ...]
    """The place of each part among all parts of the model."""
    layers: tuple[int, ...]
    """Ascending."""
    rows: tuple[int, ...]
    """The place of each part's layer among `layers`: a round's decisions per layer have one row for each of them."""


def divide(parts: Sequence[Part], fragments: int) -> tuple[Fragment, ...]:
    """All fragments of a model that is cut into `parts`; round r averages number r mod `fragments`.

    Raises ValueError for more fragments than layers.
    """
    owners = share_out(layer_sizes(parts), fragments)
    return tuple(_fragment(parts, owners, fragment) for fragment in range(fragments))


def share_out(layer_sizes: Sequence[int], fragments: int) -> tuple[int, ...]:
    """The fragment of each layer. Raises ValueError for more fragments than layers.

    The largest layer comes first, each goes to the fragment that is smallest so far: the largest fragment, and with it
    the traffic of a round, is at most 4/3 of the least possible (Graham 1969). Layers of one size go around in model
    order, so that a fragment is spread over the depth of the model, as in streaming DiLoCo (arXiv:2501.18512).
    """
    if fragments > len(layer_sizes):
        raise ValueError(f"a model of {len(layer_sizes)} layers cannot be averaged in {fragments} fragments")
    loads, owners = [0] * fragments, [0] * len(layer_sizes)
    for layer in sorted(range(len(layer_sizes)), key=lambda layer: (-layer_sizes[layer], layer)):
        owners[layer] = loads.index(min(loads))
        loads[owners[layer]] += layer_sizes[layer]
    return tuple(owners)


def turns(fragment: int, fragments: int, round: int) -> int:
    """How many rounds before `round` averaged this fragment: the time in which its work ages."""
    return -((fragment - round) // fragments)


def layer_sizes(parts: Sequence[Part]) -> tuple[int, ...]:
    """Elements of each layer of a model that is cut into `parts`."""
    sizes = [0] * (parts[-1].layer + 1)
    for part in parts:
        sizes[part.layer] += part.size
    return tuple(sizes)


def _fragment(parts: Sequence[Part], owners: Sequence[int], fragment: int) -> Fragment:
    numbers = tuple(number for number, part in enumerate(parts) if owners[part.layer] == fragment)
    layers = tuple(layer for layer, owner in enumerate(owners) if owner == fragment)
    places = {layer: row for row, layer in enumerate(layers)}
    chosen = tuple(parts[number] for number in numbers)
    return Fragment(chosen, numbers, layers, tuple(places[part.layer] for part in chosen))


def shares_of(upload_bps: Sequence[int]) -> list[int]:
    """The share of parts that each member reduces, in proportion to the upload that it declares (0: unknown, taken
    as usual). Nobody can check that: a member that claims any bandwidth gets at most twice the usual share, the
    lower median."""
    known = sorted(bps for bps in upload_bps if bps > 0)
    usual = known[(len(known) - 1) // 2] if known else 1
    return [min(bps or usual, 2 * usual) for bps in upload_bps]


def assign(parts: Sequence[Part], members: Sequence[str], shares: Sequence[int], turn: int) -> tuple[str, ...]:
    """The reducer of each part: contiguous runs in proportion to the members' `shares`, or equal ones if all are 0.
    The rotation by `turn`, which counts rounds of a fragment and ballots, moves the runs over the members, so that
    nobody always reduces the same layers and no coordinator chooses. All peers compute this alike: only integers,
    members in their given order."""
    shares = shares if any(shares) else [1] * len(members)
    turn %= len(members)
    ranked = [*range(turn, len(members)), *range(turn)]
    total_share, total_size = sum(shares), sum(part.size for part in parts)
    owners: list[str] = []
    place, upto, before = 0, shares[ranked[0]], 0
    for part in parts:
        middle = 2 * before + part.size
        while place + 1 < len(ranked) and middle * total_share >= 2 * total_size * upto:
            place += 1
            upto += shares[ranked[place]]
        owners.append(members[ranked[place]])
        before += part.size
    return tuple(owners)
