"""An SSH server for the tests: whoever comes may run commands, on loopback alone.

``python ssh_server.py KEY`` writes its host key's public part to ``KEY`` and prints its port. It
ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh


class Server(asyncssh.SSHServer):
    """Asks for no password."""

    def begin_auth(self, username: str) -> bool:
        return False


async def run(process: Any) -> None:
    """Run a client's command in a group of its own, which ends with the connection."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_shell(
        process.command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
        gone = asyncio.ensure_future(process.wait_closed())
        ended = asyncio.ensure_future(child.wait())
        await asyncio.wait({gone, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            process.exit(ended.result())
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


async def main(key_file: str) -> None:
    """Serve until nobody wants it any more."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    Path(key_file).write_bytes(key.export_public_key())
    server = await asyncssh.create_server(
        Server, "127.0.0.1", 0, server_host_keys=[key], process_factory=run, encoding=None
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
