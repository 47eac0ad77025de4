"""Writes targets.txt anew: asks ptxas for the first PTX version in which each target takes each statement.

python3 targets.py PTXAS. New statements are added to targets.txt by hand, under any line of versions.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# With the first version of PTX that has each.
TARGETS = {
    "sm_75": "6.3", "sm_80": "7.0", "sm_86": "7.1", "sm_89": "7.8", "sm_90": "7.8", "sm_90a": "8.0",
    "sm_100": "8.6", "sm_100a": "8.6", "sm_100f": "8.8", "sm_103a": "8.8", "sm_103f": "8.8", "sm_120": "8.7",
    "sm_120a": "8.7", "sm_120f": "8.8", "sm_121": "8.8", "sm_121a": "8.8", "sm_121f": "8.8",
}
VERSIONS = (
    "6.3 6.4 6.5 7.0 7.1 7.2 7.3 7.4 7.5 7.6 7.7 7.8 8.0 8.1 8.2 8.3 8.4 8.5 8.6 8.7 8.8 9.0".split()
)
FILE = pathlib.Path(__file__).with_name("targets.txt")


def kernel(number, statement):
    """Returns a kernel with the statement, on one line; the same as in load/targets.rs."""
    directives = ".maxntid 128"
    if statement.startswith("."):
        directives, statement = statement.rstrip(";"), ""
        if "ntid" not in directives:
            directives += " .maxntid 128"
    if "setmaxnreg" in statement:
        directives += " .maxnreg 64"
    wide = ".reg .b128 %q<4>;" if "%q" in statement else ""
    return (
        f".visible .entry k{number}(.param .align 16 .b8 in[128]) {directives} {{"
        " .shared .align 1024 .b8 s[1024]; .shared .align 8 .b64 bar; .local .align 16 .b8 l[64];"
        " .param .align 16 .b8 arg[16]; .reg .pred %p<10>; .reg .b8 %b<9>; .reg .b16 %h<10>;"
        f" .reg .b32 %r<140>; .reg .b64 %d<40>; {wide} {statement} NEXT: ret; }}"
    )


def accepted(ptxas, statements, target, version):
    """Returns the statements that ptxas takes."""
    left = list(statements)
    head = (
        f".version {version}\n.target {target}\n.address_size 64\n"
        ".func (.reg .b32 result) callee(.reg .b32 x) { mov.b32 result, x; ret; }\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "k.ptx")
        while left:
            source.write_text(head + "\n".join(kernel(*one) for one in enumerate(left)) + "\n")
            done = subprocess.run(
                [ptxas, "-arch", target, source, "-o", pathlib.Path(folder, "k.cubin")],
                capture_output=True, text=True, check=False,
            )
            if done.returncode == 0:
                break
            said = done.stdout + done.stderr
            wrong = {int(line) - 5 for line in re.findall(r"line (\d+); +(?:error|fatal)", said)}
            if not wrong:
                sys.exit(said)
            left = [one for at, one in enumerate(left) if at not in wrong]
    return set(left)


def main():
    lines = FILE.read_text().splitlines()
    statements = [line.strip() for line in lines if line.startswith("  ")]
    first = {statement: {} for statement in statements}
    for target, least in TARGETS.items():
        # A later version takes all that an earlier one does.
        for version in reversed(VERSIONS[VERSIONS.index(least):]):
            for statement in accepted(sys.argv[1], statements, target, version):
                first[statement][target] = version
    text = "\n".join(line for line in lines if line.startswith("#")) + "\n"
    groups = {}
    for statement in statements:
        versions = " ".join(first[statement].get(target, "-") for target in TARGETS)
        groups.setdefault(versions, []).append(statement)
    for versions, members in groups.items():
        text += versions + "\n" + "".join(f"  {statement}\n" for statement in members)
    FILE.write_text(text)


main()
