"""What somebody types into a terminal, and what has to be seen before the next step. It is the same with and without a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

PROMPT = "box:"
READY = rf"^{PROMPT} *$"


@dataclass(frozen=True)
class Type:
    """Type text, as it is."""

    text: str


@dataclass(frozen=True)
class Line:
    """Type a line that is echoed, and enter it when it stands there."""

    text: str


@dataclass(frozen=True)
class Keys:
    """Press keys, by tmux's names."""

    names: str


@dataclass(frozen=True)
class Resize:
    """Change the window's size."""

    cols: int
    rows: int


@dataclass(frozen=True)
class Wait:
    """Wait for a pattern on the screen."""

    pattern: str


@dataclass(frozen=True)
class See:
    """Wait for a pattern; then the whole screen, cursor and modes have to be the same."""

    pattern: str = READY


Step: TypeAlias = Type | Line | Keys | Resize | Wait | See


def shell(*lines: str) -> list[Step]:
    """Lines for the shell, one after the other."""
    return [step for line in lines for step in (Line(line), See())]


VIM = "vim -u NONE -i NONE -N"

SCRIPTS: dict[str, list[Step]] = {
    "editing a line": [
        Type("echo one two thre"),
        Keys("Left Left Left Left BSpace BSpace"),
        Type("2 "),
        Keys("C-e"),
        Type("e"),
        See("one tw2 three"),
        Keys("Enter"),
        See(),
        *shell("echo again"),
        Keys("Up Up C-a M-f"),
        Type(" first"),
        See("echo first one"),
        Keys("C-e C-u"),
        See(),
        Keys("C-r"),
        Type("aga"),
        See("reverse-i-search"),
        Keys("C-g"),
        See(),
    ],
    "a line that wraps": [
        Type("echo " + "".join(f"{number:04d}-" for number in range(30))),
        See("0029-$"),
        Keys("C-a Right Right Right Right Right"),
        Type("inserted-"),
        See("echo inserted-0000"),
        Keys("C-k"),
        See("inserted- *$"),
        Keys("C-y Enter"),
        See(),
    ],
    "completion": [
        *shell("touch first-file first-folder second"),
        Type("ls fir"),
        Keys("Tab"),
        See("ls first-f$"),
        Keys("Tab Tab"),
        See("ls first-f$"),
        Type("i"),
        Keys("Tab"),
        See("ls first-file"),
        Keys("Enter"),
        See(),
    ],
    "continued lines and a document": [
        Line("for i in 1 2; do"),
        See("^> $|^>$"),
        Line("echo number $i"),
        See(r"number \$i\n> $|number \$i\n>$"),
        Line("done"),
        See(),
        Line("cat <<END"),
        Wait("<<END\n>"),
        Line("inside"),
        Wait("inside\n>"),
        Line("END"),
        See(),
    ],
    "characters of all widths": [
        *shell(
            r"printf 'wide \346\227\245\346\234\254\350\252\236|\n'",
            r"printf 'combining e\314\201 a\314\212 o\314\210|\n'",
            r"printf 'emoji \360\237\230\200|\n'",
        ),
        Type("echo 日本語 e\u0301 ü €"),
        See("ü €"),
        Keys("BSpace BSpace BSpace Left BSpace"),
        Type("ж"),
        See("ж"),
        Keys("Enter"),
        See(),
        Line("x=$(printf '\\346\\227\\245%.0s' {1..60}); echo $x"),
        See(),
    ],
    "bytes that are no text": shell(r"printf 'a\377\376b\303|\n'", r"printf '\303'; sleep 0.2; printf '\274|\n'"),
    "colours and attributes": shell(
        r"printf '\033[1mbold\033[0m \033[4munder\033[0m \033[7mreverse\033[0m \033[3mitalic\033[0m\n'",
        r"printf '\033[38;5;208m256 \033[48;2;10;20;30mtrue\033[0m \033[31;44mred on blue\033[K\033[0m\n'",
        "for i in {0..255}; do printf '\\033[48;5;%dm ' $i; done; printf '\\033[0m\\n'",
    ),
    "moving the cursor": shell(
        r"printf '\033[10;20Hhere\033[3A\033[2Dup\033[5;1Hleft\033[12;1H'",
        r"printf 'a\tb\tc\n12345\b\bxy\n12345\rab\n'",
        r"printf '\033[2J\033[5;10r\033[5;1H1\n2\n3\n4\n5\n6\n7\n8\033[r\033[14;1H'",
        r"printf 'abcdef\033[3D\033[2@XY\033[K\n\033[3L\033[1M'",
        r"printf '\033(0lqqqk\n\rx   x\n\rmqqqj\033(B\n'",
    ),
    "the other screen": [
        Line("echo before; tput smcup; printf '\\033[2J\\033[3;5Hon the other %s' screen; read x; tput rmcup"),
        See("on the other screen"),
        Keys("Enter"),
        See(),
    ],
    "questions to the terminal": shell(
        r"IFS=';' read -rsdR -p $'\033[6n' row column; echo ${row#*[} $column",
        r"read -rsdc -p $'\033[c' about; echo ${about#*[}",
    ),
    "an interrupt under a flood": [
        Line("yes 'the quick brown fox jumps over the lazy dog'"),
        Wait(r"\A(?:the quick [^\n]*\n){20}"),
        Keys("C-c"),
        Wait(READY),
        *shell("r=$?; clear; echo $r"),
        *shell("bash -c \"trap 'exit 9' INT; while :; do sleep 0.05; done\"")[:1],
        Wait("done"),
        Keys("C-c"),
        See(rf"^\^C{PROMPT}$"),
        *shell("echo $?"),
    ],
    "job control": [
        Line("sleep 4711"),
        Wait("4711$"),
        Keys("C-z"),
        See(),
        *shell("jobs", "bg", "jobs"),
        Line("fg"),
        See("^sleep 4711$"),
        Keys("C-c"),
        See(),
        *shell("echo $?", "jobs"),
        Line("cat"),
        Wait("cat$"),
        Line("to the cat"),
        See("to the cat\nto the cat$"),
        Keys("C-z"),
        See(),
        Line("fg"),
        Wait("^cat$"),
        Line("and again"),
        See("and again\nand again$"),
        Keys("C-d"),
        See(),
    ],
    "stopping the output": [
        Line("for i in {1..4}; do echo $i; sleep 0.1; done; printf 'press: '; read -rsn1 k; printf '%q\\n' \"$k\""),
        Wait("^press:"),
        Keys("C-s"),
        Keys("k"),
        Keys("C-q"),
        See("^press: k$"),
    ],
    "keys as programs get them": [
        Line("stty raw -echo; printf ready; head -c 33 | od -An -c; stty sane"),
        Wait("^ready"),
        Keys("Up Left F5 Home End DC M-x C-a C-_ BSpace"),
        Type("é日"),
        See(rf"^ *{PROMPT}$"),
    ],
    "a password": [
        Line("read -rsp 'password: ' x; printf '\\n%s\\n' ${#x}"),
        Wait("^password:"),
        Type("not shown"),
        Keys("BSpace Enter"),
        See(),
    ],
    "a window that changes": [
        *shell("trap 'stty size' WINCH; seq 60 | tr '\\n' ' '; echo"),
        Resize(70, 20),
        Wait("20 70$"),
        Keys("Enter"),
        Resize(132, 43),
        Wait("43 132$"),
        Line("trap - WINCH; clear; echo $LINES $COLUMNS; stty size"),
        See("^43 132\n43 132\n"),
    ],
    "vim: writing": [
        Line(f"{VIM} note.txt"),
        See("note.txt"),
        Type("ifirst line\nsecond line with 日本語 and e\u0301\nthird"),
        See("^third"),
        Keys("Escape"),
        Type("yyp:2\n"),
        Type("cwthe other"),
        See("the other line"),
        Keys("Escape"),
        Type("/third\n"),
        Type("dd:set number list\n"),
        See("4 third|3 third"),
        Type("u:%s/line/LINE/g\n"),
        See("(?s)first LINE.*other LINE"),
        Type(":wq\n"),
        Wait(READY),
        *shell("clear; cat note.txt"),
    ],
    "vim: windows": [
        Line("printf '#!/bin/sh\\nfor i in 1 2; do\\n\\techo \"$i\" # more\\ndone\\n' > a.sh; seq 200 > b.txt"),
        See(),
        Line(f"{VIM} -c 'set hlsearch ruler laststatus=2 | syntax on' a.sh"),
        See("a.sh +1,1 +All"),
        Type(":vsplit b.txt\n"),
        See("b.txt +1,1 +Top"),
        Keys("C-f"),
        See("b.txt +[2-9][0-9],1"),
        Type(":split\n"),
        See("(?s)b.txt.*b.txt"),
        Type("/150\n"),
        See("150,1"),
        Resize(120, 40),
        See(r"\A(?:[^\n]*\n){38,39}[^\n]*\Z"),
        Resize(90, 20),
        See(r"\A(?:[^\n]*\n){18,19}[^\n]*\Z"),
        Keys("C-v"),
        Type("jjll"),
        See("VISUAL BLOCK"),
        Keys("Escape"),
        Type(":qa!\n"),
        See(),
    ],
    "vim: leaving it for a moment": [
        Line(f"{VIM} c.txt"),
        See("c.txt"),
        Type("isome text"),
        Keys("Escape C-z"),
        See(),
        *shell("echo in between"),
        Line("fg"),
        See("^some text"),
        Type(":q!\n"),
        See(),
    ],
    "less": [
        *shell("seq -f 'line %04g of a text that is longer than the screen is high' 500 > t; clear"),
        Line("less -M t"),
        See("lines 1-29/500"),
        Type(" "),
        See("lines 30-58/500"),
        Type("/0250\n"),
        See("lines 250-278/500"),
        Type("G"),
        See("END"),
        Type("b"),
        See("lines 443-471/500"),
        Resize(60, 15),
        See("lines 443-456/500"),
        Type("g"),
        See("lines 1-7/500|lines 1-14/500"),
        Type("q"),
        See(),
    ],
    "less: wide text": [
        Line(
            "for i in {1..40}; do printf '%d 日本語 e\\314\\201 \\033[3%dmcolour\\033[0m %0130d\\n' $i $((i % 8)) $i; done > u"
        ),
        See(),
        Line("less -RS u"),
        See("^u"),
        Keys("Right"),
        Type("j"),
        Wait("0041|004[0-9]|:$"),
        See(":$"),
        Type("q"),
        See(),
    ],
    "a lot at once": [
        Line("stty -echo; cat > big; stty echo; wc -c < big; sha256sum < big"),
        Wait("< big$"),
        *[Type(f"{number:03d} " + "x" * 90 + "\n") for number in range(60)],
        Keys("C-d"),
        See(),
    ],
    "a full screen that is drawn again and again": [
        Line(
            "tput smcup; for n in {1..40}; do printf '\\033[H'; for r in {1..28}; do printf '\\033[3%dm%d: %d\\033[0m\\033[K\\r\\n' "
            "$((r % 8)) $r $((n * r)); done; done; read x; tput rmcup"
        ),
        See("28: 1120"),
        Keys("Enter"),
        See(),
    ],
}
