"""The open-loop client on asyncio: sends each request when it is due, whatever became of those before."""
