"""Line plots as SVG text, for results whose pictures the documents show."""

import math

STYLE = """<style>
  text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif }
  text { font-size: 14px; fill: #1f2937 }
  .title { font-size: 18px; font-weight: 600 }
  .soft { font-size: 13.5px; fill: #4b5563 }
  .tick { font-size: 13px; fill: #4b5563 }
  .label { font-size: 13.5px; font-weight: 600 }
  .grid { stroke: #e5e7eb; stroke-width: 1 }
  .axis { stroke: #6b7280; stroke-width: 1.2 }
  .line { fill: none; stroke-width: 2.4; stroke-linejoin: round }
  .plain { stroke-dasharray: 6 5; stroke-width: 2 }
  .guide { stroke: #6b7280; stroke-width: 1.3; stroke-dasharray: 2 4 }
</style>"""


class Scale:
    def __init__(self, low, high, begin, end, log=True):
        self.low, self.high, self.begin, self.end, self.log = low, high, begin, end, log

    def __call__(self, value):
        f = math.log if self.log else float
        return self.begin + (f(value) - f(self.low)) / (f(self.high) - f(self.low)) * (self.end - self.begin)


class Panel:
    """A plot in the box (left, top)-(right, bottom) of a picture."""

    def __init__(self, box, x_range, y_range, log_y=True):
        self.left, self.top, self.right, self.bottom = box
        self.x = Scale(*x_range, self.left, self.right)
        self.y = Scale(*y_range, self.bottom, self.top, log_y)
        self.back, self.front = [], []

    def axes(self, x_ticks, y_ticks, x_title, y_title):
        """Ticks as (value, text)."""
        for value, text in x_ticks:
            at = self.x(value)
            self.back.append(f'<path class="grid" d="M{at:.1f} {self.top}V{self.bottom}"/>')
            self.text(at, self.bottom + 20, text, "tick", "middle")
        for value, text in y_ticks:
            at = self.y(value)
            self.back.append(f'<path class="grid" d="M{self.left} {at:.1f}H{self.right}"/>')
            self.text(self.left - 8, at + 4.5, text, "tick", "end")
        self.back.append(f'<path class="axis" d="M{self.left} {self.bottom}H{self.right}"/>')
        self.text((self.left + self.right) / 2, self.bottom + 42, x_title, "soft", "middle")
        self.text(self.left - 50, self.top - 14, y_title, "soft")

    def text(self, x, y, text, css, anchor="start", fill=None):
        style = f' style="fill:{fill}"' if fill else ""
        self.front.append(f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{text}</text>')

    def line(self, xs, ys, colour, css=""):
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys))
        self.front.append(f'<polyline class="line {css}" points="{points}" stroke="{colour}"/>')

    def dots(self, xs, ys, colour, hollow=False):
        style = f'r="4.5" fill="{"#ffffff" if hollow else colour}" stroke="{colour}" stroke-width="2"'
        for x, y in zip(xs, ys):
            self.front.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" {style}/>')

    def level(self, y):
        self.back.append(f'<path class="guide" d="M{self.left} {self.y(y):.1f}H{self.right}"/>')

    def labels(self, items, gap=17):
        """Names (y value, text, colour) at the right end, pushed apart where they would meet."""
        placed = []
        for y, text, colour in sorted(items, key=lambda item: self.y(item[0])):
            at = self.y(y) + 4.5
            placed.append([max(at, placed[-1][0] + gap) if placed else at, text, colour])
        for at, text, colour in placed:
            self.text(self.right + 9, at, text, "label", fill=colour)

    def svg(self):
        return "\n".join(self.back + self.front)


def picture(width, title, subtitle, description, panels, height=492):
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{description}</desc>
{STYLE}
<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="14" fill="#ffffff" stroke="#e5e7eb"/>
<text x="24" y="34" class="title">{title}</text>
<text x="24" y="57" class="soft">{subtitle}</text>
{chr(10).join(panel.svg() for panel in panels)}
</svg>
"""
