"""Images of every local kind, made by the real tools."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swegym_env.errors import ImageError
from swegym_env.sandbox import SandboxSpec
from swegym_env.sandbox.images import building, identity_layer, resolve_image
from swegym_env.sandbox.images.store import ImageStore, settle
from tests.env.sandbox.conftest import Opener
from tests.env.sandbox.registry import make_image, serving, write_docker_archive, write_layout

needs_apptainer = pytest.mark.skipif(
    shutil.which("apptainer") is None, reason="no Apptainer: scripts/install_apptainer.sh"
)


@pytest.fixture(scope="module", autouse=True)
def store(public_parent: Path) -> Iterator[Path]:
    """A work directory of this module only, which the sandbox's user can enter."""
    directory = public_parent / "work"
    directory.mkdir()
    before = os.environ.get("SWEGYM_WORKDIR")
    os.environ["SWEGYM_WORKDIR"] = str(directory)
    yield directory
    del os.environ["SWEGYM_WORKDIR"]
    if before is not None:
        os.environ["SWEGYM_WORKDIR"] = before


def test_a_directory_is_used_as_it_is(opened: Opener, root: Path) -> None:
    assert resolve_image(str(root)) == root
    sandbox = opened(SandboxSpec(image=str(root)))
    assert sandbox.run("ls /; cat code.py; echo $FROM_IMAGE").output.endswith("x = 1\ngiven by the image\n")
    assert "sbin" not in sandbox.run("ls /").output
    assert "agent" in sandbox.run("cat /etc/passwd").output
    added = sandbox.run("for name in passwd group; do echo joe:x:1000: >> /etc/$name || exit; done")
    assert added.exit_code == 0, added.output  # a package that is installed adds users


@needs_apptainer
def test_a_sif_is_unpacked_once_and_belongs_to_the_sandbox_user(opened: Opener, root: Path, tmp_path: Path) -> None:
    sif = tmp_path / "image.sif"
    subprocess.run(["apptainer", "build", str(sif), str(root)], check=True, capture_output=True)
    unpacked = resolve_image(str(sif))
    assert resolve_image(str(shutil.copy(sif, tmp_path / "copy.sif"))) == unpacked
    sandbox = opened(SandboxSpec(image=str(sif)))
    result = sandbox.run("echo y > code.py && rm /etc/hosts.none /bin/env; ls /bin; cat code.py; stat -c %u /bin")
    assert "env" not in result.output.split() and result.output.endswith(f"y\n{sandbox.run('echo $UID').output}")
    assert (unpacked / "bin" / "env").exists()
    assert [(change.path, change.kind) for change in sandbox.changes("/testbed")] == [("code.py", "written")]


@needs_apptainer
def test_a_definition_is_built(opened: Opener, root: Path, tmp_path: Path) -> None:
    definition = tmp_path / "image.def"
    given = '%environment\n    export FROM_DEFINITION=given FROM_IMAGE="$FROM_IMAGE, then by the definition"\n'
    definition.write_text(f"Bootstrap: localimage\nFrom: {root}\n%files\n    {definition} /built-from\n{given}")
    sandbox = opened(SandboxSpec(image=str(definition)))
    assert "Bootstrap" in sandbox.run("cat /built-from").output
    output = sandbox.run('echo "$FROM_DEFINITION; $FROM_IMAGE"').output
    assert output == "given; given by the image, then by the definition\n"


@needs_apptainer
def test_equal_content_under_any_name_is_one_directory(opened: Opener, root: Path, tmp_path: Path) -> None:
    image = make_image(root)
    layout = write_layout(image, tmp_path / "layout")
    archive = tmp_path / "image.tar"
    subprocess.run(["tar", "-cf", archive, "-C", layout, "oci-layout", "index.json", "blobs"], check=True)
    saved = write_docker_archive(image, tmp_path / "saved.tar")
    with serving() as registry:
        registry.images["some/image"] = image
        names = [f"docker://{registry.address}/some/image:1", str(layout), f"oci:{layout}", str(archive)]
        names += [f"oci-archive:{archive}", str(saved), f"docker-archive:{saved}"]
        roots = {resolve_image(name) for name in names}
    assert len(roots) == 1
    # The name is the hash of the content, computed again here.
    assert settle(roots.pop()).digest.startswith(resolve_image(names[0]).name.removeprefix("image-"))
    sandbox = opened(SandboxSpec(image=names[1]))
    assert sandbox.run("cat code.py; echo $FROM_IMAGE").output == "x = 1\nby its config\n"
    changed = write_layout(make_image(root, {"testbed/new": "y"}), tmp_path / "changed")
    assert resolve_image(str(changed)) != resolve_image(str(layout))


@needs_apptainer
def test_a_recipe_is_built_again_when_a_file_that_it_copies_changes(root: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "file").write_text("1")
    definition = tmp_path / "image.def"
    definition.write_text(f"Bootstrap: localimage\nFrom: {root}\n%files\n    given /given\n")
    first = resolve_image(str(definition))
    assert (first / "given" / "file").read_text() == "1"
    assert resolve_image(str(definition)) == first
    (tmp_path / "given" / "file").write_text("22")
    assert (resolve_image(str(definition)) / "given" / "file").read_text() == "22"


def test_several_may_list_and_remove_images_at_once(public_parent: Path) -> None:
    place = public_parent / "several"
    place.mkdir()

    def turn(_: int) -> None:
        for number in range(150):
            with contextlib.suppress(FileExistsError):
                (place / f"image-{number % 3}").mkdir()
            images = ImageStore(place)
            images.inventory()
            images.prune(unused_for_s=-1.0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(turn, range(4)))
    assert ImageStore(place).inventory() == []


def test_links_of_an_image_do_not_reach_the_host(root: Path, tmp_path: Path, store: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "passwd").write_text("secret:x:1:1::/:/bin/sh\n")
    for place, link in (("linked-file", "etc/passwd"), ("linked-directory", "etc")):
        image = tmp_path / place
        image.mkdir()
        if link == "etc":
            (image / "etc").symlink_to(host)
        else:
            (image / "etc").mkdir()
            (image / "etc" / "passwd").symlink_to(host / "passwd")
        assert "secret" not in (identity_layer(image) / "etc" / "passwd").read_text()


def test_settling_follows_no_link_and_removes_devices(tmp_path: Path) -> None:
    outside, image = tmp_path / "outside", tmp_path / "image"
    outside.write_text("x")
    outside.chmod(0o600)
    (image / "closed").mkdir(parents=True)
    (image / "closed" / "program").write_text("x")
    (image / "closed" / "program").chmod(0o4700)
    (image / "link").symlink_to(outside)
    os.mkfifo(image / "pipe")
    (image / "closed").chmod(0)
    before = settle(image)
    assert outside.stat().st_mode & 0o7777 == 0o600 and outside.stat().st_uid == os.geteuid()
    assert not (image / "pipe").exists()
    assert (image / "closed" / "program").stat().st_mode & 0o7777 == 0o755
    assert settle(image) == before
    (image / "closed" / "program").chmod(0o644)
    assert settle(image).digest != before.digest


def test_an_invalid_image_is_an_error_of_one_line(tmp_path: Path, store: Path) -> None:
    before = sorted((store / "images").glob("*-*"))
    cut, text, recipe = tmp_path / "cut.sif", tmp_path / "notes.txt", tmp_path / "bad.def"
    cut.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + bytes(100_000))
    text.write_text("hello")
    recipe.write_text("Bootstrap: nonsense\nFrom: nowhere\n")
    for image, message in (
        (cut, "no squashfs file system"),
        (text, "not an image; expected a directory"),
        (tmp_path / "none", "no such directory"),
        (recipe, "apptainer"),
        ("python:3.11", "Did you mean docker://python:3.11"),
        ("missing.def", r"no such directory, image file or registry address \(docker://…\)\.$"),
        ("docker://", "not the address of an image"),
        (f"docker-archive:{text}", "apptainer exited with 255: .*(tar|archive)"),
        (f"oci:{tmp_path}", "not an OCI layout"),
        (tmp_path, "it has no /bin/bash"),
    ):
        with pytest.raises(ImageError, match=message) as raised:
            resolve_image(str(image))
        assert "\n" not in str(raised.value)
    assert sorted((store / "images").glob("*-*")) == before


@pytest.mark.parametrize("reason", ["invalid argument", "operation not permitted"])
def test_base_that_belongs_to_another_user_is_explained(tmp_path: Path, reason: str) -> None:
    """As Apptainer says it to an ordinary user, whose user namespace has nobody else in it."""
    apptainer = tmp_path / "apptainer"
    error = f'FATAL:   While performing build: copy Failed: failed to Lchown "/x" for UID 1, GID 1: lchown /x: {reason}'
    apptainer.write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 255\n")
    apptainer.chmod(0o755)
    with pytest.raises(ImageError, match=r"^x\.def: what it copies belongs to another user.*cp -r"):
        building._run_tool([str(apptainer)], "x.def")
