"""Admission, queues and dispatch of live requests: asyncio, no HTTP, no torch."""
