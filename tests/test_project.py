"""The shape of the tree: import order, purity, sizes, names, and that the documents are true."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "leapgen"
GENERATED = ROOT / "generated"

# A part may import itself and what stands on an earlier line, nothing else.
LAYERS = (
    {"diagnostics", "tensors", "paths", "files"},
    {"spec"},
    {"algebra"},
    {"formats"},
    {"schedule"},
    {"emit", "oracle"},
    {"runtime"},
    {"report"},
    {"tune", "study", "integrations"},
    {"bench"},
    {"cli"},
    {"__main__"},
)
BESIDE_CLI = {"pipeline", "__init__"}  # these import the runtime, but only inside functions
PURE = ("diagnostics", "tensors", "spec", "algebra", "formats", "schedule", "emit")
LONGEST = 310
LONGEST_TESTS = 330


def part_of(module: str) -> str:
    """`leapgen.spec.model` -> `spec`."""
    return module.split(".")[1] if "." in module else "__init__"


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every leapgen module that a file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "leapgen":
                names = [f"leapgen.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name.split(".")[0] == "leapgen")


def module_level_imports(path: Path) -> set[str]:
    """Roots of the modules imported when a file is imported (not inside functions)."""
    roots = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            roots.add(
                node.module if node.module.startswith("leapgen") else node.module.split(".")[0]
            )
        elif isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
    return roots


def test_imports_go_one_way() -> None:
    rank = {part: i for i, layer in enumerate(LAYERS) for part in layer}
    wrong = []
    for path in python_files():
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part in BESIDE_CLI:
            continue
        for module, line in imports(path):
            other = part_of(module)
            allowed = other == part or (other in rank and rank[other] < rank[part])
            # `pipeline` is one page over the whole chain: the last layers start there.
            if not allowed and not (other == "pipeline" and rank[part] >= rank["report"]):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {part} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_pipeline_imports_the_runtime_lazily() -> None:
    for name in BESIDE_CLI:
        found = module_level_imports(PACKAGE / f"{name}.py")
        heavy = {m for m in found if m in {"torch", "tilelang"} or m.startswith("leapgen.runtime")}
        assert not heavy, f"leapgen/{name}.py imports {heavy} when it is imported"


def test_pure_half_needs_neither_torch_nor_tilelang() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in python_files()
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in PURE
    ]
    script = (
        "import importlib, sys\n"
        "for name in ('torch', 'tilelang', 'tvm'):\n"
        "    sys.modules[name] = None  # importing it now raises ImportError\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", ["leapgen", "templates"])
def test_no_model_names(folder: str) -> None:
    """Nobody asks "is this that model?": names of recurrences stand in specs/ and tests only."""
    names = {path.stem for path in (ROOT / "specs").glob("*.yaml")}
    assert names
    pattern = re.compile(rf"\b({'|'.join(sorted(names))})\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".j2") and "integrations" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_files_are_short() -> None:
    product = [*python_files(), *(ROOT / "templates").rglob("*.j2")]
    limits = dict.fromkeys(product, LONGEST)
    limits |= dict.fromkeys((ROOT / "tests").rglob("*.py"), LONGEST_TESTS)
    long = {
        f"{path.relative_to(ROOT)}: {lines} lines of {limit}"
        for path, limit in limits.items()
        if (lines := len(path.read_text().splitlines())) > limit
    }
    assert not long, long


def test_nothing_is_swallowed_or_left_open() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX)\b|except Exception|except BaseException|except:")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def test_help_is_quick() -> None:
    """Under 0.5 s; the best of three, since the machine may be busy with other tests."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "leapgen", "--help"], capture_output=True, text=True, check=True
        )
        times.append(time.perf_counter() - start)
        assert "verify" in done.stdout
    assert min(times) < 0.5, f"leapgen --help took {min(times):.2f} s"


def test_hosts_beside_modules_are_the_runtime_package() -> None:
    ours = {p.name: p.read_bytes() for p in (PACKAGE / "runtime" / "host").glob("*.py")}
    assert ours
    folders = {path.parent for path in GENERATED.rglob("*.py")} - set(GENERATED.rglob("_host"))
    for host in (folder / "_host" for folder in folders):
        assert {p.name: p.read_bytes() for p in host.iterdir() if p.is_file()} == ours, host
    assert not list(GENERATED.rglob("_host.py")), "the host is a package"


def test_every_generated_file_is_in_the_manifest() -> None:
    text = (GENERATED / "MANIFEST.json").read_text()
    json.loads(text)
    missing = [
        name
        for path in sorted(GENERATED.glob("*/*.py"))
        if not path.name.startswith("_")
        and f'"{(name := path.relative_to(GENERATED).as_posix())}"' not in text
    ]
    assert not missing, missing


def test_resources_belong_to_present_modules() -> None:
    """Registers and memory in the manifest are those of the text that was compiled; what has
    changed since is listed, not refused: assembling everything takes minutes."""
    from leapgen.emit.parts import kernel_digest
    from leapgen.report import manifest

    book = manifest.read(GENERATED)
    assert set(book.resources) <= {*book.modules, *book.digests}
    assert book.text() == (GENERATED / manifest.NAME).read_text()
    stale = [
        f"{kernel} of {path}"
        for path in sorted(set(book.resources) & set(book.modules))
        for kernel, digest in sorted({(r["kernel"], r["digest"]) for r in book.resources[path]})
        if digest != kernel_digest((GENERATED / path).read_text(), (kernel,))
    ]
    if stale:
        warnings.warn(f"changed since `build --compile`: {', '.join(stale)}", stacklevel=1)


def test_evidence_is_canonical_and_of_what_exists() -> None:
    """`leapgen list --formats` shows what still stands of it."""
    from leapgen.formats.table import NAMED
    from leapgen.report import verified
    from leapgen.schedule.arch import ARCHES

    path = GENERATED / verified.NAME
    records = verified.read(path)
    assert path.read_text() == verified.text(records)
    assert {r.format for r in records} <= set(NAMED)
    assert {r.arch for r in records} <= set(ARCHES)
    assert all(r.checks > 20 for r in records)


def commands(text: str) -> list[str]:
    """Lines of the `sh` blocks of a Markdown text, without comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", line.split("  #")[0]).strip() for line in lines if line.strip()]


def test_readme_installs_what_ci_installs() -> None:
    readme = " && ".join(commands((ROOT / "README.md").read_text()))
    ci = (ROOT / ".ci" / "run").read_text()
    for package in ("torch==2.13.0", "-e '.[build,dev]'"):
        assert package in readme
        assert package in ci
    first = next(c for c in readme.split(" && ") if c.startswith("leapgen verify"))
    assert f"\n{first}\n" in ci, "CI runs the README's first command"
    assert "bash .ci/run" in readme


def test_readme_commands_exist() -> None:
    """Every `leapgen ...` line of the README is accepted by the argument parser."""
    from typer.testing import CliRunner

    from leapgen.cli import app

    lines = [c for c in commands((ROOT / "README.md").read_text()) if c.startswith("leapgen ")]
    assert len(lines) >= 5
    for line in lines:
        words = [word.strip("'\"") for word in line.split()[1:]]
        result = CliRunner().invoke(app, [words[0], "--help"])
        assert result.exit_code == 0, line
        for option in (word for word in words if word.startswith("--")):
            assert option in result.stdout, f"{line}: no option {option}"


def test_readme_examples_run() -> None:
    text = (ROOT / "README.md").read_text()
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    first += "print(tuple(out.shape), tuple(state.shape), state.abs().max() > 0)\n"
    outputs = {first: "(3, 4, 128) (3, 4, 128, 128) tensor(True)"}
    if importlib.util.find_spec("transformers"):
        outputs[second] = "torch.Size([2, 23]) "
    for script, last in outputs.items():
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith(last)


def test_readme_paths_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_tables_are_canonical_and_stale_ones_are_listed() -> None:
    """Every committed table reads and is sorted; modules that changed since are in the warnings."""
    from leapgen import paths, pipeline
    from leapgen.emit.parts import kernel_digest
    from leapgen.runtime import tables
    from leapgen.schedule.arch import ARCHES

    def digests(arch: str, stem: str) -> Callable[[tuple[str, ...]], str]:
        spec = max((s for s in specs if f"{stem}-".startswith(f"{s}-")), key=len)
        source = pipeline.compile(spec, arch, format=stem[len(spec) + 1 :] or None).source
        return functools.partial(kernel_digest, source.text)

    specs = [path.stem for path in paths.shipped_specs()]
    folders = {d.slug: name for name, arch in ARCHES.items() for d in arch.devices}
    stale = []
    for path in sorted((ROOT / "tuning").glob("*/tables/*.json")):
        records = tables.read(path)
        assert path.read_text() == tables.text(path.stem, records), path
        folder = path.parent.parent.name
        current = digests(folders.get(folder, folder), path.stem)
        stale += [
            f"{path.relative_to(ROOT)}: {r.rows} rows" for r in records if not r.fresh(current)
        ]
    if stale:
        warnings.warn(f"tuned for modules that have changed since: {stale}", stacklevel=1)
