"""The manifest for Kubernetes: every document fits its schema, and the configuration in it can be served."""

import copy
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from serving.config import read_serve_config
from tests.deploy.schemas import SCHEMAS

MANIFEST = Path(__file__).parents[2] / "deploy" / "kuberay.yaml"


@pytest.fixture
def documents():
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


def test_every_document_fits_its_schema(documents):
    assert documents.keys() == SCHEMAS.keys()
    for kind, schema in SCHEMAS.items():
        jsonschema_rs.Draft202012Validator(schema).validate(documents[kind])


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("spec", "entrypoint"), None),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "groupName"), 7),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "maxReplicas"), "16"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers"), []),
        (("spec", "workers"), 3),
    ],
)
def test_the_schema_finds_what_is_wrong(documents, where, value):
    job = copy.deepcopy(documents["RayJob"])
    place = job
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    if value is None:
        del place[where[-1]]
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.Draft202012Validator(SCHEMAS["RayJob"]).validate(job)


def test_names_agree(documents):
    """What is mounted is there, the service finds the head, and the configuration is one that is read."""
    cluster = documents["RayJob"]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert {mount["name"] for mount in spec["containers"][0]["volumeMounts"]} <= volumes
    selector = documents["Service"]["spec"]["selector"]
    assert selector["ray.io/originated-from-cr-name"] == documents["RayJob"]["metadata"]["name"]


def test_the_job_can_be_submitted_and_looked_after(documents):
    """KubeRay's submitter is a pod of the job's name, its operator one of any namespace; both ask the head."""
    job = documents["RayJob"]
    assert job["spec"]["submissionMode"] == "K8sJobMode"
    assert "dashboard-host" not in job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    rules = documents["NetworkPolicy"]["spec"]["ingress"]
    [asked] = [rule for rule in rules if any(one["port"] == 8265 for one in rule.get("ports", []))]
    submitter, operator = asked["from"]
    assert submitter["podSelector"]["matchLabels"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert "namespaceSelector" not in submitter
    assert operator["namespaceSelector"] == {}
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}


def test_the_configuration_is_read(documents, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(documents["ConfigMap"]["data"]["config.yaml"])
    config = read_serve_config(path)
    port = documents["Service"]["spec"]["ports"][0]["targetPort"]
    assert (config.address.port, config.fronts) == (port, 4)
