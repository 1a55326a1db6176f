"""Validate the files of a job against the schemas of Kubernetes, Kubeflow and SkyPilot, without a cluster.

    problems(document)      # ["spec.trainer.numNode: no such field; did you mean numNodes?"]

Kubernetes: the models of the package kubeflow-trainer-api, generated from the definitions that a server has. A server
may drop an unknown field; here it is a problem. SkyPilot: its own schema of a task, in skypilot_task.json.
Only fields, their types and required fields are checked, not whether names refer to anything.
"""

import difflib
import importlib.util
import json
import typing
from collections.abc import Iterator
from pathlib import Path

import yaml

from ddp_course.base.errors import InputError

TASK = Path(__file__).with_name("skypilot_task.json")
MODELS = {  # kind -> class in kubeflow_trainer_api.models
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "JobSet": "JobsetV1alpha2JobSet",
    "Job": "IoK8sApiBatchV1Job",
}


def documents(path: str | Path) -> list[dict]:
    """Read the manifests in a file. Raises InputError if it is not YAML, or not a sequence of mappings."""
    try:
        mappings = [document for document in yaml.safe_load_all(Path(path).read_text()) if document is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from None
    if not mappings or not all(isinstance(document, dict) for document in mappings):
        raise InputError(f"{path} holds no manifest: a mapping with kind, metadata and spec is needed")
    for document in mappings:
        if "kind" in document and not isinstance(document["kind"], str):
            raise InputError(f"{path} holds no manifest: its kind is no text: {document['kind']!r}")
    return mappings


def models_missing() -> str | None:
    """None if the package that `problems` needs for Kubernetes is installed, else how to install it."""
    if importlib.util.find_spec("kubeflow_trainer_api"):
        return None
    return "kubeflow-trainer-api is not installed: pip install --no-deps -r requirements/course.txt"


def problems(document: dict) -> list[str]:
    """List each field that is unknown, missing or of a wrong type, with its path; [] if there is none.

    Raises InputError for an unknown `kind`, or if the models are not installed.
    """
    if "kind" not in document:  # a SkyPilot task
        import jsonschema

        errors = jsonschema.Draft202012Validator(json.loads(TASK.read_text())).iter_errors(document)
        return [f"{'.'.join(map(str, error.absolute_path)) or 'the task'}: {error.message}" for error in errors]
    if reason := models_missing():
        raise InputError(reason)
    from kubeflow_trainer_api import models

    if (kind := document.get("kind")) not in MODELS:
        raise InputError(f"there is no model of kind {kind!r}; there are {', '.join(MODELS)}")
    return list(_problems(document, getattr(models, MODELS[kind]), ""))


def _problems(value, annotation, path: str) -> Iterator[str]:
    """Yield the problems of `value` and everything below it, for a field with this annotation."""
    from pydantic import TypeAdapter, ValidationError

    annotation, optional = _without_none(annotation)
    if value is None and optional:
        return
    kind, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    fields = getattr(annotation, "model_fields", None)
    if kind is list and isinstance(value, list):
        for n, item in enumerate(value):
            yield from _problems(item, arguments[0], f"{path}[{n}]")
    elif kind is dict and isinstance(value, dict):  # free names
        for name, item in value.items():
            yield from _problems(item, arguments[1], f"{path}.{name}")
    elif fields and "actual_instance" in fields:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            yield f"{path}: a number or a text is needed, not {value!r}"
    elif fields and isinstance(value, dict):
        yield from _fields(value, fields, path)
    else:
        try:
            TypeAdapter(annotation).validate_python(value)
        except ValidationError as error:
            yield f"{path}: {error.errors()[0]['msg']}, not {value!r}"


def _fields(value: dict, fields: dict, path: str) -> Iterator[str]:
    """Yield the problems of a value that a model with these fields describes."""
    known = {field.alias or name: field for name, field in fields.items()}
    for name, item in value.items():
        item_path = f"{path}.{name}".lstrip(".")
        if name in known:
            yield from _problems(item, known[name].annotation, item_path)
        else:
            matches = difflib.get_close_matches(str(name), known, 1)
            yield f"{item_path}: no such field{f'; did you mean {matches[0]}?' if matches else ''}"
    for name, field in known.items():
        if field.is_required() and name not in value:
            yield f"{f'{path}.{name}'.lstrip('.')}: missing"


def _without_none(annotation) -> tuple[object, bool]:
    """Return X and True for Optional[X], else the annotation and False."""
    types = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    optional = typing.get_origin(annotation) is typing.Union and len(types) == 1
    return (types[0], True) if optional else (annotation, False)
