"""Records `hubbub demo --data digits` as an animated SVG, docs/img/demo.svg, which takes nothing from elsewhere.

The frames are those that the terminal gets, exported by rich. A line that several frames share is stored once; CSS
shows one frame after the other, or the last alone where a reader wants no motion.
"""

from __future__ import annotations

import asyncio
import io
import re
from html import escape
from pathlib import Path
from unittest import mock

from rich.console import Console, RenderableType
from rich.text import Text

from hubbub_cli.formatting import without_log_lines
from hubbub_local import demo_screen
from hubbub_local.demo import run_demo
from hubbub_local.demo_board import Board
from hubbub_local.options import DemoOptions

OUT = Path(__file__).parents[1] / "docs" / "img" / "demo.svg"
COMMAND = "hubbub demo --data digits --rounds 4"
OPTIONS = DemoOptions(data="digits", rounds=4)
WIDTH, HEIGHT = 96, 28
FRAME_S, LAST_S = 0.12, 5.0
STILL_S = 0.6
"""Seconds for which a frame is left out in which nothing is on its way."""
CHAR_WIDTH, LINE_HEIGHT, MARGIN, BAR = 12.2, 24.4, 16.0, 44.0

SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"
 aria-label="{label}">
<style>
text {{ font: 20px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }}
{styles}
.f {{ visibility: hidden; animation: show {total:g}s step-end infinite; }}
.last {{ animation-name: show-last; }}
@keyframes show {{ 0% {{ visibility: visible; }} {part:.4f}% {{ visibility: hidden; }} }}
@keyframes show-last {{ 0% {{ visibility: visible; }} {last_part:.4f}% {{ visibility: hidden; }} }}
@media (prefers-reduced-motion: reduce) {{
  .f {{ animation: none; }}
  .last {{ visibility: visible; }}
}}
</style>
<rect width="100%" height="100%" rx="10" fill="#292929"/>
<g fill="#6b6b6b"><circle cx="24" cy="22" r="7"/><circle cx="46" cy="22" r="7"/><circle cx="68" cy="22" r="7"/></g>
<text x="50%" y="29" text-anchor="middle" fill="#c5c8c6">$ {command}</text>
<defs>
{lines}
</defs>
<g transform="translate({margin:g} {bar:g})">
{frames}
</g>
</svg>
"""
LABEL = (
    "The demo in a terminal: clients train, their shares move to two aggregators, sums come back, and beside that "
    "the bytes of all messages, those of FedAvg, and the accuracy of each round"
)


def main() -> None:
    """Run the demo, and write what its terminal showed."""
    frames = record()
    OUT.write_text(animate(frames, WIDTH, HEIGHT), encoding="utf-8")
    print(f"{OUT}: {len(frames)} frames, {OUT.stat().st_size:,} bytes")


def record() -> list[RenderableType]:
    """Return the pictures of a demo, fewer of them where little moves."""
    frames: list[RenderableType] = []
    kept_s = 0.0
    draw = demo_screen.draw

    def keep(board: Board, width: int, height: int, now_s: float) -> RenderableType:
        nonlocal kept_s
        drawn = draw(board, width, height, now_s)
        is_moving = any(0 <= flight.progress(now_s) < 1 for flight in board.flights)
        if is_moving or now_s - kept_s >= STILL_S:
            kept_s = now_s
            frames.append(drawn)
        return drawn

    console = Console(file=io.StringIO(), force_terminal=True, width=WIDTH, height=HEIGHT)
    with mock.patch.object(demo_screen, "draw", keep), without_log_lines():
        asyncio.run(run_demo(OPTIONS, console))
    return frames


def animate(frames: list[RenderableType], width: int, height: int) -> str:
    """Draw frames of so many columns and lines as one SVG that shows them in turn."""
    styles, rows = export(frames, width, height)
    names: dict[str, str] = {}
    groups = []
    for number in range(len(frames)):
        used = "".join(
            f'<use href="#{names.setdefault(row, f"l{len(names)}")}" y="{line * LINE_HEIGHT:g}"/>'
            for line, row in enumerate(rows[number * height : (number + 1) * height])
            if row
        )
        kind = "f last" if number == len(frames) - 1 else "f"
        groups.append(f'<g class="{kind}" style="animation-delay: {number * FRAME_S:.2f}s">{used}</g>')
    total = (len(frames) - 1) * FRAME_S + LAST_S
    return SVG.format(
        width=width * CHAR_WIDTH + 2 * MARGIN,
        height=height * LINE_HEIGHT + BAR + MARGIN,
        label=LABEL,
        styles=styles,
        total=total,
        part=100 * FRAME_S / total,
        last_part=100 * LAST_S / total,
        command=escape(COMMAND),
        lines="\n".join(f'<g id="{name}">{row}</g>' for row, name in names.items()),
        margin=MARGIN,
        bar=BAR,
        frames="\n".join(groups),
    )


def export(frames: list[RenderableType], width: int, height: int) -> tuple[str, list[str]]:
    """Return the styles of all frames, and the text elements of each of their lines."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, record=True, color_system="truecolor")
    for frame in frames:
        lines = console.render_lines(frame, pad=True)
        blank = [*console.render_lines(Text(" " * width))] * max(0, height - len(lines))
        for line in [*lines, *blank][:height]:
            console.print(Text.assemble(*((part.text, part.style or "") for part in line)), soft_wrap=True)
    styles, texts = console.export_svg(code_format="{styles}\0{matrix}", unique_id="t").split("\0")
    rows = [""] * (len(frames) * height)
    for text in re.findall(r"<text .*?</text>", texts, re.DOTALL):
        if not re.sub("<[^>]*>", "", text).strip():
            continue
        [y] = re.findall(r' y="([\d.]+)"', text)
        bare = re.sub(r' (y|clip-path)="[^"]*"', "", text).replace("&#160;", "\u00a0")
        rows[int(float(y) / LINE_HEIGHT)] += bare.replace("<text ", '<text y="20" ')
    return styles, rows


if __name__ == "__main__":
    main()
