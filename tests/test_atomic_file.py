"""A replaced file has its old content or its new one, and no other file is left in its folder."""

import pytest

from ddp_course.base.atomic_file import replacing

pytestmark = pytest.mark.smoke


def test_the_new_content_appears_at_the_end_of_the_block(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as file:
        file.write("né\n")
        assert path.read_text() == "old"
    assert path.read_bytes() == "né\n".encode()
    with replacing(path, "wb") as file:
        file.write(b"\r\n\xff")
    assert path.read_bytes() == b"\r\n\xff"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", ["old", None])
def test_a_block_that_raises_changes_nothing(content, tmp_path):
    path = tmp_path / "file"
    if content:
        path.write_text(content)
    with pytest.raises(ValueError, match="of the block"), replacing(path) as file:
        file.write("half of ")
        raise ValueError("of the block")
    assert [path.read_text() for path in tmp_path.iterdir()] == ([content] if content else [])


def test_two_writers_at_once_do_not_mix(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as first, replacing(path) as second:
        first.write("first")
        second.write("second")
    assert path.read_text() == "first"  # its block ended last
    assert list(tmp_path.iterdir()) == [path]
