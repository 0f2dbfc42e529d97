import json

import pytest
from pydantic import ValidationError

from nearkin.data.inputs import InputSpec
from nearkin.data.section import DataSection
from nearkin.errors import DataError


def test_defaults_are_valid_and_every_field_is_described():
    section = DataSection()
    assert section.split == "auto"
    for name, field in DataSection.model_fields.items():
        assert field.description, name


def test_it_survives_json_and_gives_a_schema():
    section = DataSection(test_classes=["a", "b"], crop_scale=(0.2, 0.9))
    assert DataSection.model_validate(json.loads(section.model_dump_json())) == section
    assert set(DataSection.model_json_schema()["properties"]) == set(DataSection.model_fields)


def test_class_names_that_look_like_numbers_are_names():
    assert DataSection(test_classes=[7, "8"]).test_classes == ["7", "8"]


def test_a_whole_number_is_a_share():
    assert DataSection(val_classes=0).val_classes == 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {"test_classes": 1.0},
        {"val_classes": -0.1},
        {"classes_per_batch": 1},
        {"per_class": 0},
        {"crop_scale": (0.0, 1.0)},
        {"crop_scale": (0.9, 0.1)},
        {"crop_ratio": (-1.0, 1.0)},
        {"jitter": 1.5},
        {"workers": -1},
        {"audio_seconds": 0.0},
        {"split": "thirds"},
        {"crops": "random"},
    ],
)
def test_what_cannot_work_is_refused(fields):
    with pytest.raises(ValidationError):
        DataSection(**fields)


def test_it_is_frozen():
    with pytest.raises(ValidationError):
        DataSection().flip = False


SPECS = [
    InputSpec(3, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    InputSpec(1, 28, [0.5], [0.5]),
    InputSpec.audio(frames=200),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}{spec.channels}")
def test_an_input_spec_survives_json(spec):
    assert InputSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert hash(spec) == hash(InputSpec.from_dict(spec.to_dict()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"channels": 2}, "channels"),
        ({"channels": 3}, "channels"),
        ({"size": 0}, "size"),
        ({"std": (0.0,)}, "std"),
        ({"kind": "video"}, "'video'"),
        ({"kind": "audio", "frames": 0}, "frames"),
        ({"kind": "audio", "channels": 3}, "channels"),
        ({"chanels": 1}, "'channels'"),
    ],
)
def test_an_impossible_input_spec_is_refused(fields, message):
    with pytest.raises(DataError, match=message):
        InputSpec.from_dict({"channels": 1, "size": 8, "mean": (0.0,), "std": (1.0,), **fields})


def test_an_incomplete_input_spec_is_refused():
    with pytest.raises(DataError, match="std"):
        InputSpec.from_dict({"channels": 1, "size": 8})
