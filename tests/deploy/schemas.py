"""Of Kubernetes' and KubeRay's kinds, the fields that the manifest uses and what must be there, in JSON Schema; a field
that is not known is an error, as the API server would have it.
"""

from typing import Any

STRING: dict[str, Any] = {"type": "string", "minLength": 1}
NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
STRINGS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITIES: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([KMGTPE]i?|m)?$"},
}


def of(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def many(items: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


SELECTOR = of(
    matchLabels=STRINGS,
    matchExpressions=many(
        of(
            "key operator",
            key=STRING,
            operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            values=many(STRING),
        )
    ),
)
CONTAINER = of(
    "name image",
    name=STRING,
    image=STRING,
    ports=many(of("containerPort", containerPort=NUMBER, name=STRING, protocol={"enum": ["TCP", "UDP"]})),
    env=many(of("name value", name=STRING, value={"type": "string"})),
    resources=of(requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts=many(of("name mountPath", name=STRING, mountPath=STRING, readOnly={"type": "boolean"})),
)
VOLUME = of(
    "name",
    name=STRING,
    configMap=of("name", name=STRING),
    secret=of("secretName", secretName=STRING),
    persistentVolumeClaim=of("claimName", claimName=STRING, readOnly={"type": "boolean"}),
    emptyDir=of(medium=STRING, sizeLimit=STRING),
)
TEMPLATE = of(
    "spec",
    metadata=of(labels=STRINGS),
    spec=of("containers", containers=many(CONTAINER, 1), volumes=many(VOLUME), nodeSelector=STRINGS),
)
HEAD = of("template", rayStartParams=STRINGS, serviceType=STRING, template=TEMPLATE)
WORKERS = of(
    "groupName minReplicas maxReplicas template",
    groupName=STRING,
    replicas=NUMBER,
    minReplicas=NUMBER,
    maxReplicas=NUMBER,
    numOfHosts=NUMBER,
    rayStartParams=STRINGS,
    template=TEMPLATE,
)
RAY_JOB = of(
    "entrypoint rayClusterSpec",
    entrypoint=STRING,
    shutdownAfterJobFinishes={"type": "boolean"},
    ttlSecondsAfterFinished=NUMBER,
    backoffLimit=NUMBER,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    rayClusterSpec=of(
        "headGroupSpec",
        rayVersion=STRING,
        enableInTreeAutoscaling={"type": "boolean"},
        headGroupSpec=HEAD,
        workerGroupSpecs=many(WORKERS),
    ),
)
SERVICE = of(
    "ports",
    selector=STRINGS,
    type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    ports=many(of("port", name=STRING, port=NUMBER, targetPort={"type": ["integer", "string"]}), 1),
)
POLICY = of(
    "podSelector",
    podSelector=SELECTOR,
    policyTypes=many({"enum": ["Ingress", "Egress"]}),
    ingress=many(
        {
            "type": "object",
            "properties": {
                "from": many(of(podSelector=SELECTOR, namespaceSelector=SELECTOR)),
                "ports": many(of("port", port=NUMBER, protocol={"enum": ["TCP", "UDP"]})),
            },
            "additionalProperties": False,
        }
    ),
)


def kind(version: str, name: str, **parts: Any) -> dict[str, Any]:
    head = {"apiVersion": {"const": version}, "kind": {"const": name}, "metadata": of("name", name=STRING)}
    return of(f"apiVersion kind metadata {' '.join(parts)}", **head, **parts)


SCHEMAS = {
    "ConfigMap": kind("v1", "ConfigMap", data=STRINGS),
    "RayJob": kind("ray.io/v1", "RayJob", spec=RAY_JOB),
    "Service": kind("v1", "Service", spec=SERVICE),
    "NetworkPolicy": kind("networking.k8s.io/v1", "NetworkPolicy", spec=POLICY),
}
