"""Parts of the node's pages: no script, nothing from elsewhere, every text escaped; light, dark, as wide as a phone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

STYLE = (
    ":root{color-scheme:light dark;background:canvas;color:canvastext}"
    "body{font:16px sans-serif;line-height:1.5;margin:2em auto;padding:0 1em;max-width:60em}"
    "td,th{padding:.2em min(1em,2vw) .2em 0;text-align:left;vertical-align:top}"
    "td{min-width:4.6em;white-space:pre-line}td,code{overflow-wrap:anywhere}"
    "svg{width:100%;height:auto;max-height:12em}"
)
"""Ids have no place to break, and a phone is narrower than one: they may break anywhere, but leave each cell a word's
room. Both colours are named for whoever calculates their contrast."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser runs nothing and asks for nothing, whatever is in the page."""


def whole_page(title: str, body: str) -> str:
    """`body` is markup."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        # Without it a phone shows the page as wide as a desk's.
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )


def table(rows: Iterable[tuple[Any, ...]], heading: tuple[str, ...]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heading)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if body else "<p>none</p>"


def fact_table(facts: Mapping[str, Any]) -> str:
    rows = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(fact))}</td></tr>' for name, fact in facts.items())
    return f"<table>{''.join(rows)}</table>"


def peer_cell(name: str, peer: str) -> str:
    """A peer in one cell: on a phone, its name and its id have no room beside each other."""
    return f"{name}\n{peer}" if name else peer
