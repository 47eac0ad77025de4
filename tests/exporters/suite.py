"""Exporters write tiny models, `nvfp4` converts them, and the targets' own loaders read the result.

    python3 suite.py --nvfp4 PROGRAM --work FOLDER --envs FOLDER

`cargo xtask test --exporters` makes the environments and runs this. Prints a table and ends with
the number of checks that passed and failed; exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

HERE = Path(__file__).parent
MODELS = ["llama", "llama-tied", "mixtral", "qwen3-moe", "gpt-oss"]
# Each exporter's script and environment.
EXPORTERS = [
    ("export_modelopt.py", "modelopt"),
    ("export_gpt_oss.py", "modelopt"),
    ("export_llmcompressor.py", "llmcompressor"),
    ("export_torchao.py", "current"),
    ("export_quark.py", "current"),
    ("export_auto_round.py", "current"),
    ("export_mlx.py", "current"),
]
# The environment of each layout's reader.
READERS = {
    "modelopt": "modelopt",
    "compressed-tensors": "llmcompressor",
    "torchao": "current",
    "gpt-oss": "current",
}
# The environments of further readers: of layouts that only some exports and the originals go to, and of those that
# are not written.
FURTHER = {"gguf": "current", "mlx": "current", "quark": "current", "auto-round": "current"}
# The layouts that exports of these names go to besides those of READERS.
TARGETS = {
    "gguf": ["*-llama", "*-llama-tied", "modelopt-nvfp4-qwen3-moe", "llmcompressor-nvfp4-mixtral"],
    "mlx": ["mlx-*", "*-mxfp4-llama", "gpt-oss-huggingface-*", "llmcompressor-mxfp4a16-gpt-oss"],
}
# What the newest compressed-tensors reads in the newest transformers. With several schemes, transformers decodes all
# layers by one of them there, and experts are made layers of their own by llmcompressor.
NEWEST = [
    "quark-*", "auto-round-*", "mlx-*", "llmcompressor-by-*", "original-llama-*", "*-llama-tied*", "*-nvfp4-llama*",
    "*-mxfp4-llama*",
]
SEVERAL = "*-mixed-*"
WITH_EXPERTS = ["*mixtral*", "*qwen3-moe*", "*gpt-oss*"]
# What a folder of each exporter is in.
LAYOUTS = {
    "modelopt-": "modelopt",
    "llmcompressor-": "compressed-tensors",
    "torchao-": "torchao",
    "gpt-oss-": "gpt-oss",
    "quark-": "quark",
    "auto-round-": "auto-round",
    "mlx-": "mlx",
}
# How originals are quantised.
RECIPES = [
    ("nvfp4", "modelopt", "modelopt"),
    ("nvfp4", "compressed-tensors", "compressed-tensors"),
    ("nvfp4", "torchao", "torchao"),
    ("mxfp4", "modelopt", "modelopt"),
    ("mxfp4", "compressed-tensors", "compressed-tensors"),
    ("mxfp4", "torchao", "torchao"),
    ("mxfp4", "torchao", "gpt-oss"),
    ("nvfp4", "modelopt", "gguf"),
    ("mxfp4", "torchao", "gguf"),
    ("nvfp4", "torchao", "mlx"),
    ("mxfp4", "torchao", "mlx"),
]
# Keys that transformers says it did not expect although it writes them: rotations of inputs, and scales of inputs where
# it decodes weights while it loads.
UNEXPECTED = ["*_input.weight", "*.input_global_scale"]


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A conversion that must end with an error which names the cause, instead of an output."""

    source: str
    target: str
    cause: str


def refusals() -> list[Refusal]:
    """What has no form in the target."""
    lines = (HERE / "refusals.tsv").read_text().splitlines()
    return [Refusal(*line.split("\t")) for line in lines if line and not line.startswith("#")]


@dataclasses.dataclass
class Check:
    """One outcome."""

    row: str
    column: str
    problem: str | None
    note: str = ""


@dataclasses.dataclass
class Written:
    """A checkpoint that `nvfp4` wrote, which is still to be read."""

    row: str
    column: str
    folder: Path
    layout: str
    # What its values are compared with, and how exactly they must be those.
    reference: Path
    exact: bool

    @property
    def read(self) -> str:
        """The name of the folder with what its loader read."""
        return f"dequantised-{self.folder.name}" if self.layout == "dequantize" else self.folder.name


class Suite:
    """All of it."""

    def __init__(self, program: Path, work: Path, envs: Path, only: str) -> None:
        self.program, self.work, self.envs, self.only = program, work, envs, only
        self.checks: list[Check] = []
        self.written: list[Written] = []
        self.refusals = refusals()

    def python(self, environment: str, *arguments: str) -> None:
        """Runs a script in an environment; its output goes to a log."""
        log = self.work / "logs" / f"{Path(arguments[0]).stem}-{environment}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as sink:
            programs = self.envs / environment / "bin"
            command = [programs / "python", HERE / arguments[0], *arguments[1:]]
            # Quark compiles code by the environment's ninja; nothing is asked of Hugging Face.
            settings = {"PATH": f"{programs}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, env=os.environ | settings)
        if done.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise SystemExit(f"{arguments[0]} failed, {log}:\n{tail}")

    def export(self) -> list[Path]:
        """Every export, made once."""
        folder = self.work / "exports"
        for script, environment in EXPORTERS:
            done = self.work / f"{Path(script).stem}.done"
            if not done.exists():
                print(f"{script} writes", flush=True)
                self.python(environment, script, str(folder))
                done.touch()
        exports = [path for path in sorted(folder.iterdir()) if not path.name.startswith("original-")]
        # OpenAI's names are no model of transformers, so nothing reads the outputs.
        return [path for path in exports if "-openai-" not in path.name and self.only in path.name]

    def nvfp4(self, *arguments: str) -> tuple[int, dict, str]:
        """Runs the program: exit code, report, message."""
        done = subprocess.run(
            [self.program, *arguments, "--json"], capture_output=True, text=True, errors="replace"
        )
        try:
            report = json.loads(done.stdout)
        except json.JSONDecodeError:
            report = {}
        return done.returncode, report, done.stderr.strip().replace("\n", " ")

    def check(self, row: str, column: str, problem: str | None, note: str = "") -> None:
        self.checks.append(Check(row, column, problem, note))

    def examine(self, export: Path, original: Path) -> None:
        """inspect and verify."""
        code, report, message = self.nvfp4("inspect", str(export))
        quantised = [weight for weight in report.get("weights", [])]
        self.check(export.name, "inspect", None if code == 0 and quantised else message or "no weights")
        code, report, message = self.nvfp4("verify", str(export), "--against", str(original))
        problem = None if code == 0 else f"exit code {code}: {message or json.dumps(report)[:300]}"
        self.check(export.name, "verify", problem)

    def convert(self, export: Path, layout: str) -> None:
        """One conversion."""
        out = self.work / "converted" / f"{export.name}-to-{layout}"
        arguments = ["convert", str(export), "--layout", layout, "--out", str(out)]
        if layout in ("modelopt", "compressed-tensors"):
            arguments.append("--share-scales")
        if layout == "torchao":
            arguments.append("--swizzled")
        self.outcome(export, layout, out, arguments)

    def dequantise(self, export: Path) -> None:
        """What the program itself decodes."""
        out = self.work / "dequantised" / export.name
        self.outcome(export, "dequantize", out, ["dequantize", str(export), "--dtype", "f32", "--out", str(out)])

    def outcome(self, export: Path, layout: str, out: Path, arguments: list[str]) -> None:
        """Runs a command that writes a checkpoint, or must say why not."""
        code, report, message = self.nvfp4(*arguments)
        refusal = next(
            (r for r in self.refusals if fnmatchcase(export.name, r.source) and r.target in ("*", layout)), None
        )
        if code != 0:
            if out.exists():
                self.check(export.name, layout, "an output in spite of an error")
            elif refusal is None:
                self.check(export.name, layout, f"refused: {message}")
            elif refusal.cause not in message:
                self.check(export.name, layout, f"does not name {refusal.cause!r}: {message}")
            else:
                self.check(export.name, layout, None, "refused")
        elif refusal:
            self.check(export.name, layout, f"ought to be refused, for {refusal.cause}")
        else:
            exact = all(group.get("least_db") is None for group in report.get("shared", []))
            reference = self.work / "oracle" / export.name
            self.written.append(Written(export.name, layout, out, layout, reference, exact))

    def quantise(self, model: str, original: Path, recipe: tuple[str, str, str]) -> None:
        """One quantisation of an original."""
        form, name, layout = recipe
        row = f"original-{model}"
        out = self.work / "quantised" / f"{row}-{form}-{layout}"
        arguments = ["--format", form, "--recipe", name, "--layout", layout, "--out", str(out)]
        if layout == "torchao":
            arguments.append("--swizzled")
        code, _, message = self.nvfp4("quantize", str(original), *arguments)
        column = f"{form} {layout}"
        if code != 0:
            cause = next((r for r in self.refusals if fnmatchcase(row, r.source) and r.target == column), None)
            known = cause is not None and cause.cause in message and not out.exists()
            self.check(row, column, None if known else f"refused: {message}", "refused")
        else:
            reference = self.work / "originals" / original.name
            self.written.append(Written(row, column, out, layout, reference, False))
            if layout in ("gguf", "mlx"):
                # A matrix for each expert in these, which transformers has in one tensor for some models.
                floats = self.work / "dequantised" / out.name
                code, _, message = self.nvfp4("dequantize", str(out), "--dtype", "f32", "--out", str(floats))
                self.check(row, column, None if code == 0 else f"dequantize: {message}")
                if code == 0:
                    self.written.append(Written(row, column, floats, "dequantize", reference, False))

    def read(self, tasks: dict[tuple[str, str], list[tuple[Path, Path]]]) -> None:
        """Has loaders read folders: (loader, environment) to (checkpoint, where the report goes)."""
        for (loader, environment), folders in tasks.items():
            path = self.work / f"tasks-{loader}-{environment}.json"
            described = [{"checkpoint": str(checkpoint), "out": str(out)} for checkpoint, out in folders]
            path.write_text(json.dumps(described))
            if described:
                print(f"{loader}'s loader reads {len(described)} checkpoints in {environment}", flush=True)
                self.python(environment, "judge.py", loader, str(path))

    def run(self) -> int:
        """Everything; the exit code."""
        exports = self.export()
        # What a change of the program leaves as it is is kept.
        for made in ("converted", "quantised", "dequantised", "judged"):
            shutil.rmtree(self.work / made, ignore_errors=True)
            (self.work / made).mkdir(parents=True)
        originals = {
            export: self.work / "exports" / f"original-{model_of(export)}-{type_of(export)}" for export in exports
        }
        for export in exports:
            self.examine(export, originals[export])
            self.dequantise(export)
            further = [layout for layout, names in TARGETS.items() if any(fnmatchcase(export.name, x) for x in names)]
            for layout in [*READERS, *further]:
                self.convert(export, layout)
        for model in MODELS:
            original = self.work / "exports" / f"original-{model}-bfloat16"
            if self.only in original.name:
                for recipe in RECIPES:
                    self.quantise(model, original, recipe)
        self.judge(exports, originals)
        self.compare(exports)
        if self.only in "vocabularies":
            self.vocabularies()
        if self.only in "decoders":
            self.decoders()
        return self.table()

    def decoders(self) -> None:
        """Has transformers compute the logits of the whole models that are kept."""
        path, data = self.work / "decoders.json", HERE.parent / "data"
        self.python(
            "current", "decoders.py", "check", "--nvfp4", str(self.program), "--data", str(data), "--out", str(path)
        )
        for result in json.loads(path.read_text()):
            self.check(result["name"], "logits", result["problem"])

    def vocabularies(self) -> None:
        """Has the package gguf read tokenizers of SentencePiece."""
        path = self.work / "vocabularies.json"
        self.python(
            "current", "vocabularies.py", "--nvfp4", str(self.program), "--work", str(self.work / "vocabularies"),
            "--out", str(path),
        )
        for result in json.loads(path.read_text()):
            self.check(result["name"], "gguf", result["problem"])

    def judge(self, exports: list[Path], originals: dict[Path, Path]) -> None:
        """Has every loader read what is for it."""
        judged = self.work / "judged"
        tasks: dict[tuple[str, str], list[tuple[Path, Path]]] = {
            ("oracle", "modelopt"): [
                (export, self.work / "oracle" / export.name) for export in exports
                if not (self.work / "oracle" / export.name).exists()
            ],
            ("plain", "modelopt"): [
                (path, self.work / "originals" / path.name)
                for path in sorted({*originals.values(), *(self.work / "exports").glob("original-*-bfloat16")})
                if not (self.work / "originals" / path.name).exists()
            ],
        }
        # transformers' own reader of models that are not quantised.
        tasks["plain", "current"] = [
            (written.folder, judged / written.read)
            for written in self.written if written.layout == "dequantize"
        ]
        for layout, environment in {**READERS, **FURTHER}.items():
            read = [export for export in exports if layout_of(export) == layout] + [
                written.folder for written in self.written if written.layout == layout
            ]
            for folder in read:
                newest = layout == "compressed-tensors" and is_for_newest(folder.name)
                where = "current" if newest else environment
                tasks.setdefault((layout, where), []).append((folder, judged / folder.name))
        self.read(tasks)

    def compare(self, exports: list[Path]) -> None:
        """Compares what the loaders read."""
        judged = self.work / "judged"
        tasks = [
            {"row": export.name, "column": "loader", "read": str(judged / export.name),
             "reference": str(self.work / "oracle" / export.name), "exact": True, "layout": layout_of(export),
             "allowed": UNEXPECTED}
            for export in exports
        ] + [
            {"row": written.row, "column": written.column, "read": str(judged / written.read),
             "reference": str(written.reference), "exact": written.exact, "layout": written.layout,
             "allowed": UNEXPECTED if written.layout in ("compressed-tensors", "dequantize") else []}
            for written in self.written
        ]
        path, results = self.work / "tasks-compare.json", self.work / "compared.json"
        path.write_text(json.dumps(tasks))
        self.python("modelopt", "compare.py", str(path), str(results))
        for result in json.loads(results.read_text()):
            self.check(result["row"], result["column"], result["problem"], result["note"])

    def table(self) -> int:
        """Prints the outcomes."""
        print("\nversions: " + (self.envs / "versions.txt").read_text().strip().replace("\n", "; "))
        for title, columns, rows in [
            ("export", ["inspect", "verify", "dequantize", "loader", *READERS, *TARGETS, "logits"], False),
            ("original", [f"{form} {layout}" for form, _, layout in RECIPES], True),
        ]:
            print(f"\n| {title} | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
            named = sorted({check.row for check in self.checks if check.row.startswith("original-") == rows})
            for row in named:
                cells = []
                for column in columns:
                    found = [c for c in self.checks if (c.row, c.column) == (row, column)]
                    cells.append(" ".join("WRONG" if c.problem else c.note or "ok" for c in found) or "-")
                print(f"| {row} | {' | '.join(cells)} |")
        failed = [check for check in self.checks if check.problem]
        if failed:
            print("\nfailures:")
        for check in failed:
            print(f"  {check.row}, {check.column}: {check.problem}")
        print(f"\nexporters: {len(self.checks) - len(failed)} passed, {len(failed)} failed")
        return int(bool(failed))


def is_for_newest(name: str) -> bool:
    """Whether the newest compressed-tensors reads a folder."""
    without = [SEVERAL, *WITH_EXPERTS]
    return any(fnmatchcase(name, x) for x in NEWEST) and not any(fnmatchcase(name, x) for x in without)


def layout_of(export: Path) -> str:
    """The layout of an exporter's folder."""
    return next(layout for prefix, layout in LAYOUTS.items() if export.name.startswith(prefix))


def model_of(export: Path) -> str:
    """The model of an exporter's folder."""
    return next(model for model in sorted(MODELS, key=len, reverse=True) if export.name.endswith(f"-{model}"))


def type_of(export: Path) -> str:
    """The type of an export's original."""
    return "float32" if "-f32-" in export.name else "bfloat16"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--nvfp4", type=Path, required=True)
    arguments.add_argument("--work", type=Path, required=True)
    arguments.add_argument("--envs", type=Path, required=True)
    arguments.add_argument("--only", default="", help="exports whose name contains this")
    chosen = arguments.parse_args()
    sys.exit(Suite(chosen.nvfp4.resolve(), chosen.work.resolve(), chosen.envs.resolve(), chosen.only).run())


if __name__ == "__main__":
    main()
