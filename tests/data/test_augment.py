import importlib
import math
import pickle
import random
from dataclasses import replace

import kornia
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nearkin.data.audio import LogMelTransform
from nearkin.data.augment import (
    BatchAugment,
    EvalTransform,
    Normalise,
    TrainTransform,
    central_box,
    plain_view,
    random_box,
    transform_for,
)
from nearkin.data.inputs import InputSpec
from nearkin.data.section import DataSection
from nearkin.errors import DataError, MissingExtraError

COLOUR = InputSpec(3, 96, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY = InputSpec(1, 28, (0.5,), (0.25,))
RATIO = (3 / 4, 4 / 3)
JITTER = (0.4, 0.4, 0.4, 0.1)


def smooth_image(width, height, mode="RGB"):
    """Gradients: every place has its own colour, and resampling hardly changes it."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    pixels = np.stack([across, down, 255 - across], axis=-1).astype(np.uint8)
    return Image.fromarray(pixels if mode == "RGB" else pixels[..., 0])


def smooth_images_of_grey(count):
    return torch.linspace(0.3, 0.7, 64).view(1, 1, 8, 8).expand(count, 3, 8, 8)


class TestCentreCrop:
    @pytest.mark.parametrize("size", [(300, 200), (200, 300), (110, 110), (40, 60), (1000, 700)])
    @pytest.mark.parametrize("resize", [1.0, 1.143, 2.0])
    def test_it_equals_resizing_and_then_cropping(self, size, resize):
        image = smooth_image(*size)
        found = EvalTransform(COLOUR, resize)(image)
        scale = round(96 * resize) / min(size)
        wide = image.resize((round(size[0] * scale), round(size[1] * scale)), Image.Resampling.BILINEAR)
        left, top = (wide.width - 96) // 2, (wide.height - 96) // 2
        wanted = np.asarray(wide.crop((left, top, left + 96, top + 96)), dtype=float).transpose(2, 0, 1)
        assert np.abs(found.numpy() - wanted).max() <= 4  # half a pixel of the crop's place

    def test_the_resizing_filter_is_antialiased(self):
        checks = Image.fromarray((np.indices((192, 192)).sum(axis=0) % 2 * 255).astype(np.uint8))
        found = EvalTransform(COLOUR, 1.0)(checks).float()
        assert (found - 127.5).abs().max() < 3

    def test_small_inputs_see_the_whole_image(self):
        assert EvalTransform(GREY).resize == 1.0
        assert EvalTransform(COLOUR).resize == pytest.approx(1.143)
        pixels = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
        np.testing.assert_array_equal(EvalTransform(GREY)(Image.fromarray(pixels))[0].numpy(), pixels)

    @pytest.mark.parametrize("resize", [96, 110, 128, 256])
    def test_the_short_side_may_be_given_in_pixels(self, resize):
        image = smooth_image(300, 200)
        spec = replace(COLOUR, resize=resize)
        transform = plain_view(spec)
        assert transform.hint == resize
        wide = image.resize((round(1.5 * resize), resize), Image.Resampling.BILINEAR)
        left, top = (wide.width - 96) // 2, (resize - 96) // 2
        wanted = np.asarray(wide.crop((left, top, left + 96, top + 96)), dtype=float).transpose(2, 0, 1)
        assert np.abs(transform(image).numpy() - wanted).max() <= 4
        assert InputSpec.from_dict(spec.to_dict()) == spec
        assert "resize" not in COLOUR.to_dict()

    @pytest.mark.parametrize("change", [{"resize": 95}, {"resize": 128, "fit": "pad"}])
    def test_a_short_side_that_cannot_be_cut_is_refused(self, change):
        with pytest.raises(DataError, match=r"model\.resize"):
            replace(COLOUR, **change)

    def test_it_refuses_to_cut_more_than_there_is(self):
        with pytest.raises(DataError, match=r"0\.9"):
            EvalTransform(COLOUR, 0.9)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "CMYK"])
@pytest.mark.parametrize("spec", [COLOUR, GREY], ids=["colour", "grey"])
@pytest.mark.parametrize("train", [True, False])
def test_every_mode_becomes_the_channels_asked_for(mode, spec, train):
    transform = transform_for(spec, None, train)
    found = transform(smooth_image(50, 41).convert(mode), np.random.default_rng(0))
    assert found.shape == (spec.channels, spec.size, spec.size)
    assert found.dtype == torch.uint8
    assert found.permute(1, 2, 0).is_contiguous()  # channels innermost, without gaps


def test_grey_images_have_three_equal_channels():
    found = EvalTransform(COLOUR)(smooth_image(120, 100, "L"))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class TestRandomBox:
    @given(
        width=st.integers(1, 500),
        height=st.integers(1, 500),
        scale=st.tuples(st.floats(0.05, 1.0), st.floats(0.05, 1.0)).map(sorted).map(tuple),
        seed=st.integers(0, 10**6),
    )
    def test_it_lies_inside_with_the_area_and_ratio_asked_for(self, width, height, scale, seed):
        box = random_box(width, height, scale, RATIO, np.random.default_rng(seed))
        left, top, right, bottom = box
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        w, h = right - left, bottom - top
        if box != central_box(width, height, RATIO):
            assert (w - 0.5) * (h - 0.5) <= scale[1] * width * height
            assert (w + 0.5) * (h + 0.5) >= scale[0] * width * height
            assert (w - 0.5) / (h + 0.5) <= RATIO[1]
            assert (w + 0.5) / (h - 0.5) >= RATIO[0]

    def test_the_draws_have_torchvision_s_distributions(self):
        rng = np.random.default_rng(0)
        boxes = np.array([random_box(1000, 1000, (0.2, 0.4), RATIO, rng) for _ in range(4000)])
        w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        area, aspect = w * h / 1e6, np.log(w / h)
        assert area.mean() == pytest.approx(0.3, abs=0.004)
        assert area.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.04)
        assert aspect.mean() == pytest.approx(0.0, abs=0.012)
        assert aspect.std() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.04)
        place = boxes[:, 0] / (1000 - w)
        assert place.mean() == pytest.approx(0.5, abs=0.02)
        assert place.std() == pytest.approx(1 / math.sqrt(12), rel=0.04)

    @pytest.mark.parametrize(
        ("size", "box"),
        [
            ((1000, 100), (433, 0, 566, 100)),  # too wide: 4:3 in the centre
            ((100, 1000), (0, 433, 100, 566)),  # too tall: 3:4 in the centre
            ((100, 90), (0, 0, 100, 90)),
            ((1, 50), (0, 24, 1, 25)),
        ],
    )
    def test_the_fallback_is_the_largest_centred_box_of_an_allowed_ratio(self, size, box):
        assert central_box(*size, RATIO) == box

    def test_it_falls_back_when_nothing_fits(self):
        found = random_box(1000, 100, (1.0, 1.0), RATIO, np.random.default_rng(0))
        assert found == central_box(1000, 100, RATIO)


class TestTrainTransform:
    def test_the_generator_decides(self):
        image, transform = smooth_image(200, 150), TrainTransform(COLOUR)
        first, again, other = (transform(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_it_is_the_box_cut_out_and_resized(self):
        image = smooth_image(200, 150)
        for seed in range(5):
            box = random_box(200, 150, (0.2, 1.0), RATIO, np.random.default_rng(seed))
            wanted = image.crop(box).resize((96, 96), Image.Resampling.BILINEAR)
            found = TrainTransform(COLOUR)(image, np.random.default_rng(seed))
            assert np.abs(found.numpy() - np.asarray(wanted, dtype=float).transpose(2, 0, 1)).max() <= 4

    def test_without_a_generator_it_is_the_centre(self):
        image = smooth_image(100, 100)
        assert torch.equal(TrainTransform(COLOUR)(image), EvalTransform(COLOUR, 1.0)(image))

    def test_bad_ranges_are_refused(self):
        with pytest.raises(DataError, match="ascending"):
            TrainTransform(COLOUR, scale=(0.5, 0.2))

    @given(st.integers(0, 1000))
    def test_the_hint_keeps_every_box_as_large_as_the_input(self, seed):
        transform = TrainTransform(COLOUR, (0.3, 1.0))
        side = transform.hint
        left, top, right, bottom = random_box(side, side, (0.3, 1.0), RATIO, np.random.default_rng(seed))
        assert min(right - left, bottom - top) >= 95


class TestTransformFor:
    def test_it_follows_the_section(self):
        section = DataSection(crop_scale=(0.5, 0.6), crop_ratio=(1.0, 1.0))
        made = transform_for(COLOUR, section, train=True)
        assert isinstance(made, TrainTransform)
        assert (made.scale, made.ratio) == ((0.5, 0.6), (1.0, 1.0))
        assert isinstance(transform_for(COLOUR, section, train=False), EvalTransform)
        assert isinstance(transform_for(COLOUR, DataSection(crop="centre"), train=True), EvalTransform)

    def test_audio_gets_log_mels(self):
        made = transform_for(InputSpec.audio(), DataSection(audio_seconds=0.5), train=True)
        assert isinstance(made, LogMelTransform)
        assert made.frames == 50

    @pytest.mark.parametrize("spec", [COLOUR, InputSpec.audio()], ids=["image", "audio"])
    def test_transforms_reach_worker_processes(self, spec):
        assert pickle.loads(pickle.dumps(transform_for(spec, None, True))).hint == transform_for(spec, None, True).hint


def pixels(channels=3, count=8, size=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


class TestBatchAugment:
    def test_the_same_step_gives_the_same_batch(self):
        augment, batch = BatchAugment(COLOUR, jitter=JITTER, seed=3), pixels()
        assert torch.equal(augment(batch, 5), augment(batch, 5))
        assert torch.equal(augment(batch, 5), BatchAugment(COLOUR, jitter=JITTER, seed=3)(batch, 5))
        assert not torch.equal(augment(batch, 5), augment(batch, 6))
        assert not torch.equal(augment(batch, 5), BatchAugment(COLOUR, jitter=JITTER, seed=4)(batch, 5))

    def test_the_global_random_states_are_left_alone(self):
        torch.manual_seed(0)
        states = torch.get_rng_state(), random.getstate()
        BatchAugment(COLOUR, jitter=JITTER)(pixels(), 1)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]

    def test_nor_do_they_matter(self):
        augment, batch = BatchAugment(COLOUR, jitter=JITTER), pixels()
        torch.manual_seed(1)
        first = augment(batch, 1)
        torch.manual_seed(2)
        assert torch.equal(first, augment(batch, 1))

    @pytest.mark.parametrize("spec", [COLOUR, GREY], ids=["colour", "grey"])
    def test_flipped_images_are_mirrored_and_nothing_else(self, spec):
        batch = pixels(spec.channels, count=64)
        found, straight = BatchAugment(spec, flip=True)(batch, 0), Normalise(spec)(batch)
        mirrored = [torch.equal(one, other.flip(-1)) for one, other in zip(found, straight, strict=True)]
        same = [torch.equal(one, other) for one, other in zip(found, straight, strict=True)]
        assert all(one != other for one, other in zip(mirrored, same, strict=True))
        assert 16 < sum(mirrored) < 48

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    @pytest.mark.parametrize("jitter", [None, (0.0, 0.0, 0.0, 0.0)])
    def test_without_augmentation_it_is_the_eval_twin(self, dtype, jitter):
        batch = pixels() if dtype == torch.uint8 else torch.rand(4, 3, 8, 8)
        assert torch.equal(BatchAugment(COLOUR, flip=False, jitter=jitter)(batch, 9), Normalise(COLOUR)(batch))

    @pytest.mark.parametrize("spec", [COLOUR, GREY], ids=["colour", "grey"])
    def test_jitter_changes_every_image_and_stays_in_range(self, spec):
        batch = pixels(spec.channels)
        found = BatchAugment(spec, flip=False, jitter=JITTER)(batch, 0)
        assert found.shape == batch.shape
        unit = found * torch.tensor(spec.std).view(1, -1, 1, 1) + torch.tensor(spec.mean).view(1, -1, 1, 1)
        assert unit.min() >= -1e-6
        assert unit.max() <= 1 + 1e-6
        straight = Normalise(spec)(batch)
        assert all((one - other).abs().max() > 1e-3 for one, other in zip(found, straight, strict=True))

    def test_the_input_is_not_changed(self):
        batch = torch.rand(4, 3, 8, 8)
        before = batch.clone()
        BatchAugment(COLOUR, jitter=JITTER)(batch, 0)
        assert torch.equal(batch, before)

    def test_kornia_is_needed_only_to_augment(self, monkeypatch):
        def refuse(name):
            raise ImportError(f"No module named '{name}'")

        monkeypatch.setattr(importlib, "import_module", refuse)
        BatchAugment(COLOUR, flip=False)(pixels(), 0)
        with pytest.raises(MissingExtraError, match=r"nearkin\[train\]"):
            BatchAugment(COLOUR)

    def test_colour_may_change_by_another_strength_than_light(self):
        found = BatchAugment.for_section(COLOUR, DataSection(jitter=0.4, colour=0.0)).augmentations[1]
        wanted = kornia.augmentation.ColorJitter(0.4, 0.4, 0.0, 0.0, p=1.0)
        assert repr(found) == repr(wanted)
        grey = smooth_images_of_grey(8)
        changed = BatchAugment(COLOUR, flip=False, jitter=(0.4, 0.4, 0.0, 0.0))(grey, 0)
        unit = changed * torch.tensor(COLOUR.std).view(1, -1, 1, 1) + torch.tensor(COLOUR.mean).view(1, -1, 1, 1)
        torch.testing.assert_close(unit[:, 0], unit[:, 1], rtol=0, atol=1e-3)

    def test_rotation_turns_about_the_centre_and_fills_corners_with_the_image(self):
        across, down = torch.meshgrid(torch.linspace(-1, 1, 33), torch.linspace(-1, 1, 33), indexing="xy")
        rings = (0.5 + 0.5 * torch.cos(4 * (across**2 + down**2).sqrt())).expand(6, 3, 33, 33)
        inside = (across**2 + down**2) < 0.9
        augment = BatchAugment(COLOUR, flip=False, rotation=90.0)
        found, straight = augment(rings, 1), Normalise(COLOUR)(rings)
        assert (found - straight)[..., inside].abs().max() < 0.1  # of values that differ by 4
        flat = torch.full((6, 3, 33, 33), 0.7)
        torch.testing.assert_close(augment(flat, 1), Normalise(COLOUR)(flat))
        wedge = across.expand(6, 3, 33, 33).clamp(min=0)
        assert all((one - other).abs().max() > 0.1 for one, other in zip(augment(wedge, 1), augment(wedge, 2)))  # noqa: B905

    def test_rotation_keeps_to_its_angle(self):
        """A bright point goes along its circle, as far as the largest angle."""
        points = torch.zeros(200, 1, 65, 65)
        points[:, 0, 31:34, 51:54] = 1.0
        found = BatchAugment(InputSpec(1, 65, (0.0,), (1.0,)), flip=False, rotation=30.0)(points, 0)[:, 0]
        grid = torch.arange(65.0) - 32
        total = found.sum((1, 2))
        down, across = (found * grid[:, None]).sum((1, 2)) / total, (found * grid).sum((1, 2)) / total
        angles = torch.rad2deg(torch.atan2(down, across))
        assert 27 < angles.max() <= 30.5
        assert -30.5 <= angles.min() < -27
        torch.testing.assert_close((down**2 + across**2).sqrt(), torch.full((200,), 20.0), rtol=0, atol=0.3)

    def test_a_rectangle_is_erased_to_the_mean(self):
        batch = torch.rand(300, 3, 24, 32) * 0.9 + 0.05
        straight = Normalise(COLOUR)(batch)
        found = BatchAugment(COLOUR, flip=False, erase=0.5)(batch, 3)
        shares = []
        for one, other in zip(found, straight, strict=True):
            gone = (one == 0).all(0)
            assert torch.equal(one[:, ~gone], other[:, ~gone])
            if gone.any():
                rows, columns = gone.any(1).nonzero().flatten(), gone.any(0).nonzero().flatten()
                assert gone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
                assert len(rows) * len(columns) == int(gone.sum())
                shares.append(float(gone.float().mean()))
        assert 110 < len(shares) < 190
        assert 0.01 < min(shares) < 0.04
        assert 0.3 < max(shares) < 0.36
        assert np.mean(shares) == pytest.approx((0.02 + 1 / 3) / 2, abs=0.03)

    def test_everything_of_a_part_is_as_in_the_whole_batch(self):
        augment = BatchAugment(COLOUR, jitter=JITTER, rotation=30.0, erase=0.5, seed=3)
        batch = torch.rand(12, 3, 16, 16)
        whole = augment(batch, 4)
        for first, last in ((0, 5), (5, 12)):
            torch.testing.assert_close(augment(batch[first:last], 4, first, 12), whole[first:last])
        assert not torch.equal(whole, augment(batch, 5))

    @pytest.mark.parametrize("section", [DataSection(rotation=10.0), DataSection(erase=0.5)])
    def test_audio_is_neither_turned_nor_erased(self, section):
        with pytest.raises(DataError, match="image"):
            BatchAugment.for_section(InputSpec.audio(), section)

    def test_a_section_decides_and_audio_is_only_normalised(self):
        assert len(BatchAugment.for_section(COLOUR, DataSection()).augmentations) == 1
        assert len(BatchAugment.for_section(COLOUR, DataSection(jitter=0.4)).augmentations) == 2
        assert len(BatchAugment.for_section(COLOUR, DataSection(flip=False)).augmentations) == 0
        audio = InputSpec.audio()
        sounds = torch.randn(2, 1, 40, 30)
        assert torch.equal(BatchAugment.for_section(audio, DataSection(jitter=0.4))(sounds, 0), sounds)
        with pytest.raises(DataError, match="image"):
            BatchAugment(audio)


class TestNormalise:
    def test_values(self):
        batch = pixels()
        mean, std = np.array(COLOUR.mean).reshape(1, 3, 1, 1), np.array(COLOUR.std).reshape(1, 3, 1, 1)
        found = Normalise(COLOUR)(batch)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), (batch.numpy() / 255 - mean) / std, rtol=1e-5, atol=1e-5)

    def test_float_and_uint8_agree_and_the_memory_format_is_kept(self):
        batch = pixels().to(memory_format=torch.channels_last)
        found = Normalise(COLOUR)(batch)
        assert torch.equal(found, Normalise(COLOUR)(batch.float() / 255))
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert Normalise(COLOUR)(torch.rand(1, 3, 4, 4).half()).dtype == torch.float32

    def test_it_adds_nothing_to_the_weights(self):
        assert not Normalise(COLOUR).state_dict()
