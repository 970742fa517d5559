"""Picture of a running federation, drawn from its board for a terminal of any size.

Shares move from clients to aggregators when a receipt says that they have arrived, sums back when they are out.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.align import Align
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hubbub.ids import PartyId
from hubbub_cli.formatting import show_bytes, show_duration, show_metric
from hubbub_coordinator.accounts import Account
from hubbub_local.demo_board import Board
from hubbub_local.report import compare
from hubbub_trainer.task_runner import TRAINING

SHARE, SUM, HOLDS, LACKS = "●", "◆", "●", "○"
COLOURS = ("cyan", "magenta", "yellow", "blue")
"""Of aggregators, and of the shares for them; they repeat."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
HALVES = " ▏▎▍▌▋▊▉█"
STATUS_WIDTH = 20
FEW = 12
"""Clients that an aggregator has a mark for; more are a number."""
TALL = 35
MOST_FIGURES = 12
LEAST = 20
"""Lines below which bytes and metric are left out."""
FRAME = 2
"""Lines of a panel around its content."""
HEADER, FOOTER = 2, 1
FEWEST_ROUNDS = 3


def draw(board: Board, width: int, height: int, now_s: float) -> RenderableType:
    """Draw the board in at most so many columns and exactly so many lines."""
    is_tall, has_figures = height >= TALL, height >= LEAST
    figures = (7 if is_tall else 3) if has_figures else 0
    spare = height - HEADER - FOOTER - (figures + FRAME if figures else 0)
    clients = len(board.manifest.clients)
    spacing = 2 if is_tall and 2 * clients <= spare // 2 else 1
    lines = min(spacing * clients, max(spare - 2 * FRAME - 1 - FEWEST_ROUNDS, 1))
    parts: list[RenderableType] = [_draw_header(board, now_s), _draw_run(board)]
    parts.append(_draw_parties(board, width, lines, spacing, now_s))
    rows = spare - lines - FRAME
    if figures:
        # What the table of rounds will never fill.
        unused = max(0, min(rows - FRAME - 1 - board.manifest.rounds, MOST_FIGURES - figures))
        figures, rows = figures + unused, rows - unused
        pair = Table.grid(expand=True)
        pair.add_column(ratio=1)
        pair.add_column(ratio=1)
        half = width // 2 - 4
        pair.add_row(_draw_bytes(board, half, figures), _draw_metric(board, half, figures))
        parts.append(pair)
    if rows > FRAME:
        parts.append(_draw_rounds(board, rows))
    return Group(*parts, Text(board.footer, style="dim", no_wrap=True, overflow="ellipsis"))


def _draw_header(board: Board, now_s: float) -> Table:
    left = Text(f" {board.title or 'Hubbub'}", style="bold")
    left.append(f"   {board.manifest.strategy} on {board.manifest.task}", style="not bold dim")
    header = Table.grid(expand=True)
    header.add_column(no_wrap=True, ratio=1)
    header.add_column(no_wrap=True, justify="right")
    header.add_row(left, _describe_progress(board, now_s).append(" "))
    return header


def _describe_progress(board: Board, now_s: float) -> Text:
    if board.round == 0:
        parties = len(board.manifest.clients) + len(board.manifest.aggregators)
        joined = f"Enrolling: {board.joined} of {parties} parties have joined"
        return Text("The run goes on where it was stopped" if board.work else joined, style="bold")
    line = Text(f"Round {board.round} of {board.manifest.rounds}", style="bold")
    left_s = board.estimate_left_s(now_s)
    if board.is_paused:
        line.append("   paused", style="bold yellow")
    elif board.is_pausing:
        line.append("   pauses after this round", style="yellow")
    elif left_s is not None and left_s > 0:
        may_end_before = board.manifest.target is not None or board.manifest.patience
        line.append(
            f"   {'at most' if may_end_before else 'about'} {show_duration(left_s)} left", style="not bold"
        )
    return line


def _draw_run(board: Board) -> Table:
    clients = board.manifest.clients
    trained = sum(done / total for _, done, total in board.work.values() if total) / len(clients)
    begun = 0.0 if board.ended == board.round else 0.9 * min(trained, 1.0)
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_row(ProgressBar(total=board.manifest.rounds, completed=board.ended + begun, complete_style="green"))
    return row


# Parties ------------------------------------------------------------------------------------------------------


def _draw_parties(board: Board, width: int, lines: int, spacing: int, now_s: float) -> Panel:
    """Draw clients on the left, aggregators on the right, and what is on its way between them."""
    clients, servers = board.manifest.clients, board.manifest.aggregators
    shown = clients if spacing * len(clients) <= lines else clients[: max(lines - 1, 0)]
    row_of = {client: min(place * spacing, lines - 1) for place, client in enumerate(clients)}
    row_of_server = {
        server: min(int((place + 0.5) * lines / len(servers)), lines - 1) for place, server in enumerate(servers)
    }
    marks = {server: _draw_holdings(board, server, now_s) for server in servers}
    inner, names = width - 4, max(map(len, clients))
    right = max(mark.cell_len for mark in marks.values())
    bar = max(6, min(24, (inner - names - STATUS_WIDTH - right) // 2 - 4))
    lane = max(0, inner - names - 1 - bar - 1 - STATUS_WIDTH - 2 - right)
    moving = _place_flights(board, row_of, row_of_server, lane, now_s)
    rows = [Table.grid(padding=0) for _ in range(lines)]
    client_at = {row_of[client]: client for client in shown}
    server_at = {row: server for server, row in row_of_server.items()}
    for number, row in enumerate(rows):
        for size in (names + 1, bar, 1 + STATUS_WIDTH, lane + 2, right):
            row.add_column(width=size, no_wrap=True)
        left: tuple[RenderableType, ...] = ("", "", "")
        if number in client_at:
            left = _draw_client(board, client_at[number], bar)
        elif len(shown) < len(clients) and number == lines - 1:
            left = ("…", f"{len(clients) - len(shown)} more", "")
        way = Text(" ")
        for column in range(lane):
            way.append(*moving.get((column, number), (" ", "")))
        row.add_row(*left, way, marks[server_at[number]] if number in server_at else "")
    phase = f"{board.phase}: {board.state}" if board.phase else board.state
    return Panel(Group(*rows), title=phase, title_align="left", box=box.ROUNDED, border_style="dim")


def _place_flights(
    board: Board, row_of: dict[PartyId, int], row_of_server: dict[PartyId, int], lane: int, now_s: float
) -> dict[tuple[int, int], tuple[str, str]]:
    """Return a character and its style for each place between clients and aggregators that has one."""
    found: dict[tuple[int, int], tuple[str, str]] = {}
    for flight in board.flights:
        part = flight.progress(now_s)
        if not 0 <= part < 1:
            continue
        along = 1 - part if flight.is_sum else part
        begin, end = row_of[flight.client], row_of_server[flight.aggregator]
        place = int(along * lane), round(begin + along * (end - begin))
        found[place] = (SUM, "bold green") if flight.is_sum else (SHARE, _colour_of(board, flight.aggregator))
    return found


def _colour_of(board: Board, server: PartyId) -> str:
    return COLOURS[board.manifest.aggregators.index(server) % len(COLOURS)]


def _draw_client(board: Board, client: PartyId, width: int) -> tuple[RenderableType, ...]:
    _, done, total = board.work.get(client, (TRAINING, 0, board.manifest.local_steps))
    style = "green" if client in board.applied else "cyan"
    bar = ProgressBar(total=total, completed=done, width=width, complete_style=style, finished_style=style)
    return Text(client), bar, Text(" ").append(_describe_client(board, client))


def _describe_client(board: Board, client: PartyId) -> Text:
    delivered = len(board.held.get(client, ()))
    what, done, total = board.work.get(client, ("", 0, 0))
    if client in board.applied:
        return Text("applied the sum", style="green")
    if done < total:
        return Text(what if board.has_own_pace and what == TRAINING else f"{what} {done}/{total}", style="dim")
    if delivered:
        style = "cyan" if delivered == board.servers else "yellow"
        return Text(f"delivered to {delivered} of {board.servers}", style=style)
    if board.round == 0:
        return Text("loading its task", style="dim")
    return Text("sharing", style="yellow") if what else Text("waiting for a core", style="dim")


def _draw_holdings(board: Board, server: PartyId, now_s: float) -> Text:
    """Draw an aggregator with a mark for each client whose share it holds, once that is seen to have arrived."""
    away = {
        each.client
        for each in board.flights
        if each.aggregator == server and not each.is_sum and each.progress(now_s) < 1
    }
    clients, colour = board.manifest.clients, _colour_of(board, server)
    holds = [server in board.held.get(client, ()) and client not in away for client in clients]
    line = Text(server, style=f"bold {colour}" if server in board.released else colour).append(" ")
    if len(clients) > FEW:
        return line.append(f"{sum(holds)}/{len(clients)}".rjust(2 * len(str(len(clients))) + 1))
    return line.append("".join(HOLDS if each else LACKS for each in holds), style=colour)


# Figures ------------------------------------------------------------------------------------------------------


def _frame(content: RenderableType, title: str, lines: int) -> Panel:
    placed = Align(content, vertical="middle", height=lines)
    return Panel(placed, title=title, title_align="left", box=box.ROUNDED, border_style="dim")


def _draw_bytes(board: Board, width: int, lines: int) -> Panel:
    """Draw the bytes of all ended rounds as bars, beside those of FedAvg."""
    ours, fedavg = sum(board.sent.values()), sum(each.fedavg_wire_bytes for each in board.accounts)
    sizes = {"this run": ours, "FedAvg": fedavg}
    room = max(width - 8 - 1 - 1 - 10, 1)
    rows = [
        Text.assemble(
            f"{name:8} ",
            (_draw_bar(size / max(*sizes.values(), 1), room), "green" if name == "this run" else "dim"),
            f" {show_bytes(size):>10}",
        )
        for name, size in sizes.items()
    ]
    told = compare(ours, fedavg) if ours and fedavg else "after the first round"
    return _frame(
        _spread([*rows, Text(told, style="bold" if ours else "dim")], lines), "all messages of ended rounds", lines
    )


def _draw_bar(part: float, width: int) -> str:
    eighths = round(part * width * 8)
    # Whatever is sent is seen.
    full, rest = divmod(max(eighths, 1) if part else 0, 8)
    return ("█" * full + HALVES[rest].strip()).ljust(width)


def _spread(rows: list[Text], lines: int) -> Group:
    """Stack rows, with empty lines between them if there is room."""
    if lines < 2 * len(rows) - 1:
        return Group(*rows)
    return Group(*[part for row in rows for part in (row, Text())][:-1])


def _draw_metric(board: Board, width: int, lines: int) -> Panel:
    """Draw the headline metric: its last and its best value, and a bar for each round."""
    headline = board.manifest.headline
    if headline is None:
        return _frame(Text("nothing is scored", style="dim"), "metric", lines)
    scored = [
        (each.round, each.metrics[headline.name]) for each in board.accounts if headline.name in each.metrics
    ]
    if not scored:
        return _frame(Text("after the first scored round", style="dim"), headline.name, lines)
    pick = max if headline.higher_is_better else min
    round_number, best = pick(scored, key=lambda each: each[1])
    last = Text(show_metric(headline.name, scored[-1][1]), style="bold")
    last.append(f"   best {show_metric(headline.name, best)} in round {round_number}", style="not bold dim")
    bars = draw_sparkline([value for _, value in scored], width, lines - 1, columns=board.manifest.rounds)
    return _frame(Group(last, *(Text(line, style="cyan") for line in bars)), headline.name, lines)


def draw_sparkline(values: list[float], width: int, lines: int, *, columns: int) -> list[str]:
    """Draw values as bars from the smallest to the largest; the last ones if there are more than fit.

    `columns` is how many there may be in the end: as many fit, if they can.
    """
    thickness = max(1, min(4, width // max(columns, 1)))
    values = values[-(width // thickness) :]
    low, high = min(values), max(values)
    steps = 8 * lines - 1
    heights = [1 + round(steps * (value - low) / (high - low)) if high > low else 8 for value in values]
    bar = thickness - 1 if thickness > 1 else 1
    return [
        "".join(EIGHTHS[max(0, min(8, height - 8 * line))] * bar + " " * (thickness - bar) for height in heights)
        for line in reversed(range(lines))
    ]


def _draw_rounds(board: Board, rows: int) -> Panel:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    names = list(dict.fromkeys(name for each in board.accounts for name in each.metrics))
    headline = board.manifest.headline
    # One more than the headline, if there is one.
    shown = sorted(names, key=lambda name: headline is None or name != headline.name)[:2]
    for column in ("round", "members", *shown, "payload", "all messages", "FedAvg", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    fitting = rows - FRAME - 1
    for each in board.accounts[-fitting:]:
        table.add_row(*_describe_round(board, each, shown))
    content = table if board.accounts else Text("after the first round", style="dim")
    return Panel(content, title="rounds", title_align="left", box=box.ROUNDED, border_style="dim", height=rows)


def _describe_round(board: Board, each: Account, shown: Iterable[str]) -> list[str]:
    return [
        str(each.round),
        str(len(each.members)),
        *(show_metric(name, each.metrics.get(name)) for name in shown),
        show_bytes(sum(cost.payload_bits for cost in each.costs.values()) / 8),
        show_bytes(board.sent.get(each.round, 0)),
        show_bytes(each.fedavg_wire_bytes),
        f"{each.round_s:.1f} s",
    ]
