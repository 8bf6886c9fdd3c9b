"""Brings the running workers to the plan and keeps them there; composes router, groups and HTTP into a server."""
