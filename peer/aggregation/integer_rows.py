"""From shares to a row of the weights table: integers over 65,536."""

from __future__ import annotations

from collections.abc import Sequence

WEIGHT_ONE = 65_536


def integer_weights(shares: Sequence[int], factors: Sequence[int] = ()) -> tuple[int, ...]:
    """⌊65,536 · share · factor / their sum⌋; the sum of the row is 65,536 at most.

    `factors` are what the judge leaves of each share, in any unit; without them all are equal. Whoever would count
    nothing only because its share is tiny gets 1, which the others give in proportion; whoever would because of its
    factor (less than half of the largest) gets 0.
    """
    factors = factors or (1,) * len(shares)
    products = [share * factor for share, factor in zip(shares, factors, strict=True)]
    total, most = sum(products), max(factors, default=0)
    among = sum(share for share, factor in zip(shares, factors, strict=True) if factor)
    least = WEIGHT_ONE - len(shares)  # what is left to share out if everybody is raised to 1
    raised = [
        product > 0 and product * least < total and share * least < among and 2 * factor >= most
        for product, share, factor in zip(products, shares, factors, strict=True)
    ]
    rest = WEIGHT_ONE - sum(raised)
    return tuple(
        1 if tiny else rest * product // total if product else 0 for tiny, product in zip(raised, products, strict=True)
    )
