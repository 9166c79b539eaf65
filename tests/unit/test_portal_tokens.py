"""The design tokens: enough contrast in both themes, and style sheets that use nothing else."""

from __future__ import annotations

import re

import pytest

from tests.support.environment import ROOT

STATIC = ROOT / "portal" / "static" / "portal"
TOKENS = (STATIC / "tokens.css").read_text()
COLOUR = re.compile(
    r"--([a-z0-9-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", re.IGNORECASE
)
DECLARATION = re.compile(
    r"(?<![\w-])(font-size|font|color|background|stroke|fill):\s*([^;}]+)"
)
# Contrast that WCAG 2.2 requires of text (1.4.3), and of borders of fields and lines of
# charts (1.4.11).
TEXT, SHAPE = 4.5, 3.0
GROUNDS = ("ground", "surface", "raised")
PAIRS = [
    *((ink, ground, TEXT) for ink in ("ink", "soft", "accent") for ground in GROUNDS),
    *((tone, "surface", TEXT) for tone in ("ok", "warn", "bad")),
    *((tone, f"{tone}-soft", TEXT) for tone in ("ok", "warn", "bad")),
    # A verdict and a note have their text on the soft colour of their state.
    *(("ink", f"{tone}-soft", TEXT) for tone in ("ok", "warn", "bad", "accent")),
    ("accent", "accent-soft", TEXT),
    # A problem of a verdict has the icon of its own state.
    ("warn", "bad-soft", SHAPE),
    ("accent-ink", "accent", TEXT),
    ("surface", "bad", TEXT),
    *((ink, "side", TEXT) for ink in ("side-ink", "side-head", "side-bright")),
    ("side-bright", "side-on", TEXT),
    *(("line-strong", ground, SHAPE) for ground in ("surface", "ground")),
    *((f"series-{number}", "surface", SHAPE) for number in (1, 2, 3)),
    # A focus ring stands on any ground.
    *(("accent", ground, SHAPE) for ground in GROUNDS),
]


def colours(theme: str) -> dict[str, str]:
    """Return the colours of a theme, as #rrggbb by name."""
    return {
        name: light if theme == "light" else dark
        for name, light, dark in COLOUR.findall(TOKENS)
    }


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_contrast_of_known_colours_is_computed_as_wcag_defines_it() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "ground", "required"), PAIRS)
def test_colours_have_enough_contrast(
    theme: str, ink: str, ground: str, required: float
) -> None:
    palette = colours(theme)
    assert contrast(palette[ink], palette[ground]) >= required


@pytest.mark.parametrize("sheet", ["portal.css", "admin.css"])
def test_style_sheets_use_the_scale_of_type_and_the_colours_of_tokens(sheet: str) -> None:
    declarations = DECLARATION.findall((STATIC / sheet).read_text())
    assert len(declarations) > 20
    sizes = [value for name, value in declarations if name == "font-size"]
    assert [size for size in sizes if size != "inherit" and "var(--text-" not in size] == []
    literal = re.compile(r"#[0-9a-f]{3,8}\b|\brgb", re.IGNORECASE)
    paints = [value for name, value in declarations if not name.startswith("font")]
    # The ground of a dialog darkens the page in both themes.
    assert [paint for paint in paints if literal.search(paint)] == ["rgb(0 0 0 / .45)"][
        : sheet == "portal.css"
    ]


def test_every_token_that_a_style_sheet_names_exists() -> None:
    defined = set(re.findall(r"^\s*--([a-z0-9-]+):", TOKENS, re.MULTILINE))
    for sheet in ("tokens.css", "portal.css", "admin.css"):
        used = set(re.findall(r"var\(--([a-z0-9-]+)", (STATIC / sheet).read_text()))
        assert used <= defined, sheet
