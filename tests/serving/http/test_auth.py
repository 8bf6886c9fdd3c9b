"""Keys from files and the environment."""

import pytest

from placement.errors import InputError
from serving.http import read_keys


def bearer(key):
    return f"Bearer {key}".encode()


def test_keys_of_a_file_and_the_environment(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text("# tenants\nkey-of-anna anna\n\nkey-of-nobody\nkey-of-the-admin admin\n")
    keys = read_keys(file, {"PENSTOCK_API_KEYS": "key-of-bert bert,key-of-cora cora"})
    tenants = {"key-of-anna": "anna", "key-of-nobody": "default", "key-of-bert": "bert", "key-of-cora": "cora"}
    assert {key: keys.tenant(bearer(key)) for key in tenants} == tenants
    assert keys.tenant(bearer("key-of-the-admin")) == "admin"
    assert keys.is_admin(bearer("key-of-the-admin"))
    assert not keys.is_admin(bearer("key-of-anna"))
    assert not keys.is_open


@pytest.mark.parametrize(
    "header", [None, b"", b"key-of-anna", b"Basic key-of-anna", b"Bearer ", b"Bearer " + b"x" * 600]
)
def test_headers_without_a_known_key(header, tmp_path):
    keys = read_keys(None, {"PENSTOCK_API_KEYS": "key-of-anna anna", "PENSTOCK_ADMIN_KEY": "key-of-the-admin"})
    assert keys.tenant(header) is None
    assert not keys.is_admin(header)


def test_without_keys_anybody_may_ask_but_nobody_administer():
    keys = read_keys(None, {})
    assert keys.is_open
    assert not keys.has_admin


@pytest.mark.parametrize(
    ("lines", "environment", "words"),
    [
        ("", {}, "no keys"),
        ("short anna", {}, "line 1: a key of 5 characters"),
        ("key-of-anna anna x", {}, "3 words"),
        ("key-of-anna anna\nkey-of-anna bert", {}, "line 2: the same key for tenants 'anna' and 'bert'"),
        ("key-of-one admin\nkey-of-two admin", {}, "two admin keys"),
        ("key-of-anna anna", {"PENSTOCK_ADMIN_KEY": "key-of-anna"}, "they must differ"),
        ("key-of-anna anna", {"PENSTOCK_API_KEYS": "x y"}, "PENSTOCK_API_KEYS, entry 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(lines, environment, words, tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text(lines)
    with pytest.raises(InputError, match=words) as caught:
        read_keys(file, environment)
    assert "\n" not in str(caught.value)
    assert "key-of" not in str(caught.value)


def test_a_file_that_is_no_text(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_keys(file, {})
