"""Panels as SVG: axes with round numbers, a line and a band for each curve, and a description for screen readers."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from swe_trainers.report.panels import Curve, Panel

__all__ = ["draw", "labels", "number", "ticks"]

WIDTH, HEIGHT = 460, 224
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 10, 40


def draw(panel: Panel) -> str:
    """The diagram of a panel; the page's style sheet colours the curves by the classes `c1` to `c6`."""
    lows, highs = _stacks(panel) if panel.stacked else ([c.low for c in panel.curves], [c.high for c in panel.curves])
    tops = highs if panel.stacked else [c.values for c in panel.curves]
    first = min(c.updates[0] for c in panel.curves)
    last = max(c.updates[-1] for c in panel.curves)
    low, high = min(map(min, lows)), max(map(max, highs))
    if panel.fraction:
        low, high = min(0.0, low), max(1.0, high) if high > 0.3 else max(high, 0.05)
    if panel.stacked:
        low = 0.0
    marks = ticks(low, high)
    low, high = min(low, marks[0]), max(high, marks[-1])

    def x(update: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((update - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    sizes = f'data-left="{LEFT}" data-right="{WIDTH - RIGHT}" data-first="{first}" data-last="{last}"'
    description = html.escape(_description(panel), quote=True)
    lines = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{description}" {sizes}>']
    for mark, label in zip(marks, labels(marks), strict=True):
        lines.append(f'<path class="grid" d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text class="tick" x="{LEFT - 7}" y="{y(mark) + 3.5:.1f}" text-anchor="end">{label}</text>')
    for mark in ticks(first, last, whole=True):
        if first <= mark <= last:
            at = f'x="{x(mark):.1f}" y="{HEIGHT - BOTTOM + 18}"'
            lines.append(f'<text class="tick" {at} text-anchor="middle">{number(mark)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - 5}" text-anchor="middle">update</text>')
    for index, c in enumerate(panel.curves):
        colour = f"c{index + 1}"
        xs = [x(update) for update in c.updates]
        down, up = [y(value) for value in lows[index]], [y(value) for value in highs[index]]
        if panel.stacked or any(a != b for a, b in zip(down, up, strict=True)):
            shape = "M" + "L".join(_points(xs, up)) + "L" + "L".join(reversed(_points(xs, down))) + "Z"
            lines.append(f'<path class="{"layer" if panel.stacked else "band"} {colour}" d="{shape}"/>')
        ys = [y(value) for value in tops[index]]
        if len(xs) == 1:
            lines.append(f'<circle class="point {colour}" cx="{xs[0]:.1f}" cy="{ys[0]:.1f}" r="3"/>')
        else:
            lines.append(f'<path class="line {colour}" d="M{"L".join(_points(xs, ys))}"/>')
        if 1 < len(xs) <= 24:
            dots = (f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2"/>' for a, b in zip(xs, ys, strict=True))
            lines.append(f'<g class="point {colour}">{"".join(dots)}</g>')
    return "".join([*lines, '<path class="cursor"/></svg>'])


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About four round numbers from `low` to `high`.

    Args:
        low, high: finite; if they are equal, the axis extends around them.
        whole: whole numbers only.
    """
    if high - low < 1e-12 * max(1.0, abs(high)):
        room = abs(high) * 0.1 if abs(high) > 1e-9 else 1.0
        low, high = low - room, high + room
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
    start = math.floor(low / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(start, math.ceil(high / step - 1e-9) + 1)]


def labels(marks: Sequence[float]) -> list[str]:
    """Labels of an axis with as few digits as distinguish them."""
    for digits in range(3, 10):
        found = [number(mark, digits) for mark in marks]
        if len(set(found)) == len(marks):
            break
    return found


def number(value: float, digits: int = 3) -> str:
    """A number with this many significant digits, in few characters."""
    if value == 0:
        return "0"
    size = abs(value)
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if size >= 10 * scale or (size >= scale and unit == "M"):
            return f"{value / scale:.{digits}g}{unit}".replace("-", "−")
    kept = digits + 1 if size >= 1000 else digits if size >= 1e-3 else digits - 1
    return f"{value:.{kept}g}".replace("e-0", "e-").replace("-", "−")


def _stacks(panel: Panel) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Lower and upper borders of stacked curves, at their own updates."""
    lows: list[tuple[float, ...]] = []
    highs: list[tuple[float, ...]] = []
    for index, c in enumerate(panel.curves):
        under = [sum(_at(other, update) for other in panel.curves[:index]) for update in c.updates]
        lows.append(tuple(under))
        highs.append(tuple(a + b for a, b in zip(under, c.values, strict=True)))
    return lows, highs


def _at(c: Curve, update: int) -> float:
    """The value at an update, or at the last update before it."""
    before = [value for at, value in zip(c.updates, c.values, strict=True) if at <= update]
    return before[-1] if before else c.values[0]


def _description(panel: Panel) -> str:
    curves = [
        f"{c.name} from {number(c.values[0])} at update {c.updates[0]} to {number(c.values[-1])} at update "
        f"{c.updates[-1]}, at least {number(min(c.low))}, at most {number(max(c.high))}"
        for c in panel.curves
    ]
    return f"{panel.title}: {'; '.join(curves)}."


def _points(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
    return [f"{a:.1f} {b:.1f}" for a, b in zip(xs, ys, strict=True)]
