#!/usr/bin/env python3
"""Runs commands on a terminal of their own and draws what stands on its screen as an SVG.

    scripts/terminal-svg.py OUT.svg [--until REGEX] [--unseen COMMAND]... [--then LINES COMMAND]... -- COMMAND...

Waits until the screen of COMMAND matches REGEX (or it ends), runs each --unseen command, then each --then command in a shell
on a terminal and shows these with at most LINES lines of their output, draws, and ends COMMAND with SIGINT. So the picture in the README is what the
program printed, not a drawing of it. The terminal is narrow: the picture has to be readable on a phone.
"""

import argparse
import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

COLUMNS, ROWS = 50, 60
CELL_WIDTH, CELL_HEIGHT, MARGIN, FONT = 9.6, 21, 10, 16
COLORS = {31: "#f47067", 32: "#8ddb8c", 33: "#daaa3f", 34: "#6cb6ff", 35: "#dcbdfb", 36: "#76e3ea", 90: "#768390"}
COLORS |= {91: "#f47067", 92: "#8ddb8c", 93: "#daaa3f", 94: "#6cb6ff", 95: "#dcbdfb", 96: "#76e3ea"}
ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Screen:
    """As much of a terminal as command lines use: text, colours, cursor up, erase."""

    def __init__(self):
        self.lines, self.row, self.column, self.style = [[]], 0, 0, (None, False)

    def feed(self, text):
        at = 0
        while at < len(text):
            escape = ESCAPE.match(text, at)
            if escape:
                self.escape(escape[1], escape[2])
                at = escape.end()
                continue
            self.put(text[at])
            at += 1

    def put(self, char):
        if char == "\n":
            self.row += 1
            while len(self.lines) <= self.row:
                self.lines.append([])
        elif char == "\r":
            self.column = 0
        elif char >= " ":
            if self.column >= COLUMNS:
                self.put("\n")
                self.column = 0
            line = self.lines[self.row]
            line.extend([(" ", (None, False))] * (self.column + 1 - len(line)))
            line[self.column] = (char, self.style)
            self.column += 1

    def escape(self, parameters, command):
        numbers = [int(number) for number in parameters.split(";") if number.isdigit()]
        if command == "A":
            self.row = max(0, self.row - (numbers or [1])[0])
        elif command == "J":
            del self.lines[self.row + 1 :]
            del self.lines[self.row][self.column :]
        elif command == "K":
            del self.lines[self.row][self.column :]
        elif command == "m":
            for number in numbers or [0]:
                color, bold = self.style
                if number == 0:
                    self.style = (None, False)
                elif number == 1:
                    self.style = (color, True)
                elif number in COLORS or number == 39:
                    self.style = (COLORS.get(number), bold)

    def cut(self, rows):
        """Keeps so many rows, without empty ones at the end."""
        while self.lines and (len(self.lines) > rows or not any(char != " " for char, _ in self.lines[-1])):
            self.lines.pop()
        self.lines.append([])
        self.row, self.column = len(self.lines) - 1, 0

    def text(self):
        return "\n".join("".join(char for char, _ in line).rstrip() for line in self.lines)

    def svg(self):
        lines = list(self.lines)
        while lines and not any(char != " " for char, _ in lines[-1]):
            lines.pop()
        width = max((len(line) for line in lines), default=1) * CELL_WIDTH + 2 * MARGIN
        height = len(lines) * CELL_HEIGHT + 2 * MARGIN
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            '<rect width="100%" height="100%" rx="8" fill="#22272e"/>',
            '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{FONT}" fill="#cdd9e5">'.format(FONT=FONT),
        ]
        for number, line in enumerate(lines):
            y = MARGIN + number * CELL_HEIGHT + FONT
            out += self.spans(line, y)
        return "\n".join(out + ["</g>", "</svg>", ""])

    @staticmethod
    def spans(line, y):
        start = 0
        while start < len(line):
            style = line[start][1]
            end = start
            while end < len(line) and line[end][1] == style:
                end += 1
            text = "".join(char for char, _ in line[start:end])
            if text.strip():
                color, bold = style
                look = (f' fill="{color}"' if color else "") + (' font-weight="bold"' if bold else "")
                # Each cell keeps its column whatever font the reader's machine picks.
                length = len(text.rstrip()) * CELL_WIDTH
                yield (
                    f'<text x="{MARGIN + start * CELL_WIDTH:.1f}" y="{y}" textLength="{length:.1f}" '
                    f'xml:space="preserve"{look}>{html.escape(text.rstrip())}</text>'
                )
            start = end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--until", default=None, help="draw when the screen matches this regular expression")
    parser.add_argument("--unseen", action="append", default=[], help="then run this without showing it")
    parser.add_argument("--then", action="append", nargs=2, default=[], help="then run this and show so much of it")
    parser.add_argument("--seconds", type=float, default=120, help="give up after this long")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    screen = Screen()
    child, terminal = start(options.command)
    matched = watch(terminal, screen, options.until, options.seconds)
    if options.until and not matched:
        end(child, terminal)
        sys.exit(f"the screen never matched {options.until!r}:\n{screen.text()}")
    for command in options.unseen:
        subprocess.run(command, shell=True, stdout=subprocess.DEVNULL, timeout=60, check=True)
    shown = Screen()
    for number, (most, command) in enumerate(options.then):
        shown.feed(("\r\n" if number else "") + "\x1b[1m$ " + command.replace("\n", "\r\n") + "\x1b[0m\r\n")
        first = shown.row
        process, output = start(["sh", "-c", command])
        watch(output, shown, None, options.seconds)
        os.waitpid(process, 0)
        shown.cut(first + int(most))
    end(child, terminal)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(shown.svg())


def start(command):
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.execvp(command[0], command)
    return child, terminal


def watch(terminal, screen, until, seconds):
    deadline = time.monotonic() + seconds
    pending = b""
    while time.monotonic() < deadline:
        if until and re.search(until, screen.text(), re.S):
            return True
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            pending += os.read(terminal, 65536)
        except OSError:
            break
        cut = pending.rfind(b"\n") + 1 or len(pending)
        screen.feed(pending[:cut].decode("utf-8", "replace"))
        pending = pending[cut:]
    screen.feed(pending.decode("utf-8", "replace"))
    return False


def end(child, terminal):
    os.kill(child, signal.SIGINT)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:
                pass
        if os.waitpid(child, os.WNOHANG)[0]:
            return
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
