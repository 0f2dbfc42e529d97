"""The classifier that a finished run's loss is: how it scores the classes that it was trained on."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.hierarchy import Hierarchy
from nearkin.models import Embedder, SimilarityModel
from nearkin.models.class_scores import ClassScores
from nearkin.objectives import make_objective
from nearkin.objectives.proxy.protocols import ClassVectors
from nearkin.training.run import Run
from nearkin.training.state import load_state


def run_classifier(path: Path, embedder: Embedder) -> ClassScores | None:
    """What the loss of a run's best weights takes points of the model's space for.

    Returns:
        None where the loss knows no classes, where the model is its own classifier, or where the run kept no state.
    """
    run = Run(path)
    proxies = run.class_vectors()
    if proxies is None or isinstance(embedder, SimilarityModel) or not run.state_file.exists():
        return None
    tensors, _ = load_state(run.state_file)
    kept = tensors.get("best_loss", {})
    card = embedder.card
    objective = make_objective(
        run.recipe().objective,
        dimension=embedder.dimension,
        classes=len(proxies.names),
        space=embedder.space,
        features=embedder.feature_size,
        epoch_steps=1,
        class_names=proxies.names,
        hierarchy=Hierarchy.from_newick(card["hierarchy"]) if "hierarchy" in card else None,
    )
    loss = objective.loss
    if not kept or not isinstance(loss, ClassVectors):
        return None
    loss.load_state_dict(kept)
    loss.eval().requires_grad_(False)
    return ClassScores(proxies.names, loss.class_scores)
