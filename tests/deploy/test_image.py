"""The image: what its Dockerfile promises, and its process in a container of the same make."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import treadle
from transformers import LlamaConfig

from tests.deploy import container
from tests.deploy.container import Container, make_environment
from tests.deploy.dockerfile import REPOSITORY, copies, stages
from tests.server.model import tiny

PATIENCE = 120.0
"""Seconds a test waits for what must happen; they pass only where it fails."""


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    found = subprocess.run([hadolint, "Dockerfile"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_what_the_image_copies_is_all_that_the_build_is_sent() -> None:
    sent = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in sent
    assert {line[1:] for line in sent if line.startswith("!")} == {copy.source for copy in copies()}
    assert all((REPOSITORY / copy.source).exists() for copy in copies())


def test_every_variant_has_a_stage() -> None:
    named = {stage.base.split(" AS ")[1] for stage in stages() if " AS " in stage.base}
    assert {"build-cpu", "build-cuda", "build"} <= named


def test_the_final_stage_has_an_owner_labels_a_volume_and_no_package_manager_of_its_own() -> None:
    final = stages()[-1]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", final.only("USER"))
    assert container.CACHE in final.only("VOLUME")
    for label in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert f"org.opencontainers.image.{label}=" in final.only("LABEL")
    assert not any(re.search(r"\b(apt|apt-get|pip|gcc)\b", command) for command in final.of("RUN"))
    assert final.environment({"PATH": ""})["TREADLE_CACHE"] == container.CACHE


@pytest.fixture(scope="module")
def image(open_directory: Path, image_wheel: Path) -> Container:
    if (reason := container.reason_to_skip()) is not None:
        pytest.skip(reason)
    environment, model, root = (open_directory / name for name in ("environment", "model", "root"))
    make_environment(environment, image_wheel, extras=frozenset({"server", "gateway", "tracing"}))
    config = LlamaConfig(
        vocab_size=tiny.VOCABULARY_SIZE,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    tiny.save_model(model, config)
    for file in model.iterdir():
        file.chmod(0o644)
    root.mkdir()
    return Container(root, environment, model)


@pytest.fixture
def process(image: Container) -> "Iterator[subprocess.Popen[str]]":
    process = image.start(
        *("--model=/model", "--host=127.0.0.1", "--port=0", "--kv-memory=4MiB"), TREADLE_METRICS_PORT="0"
    )
    yield process
    process.kill()
    process.communicate()


def test_its_process_serves_from_a_read_only_root_as_a_user_without_rights_and_sigterm_ends_it_well(
    process: "subprocess.Popen[str]",
) -> None:
    assert process.stdout is not None
    announced = re.search(r"serves .* on (\S+)\.", process.stdout.readline())
    assert announced is not None, process.communicate()
    with treadle.Client(announced[1]) as client:
        assert client.complete("hello", max_new_tokens=3, ignore_eos=True).result.usage.completion_tokens == 3
    (first,) = psutil.Process(process.pid).children()
    user, group = map(int, stages()[-1].only("USER").split(":"))
    assert set(first.uids()) == {user}
    assert set(first.gids()) == {group}
    status = Path(f"/proc/{first.pid}/status").read_text()
    assert re.search(r"NSpid:\s+\d+\s+1\n", status)
    assert re.search(r"CapEff:\s+0+\n", status)
    first.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "Traceback" not in err
