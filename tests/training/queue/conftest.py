"""Stores of every kind there is here: SQLite always, PostgreSQL where its server and psycopg are installed."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

# Helpers of the tests are imported as tests.training.…, wherever pytest was started.
ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session", autouse=True)
def _compiled():
    import tests.training.queue.warm  # noqa: F401


def find_servers():
    """Folder of initdb and postgres: in the path, or where Debian keeps them."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture(scope="session")
def postgres_server():
    """The URL of a server of our own, reached by a socket in a folder of its own."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = find_servers()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    # A server refuses to run as root.
    user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    if os.getuid() == 0:
        shutil.chown(folder, user)
    data = folder / "data"
    common = {"user": user if os.getuid() == 0 else None, "cwd": folder, "stdout": subprocess.DEVNULL}
    made = [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8"]
    subprocess.run(made, check=True, stderr=subprocess.STDOUT, timeout=120, **common)
    serve = [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(serve, stderr=log, **common)
    url = f"postgresql:///postgres?host={folder}&user=tester"
    try:
        wait_for(url)
        yield url
    finally:
        server.terminate()
        server.wait(20)
        shutil.rmtree(folder)


def wait_for(url):
    import psycopg

    for _ in range(300):
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    pytest.fail("the PostgreSQL server did not start")


@pytest.fixture
def postgres_url(postgres_server):
    """With nothing in it."""
    empty(postgres_server)
    return postgres_server


def empty(url):
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request, tmp_path):
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else f"sqlite:///{tmp_path}/q.db"


@pytest.fixture
def store(store_url):
    from training.queue import open_store

    opened = open_store(store_url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_store(tmp_path):
    from training.queue import open_store

    opened = open_store(f"sqlite:///{tmp_path}/q.db")
    yield opened
    opened.close()
