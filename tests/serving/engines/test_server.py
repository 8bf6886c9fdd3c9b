"""vLLM's server, which a script stands for: where it listens, and what is left of that."""

import asyncio
import os
import stat
import sys
from pathlib import Path

from serving.engines.exchange import Place
from serving.engines.launch import Launch
from serving.engines.server import ModelServer
from serving.engines.vllm import resolved
from serving.worker.event_loop import run
from serving.worker.foreign import EngineConfig
from serving.worker.messages import ModelSpec

VLLM = """#!{python}
import http.server, os, socketserver, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{{"data": [{{"id": "m"}}]}}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.do_GET()

    def log_message(self, *words):
        pass

assert "VLLM_SERVER_DEV_MODE" in os.environ
socketserver.ThreadingUnixStreamServer(sys.argv[sys.argv.index("--uds") + 1], Answers).serve_forever()
"""


def test_no_other_user_reaches_the_control_of_vllm(tmp_path):
    script = tmp_path / "python"
    script.write_text(VLLM.format(python=sys.executable))
    script.chmod(0o700)

    async def work():
        spec = ModelSpec(name="m", path="m", engine=EngineConfig(kind="vllm", python=str(script), start=20))
        server = ModelServer(Launch(spec, resolved(spec.engine), ("cpu:0",), 1, 1), lambda reason: None)
        await server.start()
        assert isinstance(server.place, Place)
        socket = Path(server.place.socket)
        words = Path(f"/proc/{server.process.pid}/cmdline").read_text().split("\0")
        assert stat.S_ISSOCK(os.stat(socket).st_mode)
        assert stat.S_IMODE(os.stat(socket.parent).st_mode) == 0o700
        assert "--port" not in words
        await server.sleep()
        assert await server.wake() > 0
        await server.stop()
        assert not socket.parent.exists()

    run(asyncio.wait_for(work(), 40))
