"""What runs elsewhere is what runs here."""

import subprocess
import tomllib

import yaml

from tests.deploy.dockerfile import REPOSITORY


def test_the_workflow_calls_the_one_script_and_builds_both_variants() -> None:
    jobs = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "check.yml").read_text())["jobs"]
    assert ".ci/run" in [step.get("run") for step in jobs["check"]["steps"]]
    assert jobs["image"]["strategy"]["matrix"]["variant"] == ["cpu", "cuda"]


def test_make_says_the_version_that_images_are_tagged_with() -> None:
    said = subprocess.run(["make", "--silent", "version"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert said.stdout == f"{version}\n"
    planned = subprocess.run(["make", "--dry-run", "image"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert f"--build-arg VERSION={version}" in planned.stdout
