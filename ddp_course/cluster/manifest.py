"""The files of a job held against the definitions of what will read them, before any cluster does.

    problems(document)      # ["spec.trainer.numNode: no such field; did you mean numNodes?"]

Kubernetes: the models of the package kubeflow-trainer-api, made from the definitions that a server has, too. A server
may drop a field that it does not know; here it is a problem. SkyPilot: its own schema of a task, in skypilot_task.json.
Only fields, their types and what is required are checked, not whether names refer to anything.
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
    """What a file holds: manifests, one after the other. Raises InputError if it is no YAML of mappings."""
    try:
        found = [one for one in yaml.safe_load_all(Path(path).read_text()) if one is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from None
    if not found or not all(isinstance(one, dict) for one in found):
        raise InputError(f"{path} holds no manifest: a mapping with kind, metadata and spec is needed")
    for one in found:
        if "kind" in one and not isinstance(one["kind"], str):
            raise InputError(f"{path} holds no manifest: its kind is no text: {one['kind']!r}")
    return found


def models_missing() -> str | None:
    """None, or one sentence on the package that `problems` needs."""
    if importlib.util.find_spec("kubeflow_trainer_api"):
        return None
    return "kubeflow-trainer-api is not installed: pip install --no-deps -r requirements/course.txt"


def problems(document: dict) -> list[str]:
    """Each field that does not exist, is missing or has a wrong type, with its place. Empty: it is accepted."""
    if "kind" not in document:
        return _problems_of_task(document)
    if reason := models_missing():
        raise InputError(reason)
    from kubeflow_trainer_api import models

    if (kind := document.get("kind")) not in MODELS:
        raise InputError(f"there is no model of kind {kind!r}; there are {', '.join(MODELS)}")
    return list(_problems(document, getattr(models, MODELS[kind]), ""))


def _problems_of_task(task: dict) -> list[str]:
    """The same for a SkyPilot task."""
    import jsonschema

    errors = jsonschema.Draft202012Validator(json.loads(TASK.read_text())).iter_errors(task)
    return [f"{'.'.join(map(str, one.absolute_path)) or 'the task'}: {one.message}" for one in errors]


def _problems(value, annotation, place: str) -> Iterator[str]:
    """What is wrong with `value`, and all below it, where a field has this annotation."""
    from pydantic import TypeAdapter, ValidationError

    annotation, optional = _without_none(annotation)
    if value is None and optional:
        return
    kind, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    fields = getattr(annotation, "model_fields", None)
    if kind is list and isinstance(value, list):
        for n, one in enumerate(value):
            yield from _problems(one, arguments[0], f"{place}[{n}]")
    elif kind is dict and isinstance(value, dict):  # its names are the writer's own
        for name, one in value.items():
            yield from _problems(one, arguments[1], f"{place}.{name}")
    elif fields and "actual_instance" in fields:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            yield f"{place}: a number or a text is needed, not {value!r}"
    elif fields and isinstance(value, dict):
        yield from _fields(value, fields, place)
    else:
        try:
            TypeAdapter(annotation).validate_python(value)
        except ValidationError as error:
            yield f"{place}: {error.errors()[0]['msg']}, not {value!r}"


def _fields(value: dict, fields: dict, place: str) -> Iterator[str]:
    """The same for a value with fields of its model."""
    known = {field.alias or name: field for name, field in fields.items()}
    for name, one in value.items():
        where = f"{place}.{name}".lstrip(".")
        if name in known:
            yield from _problems(one, known[name].annotation, where)
        else:
            near = difflib.get_close_matches(str(name), known, 1)
            yield f"{where}: no such field{f'; did you mean {near[0]}?' if near else ''}"
    for name, field in known.items():
        if field.is_required() and name not in value:
            yield f"{f'{place}.{name}'.lstrip('.')}: missing"


def _without_none(annotation) -> tuple[object, bool]:
    """X of Optional[X], and whether it was that."""
    some = [one for one in typing.get_args(annotation) if one is not type(None)]
    optional = typing.get_origin(annotation) is typing.Union and len(some) == 1
    return (some[0], True) if optional else (annotation, False)
