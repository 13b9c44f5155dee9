"""bench/plots.py - bar charts and curves as SVG, with Python's own library only."""

import html
import math
from typing import Optional, Sequence, Tuple

# (name, value, text behind the bar); a value of None leaves the bar out.
Bar = Tuple[str, Optional[float], str]
Group = Tuple[str, Sequence[Bar]]
# (name of the x axis, whether it is logarithmic, for each curve its points (x, y))
Panel = Tuple[str, bool, Sequence[Sequence[Tuple[float, float]]]]

COLOURS = ["#1f6f8b", "#d08c2f", "#b5493b", "#3f8f4f", "#7a6aa8", "#8d979f"]
WIDTH, LEFT, RIGHT, HEIGHT = 760, 190, 120, 15
STYLE = (
    "text{font-family:sans-serif;fill:#222;font-size:12px}.title{font-size:14px;font-weight:bold}"
    ".name{text-anchor:end}.tick{fill:#666;font-size:11px;text-anchor:middle}.line{stroke:#222;stroke-dasharray:3 3}"
    ".grid{stroke:#e3e6e8}"
)


def ticks(low: float, high: float, log: bool) -> "list[float]":
    """Round values between low and high at which the axis is labelled."""
    if log:
        marks = [m * 10.0**e for e in range(-4, 7) for m in (1, 2, 5)]
        return [m for m in marks if low <= m <= high]
    step = 10.0 ** math.floor(math.log10(high))
    while high / step < 4:
        step /= 2
    return [step * i for i in range(int(high / step) + 1)]


def bars(title: str, groups: Sequence[Group], log: bool = False, line: Optional[float] = None) -> str:
    """Horizontal bars in groups on one axis; `line` draws a vertical mark at that value."""
    values = [v for _, group in groups for _, v, _ in group if v is not None]
    high = max(values + ([line] if line else [])) * 1.02
    low = min(values) / 1.6 if log else 0.0

    def x(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if log else value / high
        return LEFT + max(0.0, share) * (WIDTH - LEFT - RIGHT)

    names: list[str] = []
    for _, group in groups:
        names += [name for name, value, _ in group if value is not None and name not in names]
    out = legend(title, names)
    top = y = 60
    body = []
    for label, group in groups:
        shown = [bar for bar in group if bar[1] is not None]
        body.append(
            f'<text x="{LEFT - 10}" y="{y + HEIGHT * len(shown) / 2 + 4:.0f}" class="name">{html.escape(label)}</text>'
        )
        for name, value, text in shown:
            end = x(float(value or 0))
            body.append(
                f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{HEIGHT - 3}" '
                f'fill="{COLOURS[names.index(name) % len(COLOURS)]}"/>'
                f'<text x="{end + 5:.1f}" y="{y + 10}">{html.escape(text)}</text>'
            )
            y += HEIGHT
        y += 8
    for mark in ticks(low, high, log):
        out.append(f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{top - 4}" y2="{y}" class="grid"/>')
        out.append(f'<text x="{x(mark):.1f}" y="{y + 14}" class="tick">{mark:g}</text>')
    out += body
    if line is not None:
        out.append(f'<line x1="{x(line):.1f}" x2="{x(line):.1f}" y1="{top - 4}" y2="{y}" class="line"/>')
    return document(y + 24, out)


def legend(title: str, names: Sequence[str]) -> list[str]:
    """The title, and below it the names of the colours."""
    out = [f'<text x="12" y="22" class="title">{html.escape(title)}</text>']
    at = 12
    for i, name in enumerate(names):
        out.append(f'<rect x="{at}" y="34" width="11" height="11" fill="{COLOURS[i % len(COLOURS)]}"/>')
        out.append(f'<text x="{at + 16}" y="44">{html.escape(name)}</text>')
        at += 34 + 7 * len(name)
    return out


def document(tall: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{tall}" viewBox="0 0 {WIDTH} {tall}">\n'
        f'<style>{STYLE}</style>\n<rect width="{WIDTH}" height="{tall}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


COLUMNS, PANEL_WIDTH, PANEL_HEIGHT, PANEL_LEFT = 3, 248, 190, 48  # of small multiples, in pixels


def panel(of: Panel, left: int, top: int, low: float, high: float) -> list[str]:
    """One of the small multiples: its grid, its marks and its curves."""
    label, log, lines = of
    out = []
    wide, tall = PANEL_WIDTH - PANEL_LEFT - 12, PANEL_HEIGHT - 52
    xs = [x for points in lines for x, _ in points]

    def across(value: float) -> float:
        first, last, at = (math.log(v) if log else v for v in (min(xs), max(xs), value))
        return left + (at - first) / ((last - first) or 1) * wide

    def down(value: float) -> float:
        return top + math.log(high / value) / math.log(high / low) * tall

    for mark in ticks(low, high, True):
        y = down(mark)
        out.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        if f"{mark:e}"[0] == "1":
            out.append(f'<text x="{left - 5}" y="{y + 4:.1f}" class="tick" style="text-anchor:end">{mark:g}</text>')
    shown = [x for x, _ in lines[0]]
    for x in (shown[0], shown[len(shown) // 2], shown[-1]):
        out.append(f'<text x="{across(x):.1f}" y="{top + tall + 14}" class="tick">{x:g}</text>')
    out.append(f'<text x="{left + wide / 2}" y="{top + tall + 30}" class="tick">{html.escape(label)}</text>')
    for i, points in enumerate(lines):
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if i % 2 else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[i // 2]}" stroke-width="1.6"{dash}/>')
    return out


def curves(title: str, names: Sequence[str], panels: Sequence[Panel]) -> str:
    """Small multiples on one logarithmic y axis.  Every second curve is the limit of the curve before, dashed in its
    colour.
    """
    values = [y for _, _, lines in panels for points in lines for _, y in points]
    low, high = min(values) / 1.3, max(values) * 1.3
    out = legend(title + "; dashed: the limit", names)
    for number, of in enumerate(panels):
        left = number % COLUMNS * PANEL_WIDTH + PANEL_LEFT
        top = 66 + number // COLUMNS * PANEL_HEIGHT
        out += panel(of, left, top, low, high)
    return document(66 + (len(panels) + COLUMNS - 1) // COLUMNS * PANEL_HEIGHT, out)
