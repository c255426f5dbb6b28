"""What papers printed beside ours, and rounds beside other ways to train."""

from __future__ import annotations

import json

import pytest

from dht.errors import BadInput
from tests.benchmarks.__main__ import main
from tests.benchmarks.published import case, cases

QUICK = ("rivals", "micro", "--set", "round.steps=10", "--step-s", "0.2", "--rounds", "3", "--seed", "1")


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_dt_fm_s_clusters_cost_what_its_authors_code_says(name: str) -> None:
    """Within a hundredth, all five; and the search, from random layouts, finds nothing that costs more than they do."""
    found = case(name)
    assert abs(found.deviation()) < 0.01
    assert found.search_s <= 1.001 * min(found.block_s, found.striped_s)
    assert found.search_s <= found.random_s


@pytest.mark.slow
def test_the_gain_of_the_search_stands_beside_the_published_one() -> None:
    """Of the one case for which the paper prints any."""
    printed = {name: case(name).gain_deviation() for name in cases()}
    assert [name for name, off in printed.items() if off is not None] == ["case5_worldwide"]
    assert case("case5_worldwide").gain == pytest.approx(1.86, rel=0.04)
    assert printed["case5_worldwide"] == pytest.approx(1.86 / 2.7 - 1, abs=0.03)


def test_papers_are_printed_with_deviations(capsys: pytest.CaptureFixture[str]) -> None:
    """Streaming DiLoCo's table, and DT-FM's five clusters; and where the paper has no figure to compare."""
    assert main(["papers"]) == 0
    text = capsys.readouterr().out
    assert "arXiv:2501.18512" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("case")}
    assert set(rows) == set(cases())
    assert rows["case3_two_sites"][:2] == ["17.65/17.65", "16.09/16.09"]
    assert rows["case4_us_regional"][-1] == "-"
    assert rows["case5_worldwide"][-2] == "2.7"
    assert rows["case5_worldwide"][-1].endswith("%")
    assert "Of cases 1 to 4 it prints none" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
def test_rounds_stand_beside_gossip_and_delayed_nesterov(capsys: pytest.CaptureFixture[str]) -> None:
    """With what is modelled; the same again."""
    said = []
    for _ in range(2):
        assert main([*QUICK, "--upload", "5", "--download", "20"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    for words in ("rounds of 10 steps, simulated", "one-peer exponential gossip", "delayed Nesterov", "are formulas"):
        assert words in said[0]
    assert max(map(len, said[0].splitlines())) <= 80
    assert main([*QUICK, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["speeds"]) == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--peers", "65"], "there are 65 peers; take 2 to 64"),
        (["--peers", "1"], "there are 1 peers; take 2 to 64"),
        (["--step-s", "1e6"], "no round was made"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        main([*QUICK, *words])
