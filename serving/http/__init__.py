"""The HTTP endpoint: OpenAI's API, KServe v2, health, metrics and the controller's routes."""

from serving.http.app import make_app
from serving.http.auth import Keys, read_keys
from serving.http.door import Door
from serving.http.families import Family, Histogram
from serving.http.logs import configure_logs, get_log
from serving.http.server import HttpServer, check_address
from serving.http.service import Admin, ServedModel, Service, Submits
from serving.http.settings import HttpSettings

__all__ = [
    "Admin",
    "Door",
    "Family",
    "Histogram",
    "HttpServer",
    "HttpSettings",
    "Keys",
    "ServedModel",
    "Service",
    "Submits",
    "check_address",
    "configure_logs",
    "get_log",
    "make_app",
    "read_keys",
]
