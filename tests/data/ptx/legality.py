"""Writes legality.txt anew: asks two releases of ptxas for the versions of PTX in which each target takes each
statement.

python3 legality.py PTXAS_13_5 PTXAS_13_0, some ten minutes. New statements are added to legality.txt by hand,
under any line of versions.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# With the first version of PTX that has each. The emulator has no machine for sm_110a and sm_110f.
TARGETS = {
    "sm_75": "6.3", "sm_80": "7.0", "sm_86": "7.1", "sm_87": "7.4", "sm_88": "9.0", "sm_89": "7.8", "sm_90": "7.8",
    "sm_90a": "8.0", "sm_100": "8.6", "sm_100a": "8.6", "sm_100f": "8.8", "sm_103": "8.8", "sm_103a": "8.8",
    "sm_103f": "8.8", "sm_110": "9.0", "sm_120": "8.7", "sm_120a": "8.7", "sm_120f": "8.8", "sm_121": "8.8",
    "sm_121a": "8.8", "sm_121f": "8.8",
}
VERSIONS = (
    "6.3 6.4 6.5 7.0 7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 8.0 8.1 8.2 8.3 8.4 8.5 8.6 8.7 8.8 9.0 9.1 9.2 9.3 9.4 9.5"
).split()
# The last version that each release knows.
NEWEST = ("9.5", "9.0")
# Statements of one module.
PART = 2000
FILE = pathlib.Path(__file__).with_name("legality.txt")


def module(version, target, statements):
    """Returns a module with the statements, and for each line the statement on it; as in load/legality.rs."""
    head = [
        f".version {version}", f".target {target}", ".address_size 64", ".const .align 16 .b8 c[64];",
        ".func (.reg .b32 result) callee(.reg .b32 x) { mov.b32 result, x; ret; }",
    ]
    directives = [one for one in statements if one.startswith(".")]
    body = [one for one in statements if not one.startswith(".")]
    kernels = [
        f".entry e{at}() {one[:-1]} {'' if 'ntid' in one else '.maxntid 128'} {{ ret; }}"
        for at, one in enumerate(directives)
    ]
    wide = ".reg .b128 %q<4>;" if VERSIONS.index(version) >= VERSIONS.index("8.3") else ""
    start = (
        ".entry k(.param .align 16 .b8 in[128]) .maxntid 128 .maxnreg 64 {"
        " .shared .align 1024 .b8 s[1024]; .shared .align 8 .b64 bar; .local .align 16 .b8 l[64];"
        " .param .align 16 .b8 arg[16]; .reg .pred %p<10>; .reg .b8 %b<9>; .reg .b16 %h<17>;"
        f" .reg .b32 %r<140>; .reg .b64 %d<40>; {wide}"
    )
    text = "\n".join(head + kernels + [start] + body + ["NEXT: ret; }", ""])
    return text, [None] * len(head) + directives + [None] + body


def accepted(ptxas, statements, target, version):
    """Returns the statements that ptxas takes."""
    wide = VERSIONS.index(version) >= VERSIONS.index("8.3")
    left = [one for one in statements if wide or "%q" not in one]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "k.ptx")
        while left:
            text, lines = module(version, target, left)
            source.write_text(text)
            # A target of this kind is parsed for alone.
            arguments = ["-arch", target.replace("sm", "compute"), source, "-o", pathlib.Path(folder, "k.out")]
            done = subprocess.run([ptxas, *arguments], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            said = done.stdout + done.stderr
            found = re.findall(r"k\.ptx, line (\d+); +(?:error|fatal)", said)
            wrong = {lines[int(line) - 1] for line in found if int(line) <= len(lines)} - {None}
            if not wrong and len(left) == 1:
                return set()
            if not wrong:
                # A fault in what ptxas makes of some statement has no line.
                half = len(left) // 2
                parts = [left[:half], left[half:]]
                return set().union(*(accepted(ptxas, part, target, version) for part in parts))
            left = [one for one in left if one not in wrong]
    return set(left)


def cells(ptxas, newest, statements):
    """Returns for each statement the versions that have it, for each target."""
    all_cells = {statement: [] for statement in statements}
    for target, least in TARGETS.items():
        versions = VERSIONS[VERSIONS.index(least):VERSIONS.index(newest) + 1]
        has = {statement: [] for statement in statements}
        for version in versions:
            for at in range(0, len(statements), PART):
                for statement in accepted(ptxas, statements[at:at + PART], target, version):
                    has[statement].append(version)
        for statement, found in has.items():
            if not found:
                cell = "-"
            elif found == versions[versions.index(found[0]):]:
                cell = found[0]
            else:
                cell = f"{found[0]}..{found[-1]}"
            all_cells[statement].append(cell)
    return all_cells


def main():
    lines = FILE.read_text().splitlines()
    statements = [line.strip() for line in lines if line.startswith("  ")]
    new, old = (cells(ptxas, last, statements) for ptxas, last in zip(sys.argv[1:3], NEWEST))
    groups = {}
    for statement in statements:
        both = [" ".join(new[statement]), " ".join(old[statement])]
        late = [
            "-" if cell in VERSIONS and VERSIONS.index(cell) > VERSIONS.index(NEWEST[1]) else cell
            for cell in new[statement]
        ]
        groups.setdefault(both[0] if late == old[statement] else " | ".join(both), []).append(statement)
    text = "".join(f"{line}\n" for line in lines if line.startswith("#"))
    for versions, members in groups.items():
        text += versions + "\n" + "".join(f"  {statement}\n" for statement in members)
    FILE.write_text(text)


main()
