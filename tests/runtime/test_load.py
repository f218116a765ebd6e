"""`leapgen.load`: names, picks, files, and what is said when something is not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import leapgen
from leapgen import paths
from leapgen.diagnostics import Diagnostics, LeapgenError
from leapgen.files import write_folder
from leapgen.runtime import host, module
from leapgen.schedule.arch import ARCHES, ArchError


def origin(loaded: host.Module) -> Path:
    """The file that a module came from."""
    return Path(loaded.kernels["step"].build.__code__.co_filename)


def test_a_shipped_module_is_used_as_it_is(tmp_path: Path) -> None:
    loaded = leapgen.load("gdn", arch="cpu", cache=tmp_path)
    assert isinstance(loaded, host.Module)
    assert origin(loaded) == paths.data("generated") / "cpu" / "gdn.py"
    assert leapgen.load("gdn", arch="cpu") is loaded
    assert not any(tmp_path.iterdir())


def test_other_modules_are_generated_once(tmp_path: Path) -> None:
    options = {"arch": "sm120", "gate": "log_decay", "beta": "activated", "norm": "none"}
    loaded = leapgen.load("gdn", format="bf16-window", cache=tmp_path, **options)
    assert loaded.format == "bf16-window"
    assert loaded.arch == "sm120"
    names = [i.name for i in loaded.inputs]
    assert names == ["q", "k", "v", "g", "beta"]
    assert origin(loaded).is_relative_to(tmp_path)
    assert paths.python_files(origin(loaded).parent / paths.HOST) == paths.host_files()
    again = leapgen.load("gdn", format="bf16-window", cache=tmp_path, **options)
    assert again is loaded
    assert len(list(tmp_path.iterdir())) == 1


def test_picks_name_the_shipped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that holds other picks and another format is found by its name."""
    made = leapgen.load("kda", arch="cpu", gate="lower_bound", cache=tmp_path / "cache")
    for folder in ("specs", "generated/cpu"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(paths.data("specs") / "kda.yaml", tmp_path / "specs")
    name = "kda-lower_bound-fp32-window.py"
    shutil.copy(origin(made), tmp_path / "generated" / "cpu" / name)
    write_folder(tmp_path / "generated" / "cpu" / paths.HOST, paths.host_files())
    monkeypatch.setattr(paths, "data", lambda folder: tmp_path / folder)
    found = module._shipped("kda", ARCHES["cpu"], {"gate": "lower_bound"}, "fp32-window")
    assert found == tmp_path / "generated" / "cpu" / name
    assert module._shipped("kda", ARCHES["cpu"], {"gate": "lower_bound"}, None) is None
    assert module._shipped("kda", ARCHES["cpu"], {}, "fp32-window") is None


def test_a_module_file(tmp_path: Path) -> None:
    source = paths.data("generated") / "cpu"
    shutil.copy(source / "gdn.py", tmp_path / "other-name.py")
    shutil.copytree(source / paths.HOST, tmp_path / paths.HOST)
    loaded = leapgen.load(tmp_path / "other-name.py")
    assert loaded.digest == leapgen.load("gdn", arch="cpu").digest
    assert loaded is not leapgen.load("gdn", arch="cpu")
    with pytest.raises(
        module.UnknownModule, match=r"no such module; the folder has other-name\.py"
    ):
        leapgen.load(tmp_path / "gdn.py")


def test_what_is_unknown_lists_what_exists() -> None:
    with pytest.raises(LeapgenError, match=r"gdm: no such spec; shipped: .*gdn, .*kda"):
        leapgen.load("gdm")
    with pytest.raises(ArchError, match=r"unknown architecture 'sm91'; known: cpu, sm80"):
        leapgen.load("gdn", arch="sm91")
    with pytest.raises(Diagnostics, match="lower_bound_plain"):
        leapgen.load("kda", arch="cpu", gate="safe")
    with pytest.raises(Diagnostics, match="gates"):
        leapgen.load("kda", arch="cpu", gates="softplus")
    with pytest.raises(Diagnostics, match="fp32-window"):
        leapgen.load("kda", arch="cpu", format="int9")
    with pytest.raises(AttributeError, match="has no attribute 'loads'"):
        _ = leapgen.loads


def test_the_present_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module.present_arch().name == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    known = {(8, 0): "sm80", (8, 9): "sm89", (9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm103"}
    for capability, arch in {**known, (12, 0): "sm120", (12, 1): "sm120"}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, c=capability: c)
        assert module.present_arch().name == arch
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (11, 0))
    with pytest.raises(ArchError, match=r"11\.0"):
        module.present_arch()


def test_compile_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A device gets the code of its very capability; another member of the family is refused."""
    loaded = leapgen.load("gdn", arch="sm120", cache=tmp_path)
    device = torch.device("cuda", 0)
    for capability, name in {(12, 0): "sm_120a", (12, 1): "sm_121a"}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, c=capability: c)
        assert loaded._compile_target(device) == {"kind": "cuda", "arch": name}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    with pytest.raises(host.ArgumentError, match=r"expected one of sm_120a, sm_121a, .* 10\.0"):
        loaded._compile_target(device)
    with pytest.raises(
        host.ArgumentError, match=r"device: expected cuda \(the module is for sm120"
    ):
        loaded.allocate(1, 1, device="cpu")
