"""A checkpoint through fsspec: saved and read on a disk and in memory, where a rename copies and deletes."""

import os

import fsspec
import pytest

from ddp_course.lab import object_store

BOTH = "weights {0} and moments {0}"


@pytest.fixture
def memory():
    yield fsspec.filesystem("memory")
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("url", ["memory://a/step_1", "file://{tmp}/step_1"])
def test_what_is_saved_is_read(memory, tmp_path, url):
    url = url.format(tmp=tmp_path)
    assert object_store.read(url) == "no marker"
    object_store.save(url, 1)
    assert object_store.read(url) == BOTH.format(1)


def test_a_renamed_folder_is_the_same_files_on_a_disk_and_half_there_in_memory(memory, tmp_path):
    object_store.save(f"file://{tmp_path}/new", 1)
    inodes = sorted(file.inode() for file in os.scandir(tmp_path / "new"))
    fsspec.filesystem("file").mv(f"{tmp_path}/new", f"{tmp_path}/moved", recursive=True)
    assert sorted(file.inode() for file in os.scandir(tmp_path / "moved")) == inodes
    object_store.save("memory://new", 1)
    reads = object_store.reads_during(lambda: memory.mv("/new", "/moved", recursive=True), "memory://moved")
    assert reads == ["no marker", "marker, unreadable", BOTH.format(1)]


def test_the_marker_comes_last_in_a_new_folder_and_guards_nothing_in_an_old_one(memory):
    reads = object_store.reads_during(lambda: object_store.save("memory://new", 1), "memory://new")
    assert reads == ["no marker", BOTH.format(1)]
    reads = object_store.reads_during(lambda: object_store.save("memory://new", 2), "memory://new")
    assert reads[0] == BOTH.format(1) and "weights 2 and moments 1" in reads and reads[-1] == BOTH.format(2)
