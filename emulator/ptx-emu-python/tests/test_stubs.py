"""The stubs say what the module has, and the README's examples run."""

import ast
import inspect
import re
from pathlib import Path

import numpy
import ptx_emu
from programs import ADD, ROOT

FOLDER = Path(ptx_emu.__file__).parent


def public(thing):
    return {name for name in vars(thing) if not name.startswith("_")}


def test_stubs_are_installed_and_name_everything():
    assert (FOLDER / "py.typed").exists()
    tree = ast.parse((FOLDER / "__init__.pyi").read_text())
    stubs = {node.name: node for node in tree.body if hasattr(node, "name")}
    module = {name for name in public(ptx_emu) if not inspect.ismodule(getattr(ptx_emu, name))}
    assert set(stubs) == module
    for name, node in stubs.items():
        actual = getattr(ptx_emu, name)
        assert actual.__doc__, name
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            signature = inspect.signature(actual)
            assert [argument.arg for argument in arguments] == list(signature.parameters), name
            required = len(node.args.args) - len(node.args.defaults)
            demanded = [p for p in signature.parameters.values() if p.default is p.empty]
            assert len(demanded) == required, name
        elif not issubclass(actual, (ptx_emu.Error, ptx_emu.Record)):
            members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            assert members - {"__new__"} == public(actual), name
            for member in public(actual):
                assert getattr(actual, member).__doc__, (name, member)


def test_stubs_name_all_counters():
    a = numpy.ones(8, numpy.float32)
    result = ptx_emu.run(ADD, None, 1, 32, [a, a, a, 8])
    tree = ast.parse((FOLDER / "__init__.pyi").read_text())
    for record in (result.counters, result.lower_bound):
        name = type(record).__name__
        (node,) = [node for node in tree.body if getattr(node, "name", None) == name]
        named = {field.target.id for field in node.body if isinstance(field, ast.AnnAssign)}
        assert named == set(dir(record)) - {"to_dict"}
        # `global` is a word of Python.
        assert {field.rstrip("_") for field in named} == set(record.to_dict())
    assert result.counters.global_.bytes_read == 2 * 8 * 4


def test_the_readme_s_examples(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "emulator/ptx-emu-python/README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 3
    names = {}
    for example in examples:
        exec(example, names)
    assert names["c"].tolist() == [1.5, 2.25, 3, 0, 1005]
