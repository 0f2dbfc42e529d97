"""The domains suite by naive loops: across domains and within; what is asked, and what is only found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nearkin as nk
from nearkin.audits import Subject, run_suites, subject_of_model
from nearkin.audits.domain_pool import DomainPart, DomainPool, TrainedDomains, domain_interval
from nearkin.data.dataset import Dataset
from nearkin.data.manifest import Manifest
from nearkin.data.splits import resolve_split
from nearkin.data.stores import ArrayStore
from nearkin.errors import DataError, RecipeError
from nearkin.metrics import class_bootstrap
from nearkin.protocol.candidates import divide
from nearkin.recipe import AuditSection, load_recipe
from nearkin.spaces import Euclidean, Sphere
from nearkin.training import Run, train

CLASSES, DOMAINS = 4, ["art", "photo", "sketch"]
SECTION = AuditSection(resamples=50, suites=["domains"], classification_k=[1, 3])


def points(seed, count, shift=0.6):
    """Points of classes that lie apart, each domain moved in a direction of its own."""
    rng = np.random.default_rng(seed)
    centres, moved = np.random.default_rng(9).normal(size=(2, max(CLASSES, len(DOMAINS)), 6))
    classes, domains = rng.integers(CLASSES, size=count), rng.integers(len(DOMAINS), size=count)
    vectors = centres[classes] + shift * moved[domains] + 0.6 * rng.normal(size=(count, 6))
    labels = np.array([f"c{number}" for number in classes], dtype=object)
    return vectors.astype(np.float32), labels, np.array(DOMAINS, dtype=object)[domains]


def naive(queries, gallery, pairs, class_of, distance):
    """P@1, R-precision and MAP@R by loops; `pairs(q, g)` says whether a query may find an item."""
    found = {"P@1": [], "R-precision": [], "MAP@R": []}
    for query in queries:
        others = [item for item in gallery if pairs(query, item)]
        ranked = sorted(others, key=lambda item: distance(query, item))
        hits = [class_of(item) == class_of(query) for item in ranked]
        relevant = sum(hits)
        if relevant == 0:
            continue
        found["P@1"].append(float(hits[0]))
        found["R-precision"].append(sum(hits[:relevant]) / relevant)
        precisions = [sum(hits[: place + 1]) / (place + 1) for place in range(relevant) if hits[place]]
        found["MAP@R"].append(sum(precisions) / relevant)
    return {name: float(np.mean(values)) for name, values in found.items()}


@pytest.fixture(scope="module")
def free():
    vectors, labels, domains = points(0, 90)
    return Subject(vectors, labels, Euclidean(), domains=domains)


def test_every_domain_is_searched_for_in_the_others_and_in_itself(free):
    result = run_suites(free, SECTION)
    vectors, labels, domains = free.embeddings.astype(np.float64), free.labels, free.domains
    everywhere = range(len(labels))
    means = {}
    for name in DOMAINS:
        asked = [row for row in everywhere if domains[row] == name]
        for kind, inside in (("cross-domain", False), ("in-domain", True)):
            expected = naive(
                asked,
                [row for row in everywhere if (domains[row] == name) is inside],
                lambda query, item: query != item,
                lambda row: labels[row],
                lambda query, item: np.linalg.norm(vectors[query] - vectors[item]),
            )
            for metric, value in expected.items():
                means.setdefault(f"{metric}, {kind}", []).append(value)
                kept = result.details["domains"]["figures"][name][kind]["values"]
                assert kept[metric] == pytest.approx(value, abs=1e-6)
            for metric in ("P@1", "MAP@R"):
                assert result[f"{metric}, {name}, {kind}"] == pytest.approx(expected[metric], abs=1e-6)
    for metric, values in means.items():
        assert result[metric] == pytest.approx(np.mean(values), abs=1e-6)
    assert result["P@1, gap"] == pytest.approx(result["P@1, in-domain"] - result["P@1, cross-domain"], abs=1e-6)
    assert not result.lower_is_better  # a bad model has a small gap
    assert result.primary == "P@1, cross-domain"
    assert result["P@1, cross-domain"] < result["P@1, in-domain"]  # the domains were moved apart


def test_accuracies_across_domains_are_those_of_centroids_and_votes_of_the_others(free):
    result = run_suites(free, SECTION)
    vectors, labels, domains = free.embeddings.astype(np.float64), free.labels, free.domains
    names = sorted(set(labels))
    for domain in DOMAINS:
        others, right, nearest = domains != domain, [], []
        centroids = np.stack([vectors[others & (labels == name)].mean(axis=0) for name in names])
        for row in np.flatnonzero(domains == domain):
            right.append(names[np.linalg.norm(centroids - vectors[row], axis=1).argmin()] == labels[row])
            near = np.flatnonzero(others)[np.linalg.norm(vectors[others] - vectors[row], axis=1).argmin()]
            nearest.append(labels[near] == labels[row])
        kept = result.details["domains"]["figures"][domain]["cross-domain"]["values"]
        assert kept["accuracy, centroid"] == pytest.approx(np.mean(right))
        assert kept["accuracy, 1-NN"] == pytest.approx(np.mean(nearest)) == pytest.approx(kept["P@1"])


def test_the_matrix_has_each_domain_in_each(free):
    table = run_suites(free, SECTION).details["domains"]["P@1"]
    vectors, labels, domains = free.embeddings.astype(np.float64), free.labels, free.domains
    assert table["domains"] == DOMAINS
    for row, asked in enumerate(DOMAINS):
        for column, searched in enumerate(DOMAINS):
            expected = naive(
                np.flatnonzero(domains == asked),
                np.flatnonzero(domains == searched),
                lambda query, item: query != item,
                lambda at: labels[at],
                lambda query, item: np.linalg.norm(vectors[query] - vectors[item]),
            )
            assert table["matrix"][row][column] == pytest.approx(expected["P@1"], abs=1e-6)


def test_a_class_that_no_other_domain_has_is_not_asked_across_domains():
    vectors, labels, domains = points(1, 60)
    labels[domains == "photo"] = np.where(labels[domains == "photo"] == "c0", "alone", labels[domains == "photo"])
    result = run_suites(Subject(vectors, labels, Euclidean(), domains=domains), SECTION)
    kinds = result.details["domains"]["figures"]["photo"]
    alone = int((labels == "alone").sum())
    assert alone > 1
    assert kinds["cross-domain"]["queries"] == kinds["in-domain"]["queries"] - alone
    assert kinds["gap"]["queries"] == kinds["cross-domain"]["queries"]
    across = kinds["in-domain"]["values"]["P@1"] - kinds["cross-domain"]["values"]["P@1"]
    assert kinds["gap"]["values"]["P@1"] != pytest.approx(across)  # the gap is of the queries that both have


def held_out_subject(seed=3):
    """Sketches under audit; other items trained, and still others validated."""
    vectors, labels, domains = points(seed, 150)
    audited = domains == "sketch"
    rng = np.random.default_rng(seed)
    chose = ~audited & (rng.random(150) < 0.3)
    trained = ~audited & ~chose

    def part(mask):
        return DomainPart(labels[mask], domains[mask], lambda: vectors[mask], lambda: vectors[mask] + 1)

    known = TrainedDomains(("art", "photo"), ("sketch",), part(trained), part(chose))
    subject = Subject(
        vectors[audited], labels[audited], Euclidean(), domains=domains[audited], trained_domains=known, own_data=True
    )
    return subject, (vectors, labels, domains), {"audited": audited, "trained": trained, "chose": chose}


def test_what_trained_is_found_but_never_asked():
    subject, (vectors, labels, domains), parts = held_out_subject()
    result = run_suites(subject, SECTION)
    loops = (lambda at: labels[at], lambda query, item: np.linalg.norm(vectors[query] - vectors[item]))

    def expected(asked, gallery):
        return naive(np.flatnonzero(asked), np.flatnonzero(gallery), lambda a, b: a != b, *loops)

    for metric in ("P@1", "R-precision", "MAP@R"):
        across = expected(parts["audited"], parts["trained"])[metric]
        within = expected(parts["audited"], parts["audited"])[metric]
        assert result[f"{metric}, held out, cross-domain"] == pytest.approx(across, abs=1e-6)
        assert result[f"{metric}, held out, in-domain"] == pytest.approx(within, abs=1e-6)
        for kind, same in (("cross-domain", False), ("in-domain", True)):
            values = [
                expected(parts["chose"] & (domains == name), parts["trained"] & ((domains == name) == same))[metric]
                for name in ("art", "photo")
            ]
            value = np.mean(values)
            assert result[f"{metric}, trained on, {kind}"] == pytest.approx(value, abs=1e-6)
    details = result.details["domains"]
    assert details["roles"] == {"art": "trained on", "photo": "trained on", "sketch": "held out"}
    assert sum(details["queries"].values()) == parts["audited"].sum() + parts["chose"].sum()
    assert result.primary == "P@1, held out, cross-domain"
    assert any("accuracy" in note for note in result.notes)
    assert any("sketch" in note for note in result.notes)


def test_accuracy_of_the_nearest_proxy_is_of_held_out_and_of_validation_items():
    subject, (vectors, labels, domains), parts = held_out_subject()
    names = tuple(f"c{number}" for number in range(CLASSES))
    proxies = np.random.default_rng(5).normal(size=(CLASSES, 6)).astype(np.float32)
    result = run_suites(subject.changed(proxies=(names, proxies)), SECTION)
    nearest = np.array(names)[np.linalg.norm(vectors[:, None] - proxies[None], axis=2).argmin(axis=1)]
    right = nearest == labels
    assert result["accuracy nearest proxy, held out"] == pytest.approx(right[parts["audited"]].mean())
    trained = np.mean([right[parts["chose"] & (domains == name)].mean() for name in ("art", "photo")])
    assert result["accuracy nearest proxy, trained on"] == pytest.approx(trained)
    assert result.primary == "accuracy nearest proxy, held out"
    per_class = result.per_class["accuracy nearest proxy, held out"]
    for name in names:
        assert per_class[name] == pytest.approx(right[parts["audited"] & (labels == name)].mean())


class Learned:
    """As much of a learned similarity as the suite asks: two classifiers that differ."""

    classes = tuple(f"c{number}" for number in range(CLASSES))
    dense = torch.nn.Linear(6, CLASSES)

    def class_scores(self, given, by="sim"):
        return -given[:, :CLASSES] if by == "sim" else given[:, :CLASSES]


def test_a_learned_similarity_is_judged_by_both_of_its_classifiers():
    subject, (vectors, labels, _), parts = held_out_subject()
    result = run_suites(subject.changed(learned=Learned()), SECTION)
    for name, sign in (("SIM", -1), ("DOL", 1)):
        chosen = np.array(Learned.classes)[(sign * vectors[parts["audited"], :CLASSES]).argmax(axis=1)]
        assert result[f"accuracy {name}, held out"] == pytest.approx((chosen == labels[parts["audited"]]).mean())
    assert result.primary == "accuracy SIM, held out"


def test_the_baseline_is_searched_in_the_same_way():
    subject, (vectors, labels, _), parts = held_out_subject()
    result = run_suites(subject.changed(baseline=vectors[parts["audited"]] + 1, baseline_name="other"), SECTION)
    unit = (vectors + 1) / np.linalg.norm(vectors + 1, axis=1, keepdims=True)
    expected = naive(
        np.flatnonzero(parts["audited"]),
        np.flatnonzero(parts["trained"]),
        lambda a, b: True,
        lambda at: labels[at],
        lambda query, item: -unit[query] @ unit[item],
    )
    assert result.baseline["P@1, held out, cross-domain"] == pytest.approx(expected["P@1"], abs=1e-6)
    assert result["P@1, held out, cross-domain"] != pytest.approx(expected["P@1"], abs=1e-6)


def test_the_interval_of_one_domain_is_that_of_its_classes():
    vectors, labels, _ = points(2, 70)
    values = (vectors[:, 0] > 0).astype(float)
    single = domain_interval([values], [labels], resamples=200, seed=4)
    assert single == pytest.approx(class_bootstrap(values, labels, resamples=200, seed=4))
    # A mean over domains gives each the same weight, however many queries it has.
    low, high = domain_interval([np.ones(60), np.zeros(4)], [labels[:60], labels[60:64]], resamples=200, seed=0)
    assert low <= 0.5 <= high
    assert (low, high) != pytest.approx((60 / 64, 60 / 64), abs=0.2)


def test_items_without_a_domain_are_left_out_and_counted():
    vectors, labels, domains = points(0, 90)
    domains = domains.copy()
    domains[:7] = ""
    result = run_suites(Subject(vectors, labels, Euclidean(), domains=domains), SECTION)
    assert sum(result.details["domains"]["queries"].values()) == 83
    assert any("7" in note for note in result.notes)


@pytest.mark.parametrize(
    ("domains", "match"),
    [(None, "'domain'"), (["photo"] * 90, "two")],
)
def test_data_without_two_domains_is_refused(free, domains, match):
    given = None if domains is None else np.array(domains, dtype=object)
    with pytest.raises(DataError, match=match):
        run_suites(free.changed(domains=given), SECTION)


def test_pictures_are_drawn_of_every_kind():
    subject, _, _ = held_out_subject()
    result = run_suites(subject.changed(learned=Learned()), SECTION)
    figures = [draw() for draw in result.drawings]
    titles = ["Across domains and within", "Each domain in each", "The model's own classes, held out and trained on"]
    assert [figure.title for figure in figures] == titles
    assert all(figure.png.startswith(b"\x89PNG") for figure in figures)


@pytest.fixture(scope="module")
def pictures():
    """Six classes of patterns, in colour and in their negative."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (6, 16, 16, 3))
    names, labels, domains, images = [], [], [], []
    for label in range(6):
        for domain in ("plain", "negative"):
            for item in range(8):
                image = np.clip(patterns[label] + rng.normal(0, 40, (16, 16, 3)), 0, 255).astype(np.uint8)
                names.append(f"{domain}/{label}/{item}.png")
                labels.append(f"class{label}")
                domains.append(domain)
                images.append(255 - image if domain == "negative" else image)
    rows = Manifest.from_rows(names, labels, domain=domains)
    return Dataset(rows, ArrayStore(np.stack(images), names), name="pictures")


def run_with(pictures, tiny, path, recipe, held):
    changes = [*tiny, "data.split=domains", f"data.test_domains=[{held}]", "data.val_items=0.25"]
    recipe = load_recipe(recipe, changes)
    train(pictures, recipe, Run(path), source="pictures", cache_directory=path.parent, progress=False)
    return Run(path), recipe


@pytest.mark.parametrize("recipe", ["normface", "learned-similarity"])
def test_a_run_with_a_held_out_domain_end_to_end(pictures, tiny, tmp_path, recipe):
    run, made = run_with(pictures, tiny, tmp_path / "run", recipe, "negative")
    card = run.model().card
    assert card["domains"] == {"train": ["plain"], "val": ["plain"], "test": ["negative"]}
    assert "val_accuracy" in card["validation"]
    result = nk.audit(
        run.path, pictures, suites=["domains"], overrides=["audit.resamples=50"], baseline=False, progress=False
    )
    domains = pictures.manifest.column("domain")
    assert result.subject.facts["data"] == "pictures, domain negative"
    assert set(result.subject.domains) == {"negative"}
    split = resolve_split(pictures.manifest, made.data, made.training.seed)
    assert set(domains[split.test]) == {"negative"}
    vectors = run.model().encode(pictures, progress=False)
    if recipe == "normface":
        proxies = run.class_vectors()
        near = Sphere().distance(torch.from_numpy(vectors), torch.from_numpy(proxies.proxies)).argmin(dim=1).numpy()
        right = np.array(proxies.names, dtype=object)[near] == pictures.labels
        name = "nearest proxy"
    else:
        model = run.model()
        best = model.class_scores(torch.from_numpy(vectors)).argmax(dim=1).numpy()
        right, name = np.array(model.classes, dtype=object)[best] == pictures.labels, "SIM"
        assert "accuracy DOL, held out" in result.values
    assert result[f"accuracy {name}, held out"] == pytest.approx(right[split.test].mean())
    assert result[f"accuracy {name}, trained on"] == pytest.approx(right[split.val].mean())
    assert result.primary == f"accuracy {name}, held out"
    # How the best weights were chosen is what the audit says of the trained domain.
    assert card["validation"]["val_accuracy"] == pytest.approx(result[f"accuracy {name}, trained on"])


def test_a_run_of_other_data_is_asked_every_domain_and_says_which_it_saw(pictures, tiny, tmp_path):
    run, _ = run_with(pictures, tiny, tmp_path / "run", "normface", "negative")
    fewer = pictures.select(np.arange(len(pictures) - 1))
    result = nk.audit(
        run.path, fewer, suites=["domains"], overrides=["audit.resamples=20"], baseline=False, progress=False
    )
    assert result.details["domains"]["roles"] == {"negative": "not trained on", "plain": "trained on"}
    assert result.primary == "P@1, cross-domain"
    assert any("items" in note and "train" in note for note in result.notes)


def test_two_audits_of_held_out_domains_are_of_different_data(pictures, tiny, tmp_path):
    facts = []
    for held in ("plain", "negative"):
        run, _ = run_with(pictures, tiny, tmp_path / held, "normface", held)
        subject = subject_of_model(run.model(), pictures, cache_directory=tmp_path, baseline=False, progress=False)
        facts.append(subject.facts)
        assert set(subject.domains) == {held}
        assert DomainPool.of(subject).known == tuple({"plain", "negative"} - {held})
    assert facts[0]["items"] == facts[1]["items"]
    assert facts[0]["data"] != facts[1]["data"]  # or compare would pair them class by class


@pytest.mark.parametrize(("recipe", "chosen_by"), [("softmax", "val_accuracy"), ("proxy-anchor", "val_MAP@R")])
def test_losses_that_classify_choose_their_weights_by_accuracy_and_others_by_retrieval(
    pictures, tiny, tmp_path, recipe, chosen_by
):
    run, _ = run_with(pictures, tiny, tmp_path / "run", recipe, "plain")
    rows = [row[chosen_by] for row in run.history() if chosen_by in row]
    card = run.model().card
    assert card["validation"][chosen_by] == max(rows)
    assert ("val_accuracy" in card["validation"]) is (recipe == "softmax")


def test_a_run_without_validation_has_figures_of_the_held_out_domain_alone(pictures, tiny, tmp_path):
    changes = [*tiny, "data.split=domains", "data.test_domains=negative", "data.val_items=0", "audit.resamples=20"]
    run = Run(tmp_path / "run")
    train(pictures, load_recipe("normface", changes), run, source="x", cache_directory=tmp_path, progress=False)
    result = nk.audit(run.path, pictures, suites=["domains"], progress=False)
    assert run.model().card["selected_on"] is None
    assert not [name for name in result.values if "trained on" in name]
    assert set(result.baseline) == {name for name in result.values if not name.startswith("accuracy nearest proxy")}


def test_the_protocols_refuse_a_split_by_domains(pictures):
    section = load_recipe("normface", ["data.split=domains", "data.test_domains=[plain]"]).data
    with pytest.raises(RecipeError, match="'domains'"):
        divide(pictures, section, "fair", 2)


@pytest.mark.data
def test_the_recipe_of_pacs_end_to_end_on_a_few_items(data_root, tiny, tmp_path):
    if not (data_root / "pacs.zip").is_file():
        pytest.skip("pacs.zip is not in the data directory")
    pacs = nk.open_data("pacs", data_root=data_root)
    domains, rng, rows = pacs.manifest.column("domain"), np.random.default_rng(0), []
    for label in pacs.classes:
        for name in sorted(set(domains)):
            rows.extend(rng.choice(np.flatnonzero((pacs.labels == label) & (domains == name)), 6, replace=False))
    few = pacs.select(np.sort(rows))
    small = [one for one in tiny if not one.startswith(("data.split", "data.test_classes", "data.val_classes"))]
    recipe = load_recipe("pacs", [*small, "data.test_domains=photo"])
    run = Run(tmp_path / "run")
    train(few, recipe, run, source="pacs", cache_directory=tmp_path, progress=False)
    result = nk.audit(run.path, few, overrides=["audit.resamples=50"], baseline=False, progress=False)
    assert result.details["domains"]["queries"] == {"art_painting": 7, "cartoon": 7, "photo": 42, "sketch": 7}
    assert result.details["domains"]["roles"]["photo"] == "held out"
    assert result.primary == "accuracy SIM, held out"
    assert 0 <= result["accuracy DOL, held out"] <= 1
