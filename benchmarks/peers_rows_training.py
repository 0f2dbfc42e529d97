"""Features of training: losses, mining, batches, models, data.

A line is: what, then a probe each for nearkin, PML, OML and torchmetrics.
"""

from __future__ import annotations

from peers_probes import Absent, Count, InPart, Judged, Name, Option

OML_HOME = "https://open-metric-learning.readthedocs.io/"
OML_EXAMPLES = "https://open-metric-learning.readthedocs.io/en/latest/feature_extraction/python_examples.html"
OML_ZOO = "https://github.com/OML-Team/open-metric-learning#zoo"

WRAPPERS = "^Base|Mixin$|^CrossBatchMemory$|^SelfSupervisedLoss$|^MultipleLosses$|^GenericPairLoss$"

LOSSES = [
    (
        "losses to choose from",
        Count(("objectives.losses",)),
        Count(("losses",), besides=WRAPPERS),
        Count(("losses",)),
        None,
    ),
    (
        "proxy losses (Proxy Anchor, SoftTriple)",
        Name("objectives.proxies.proxy_anchor"),
        Name("losses.ProxyAnchorLoss"),
        Absent("proxy_?anchor|soft_?triple|proxy_?nca"),
        None,
    ),
    (
        "losses of ranking metrics (SmoothAP, surrogate precision)",
        Absent("smooth_?ap|fast_?ap|surrogate_prec"),
        Name("losses.SmoothAPLoss"),
        Name("losses.SurrogatePrecision"),
        None,
    ),
    (
        "losses without labels (VICReg, views of one sample)",
        Absent("vicreg|self_?supervis"),
        Name("losses.SelfSupervisedLoss"),
        Absent("vicreg|self_?supervis"),
        None,
    ),
    (
        "losses by a class hierarchy",
        Name("objectives.hierarchy"),
        Absent("hierarch\\w*_?loss|h_?xe"),
        Absent("hierarch"),
        None,
    ),
    (
        "losses of episodes, distance-ratio scores",
        Name("objectives.episodic"),
        Absent("episod|prototypical"),
        Absent("episod|prototypical"),
        None,
    ),
    (
        "distances a loss can be given",
        Count(("spaces.spaces",)),
        Count(("distances",), besides="^Base|^Batched"),
        Judged("1", "L2 distances in losses, miners and validation", OML_EXAMPLES),
        None,
    ),
    ("hyperbolic space", Name("spaces.PoincareBall"), Absent("poincar|hyperbol"), Absent("poincar|hyperbol"), None),
    (
        "reducers: how the terms of a loss are put together",
        Absent("reducer"),
        Count(("reducers",)),
        Option("losses.TripletLoss", "reduction"),
        None,
    ),
    ("regularisers", Count(("objectives.regularisers",)), Count(("regularizers",)), Absent("regulari[sz]er"), None),
    (
        "trained prefixes (Matryoshka)",
        Option("objectives.ObjectiveSection", "prefixes"),
        Absent("matryoshka|nested_dim"),
        Absent("matryoshka|nested_dim"),
        None,
    ),
]

MINING = [
    (
        "miners",
        Count(("objectives.miners",)),
        Count(("miners",), besides="^Base|^Embeddings"),
        Count(("miners",)),
        None,
    ),
    (
        "memory of earlier batches",
        Name("training.schedules.CrossBatchMemory"),
        Name("losses.CrossBatchMemory"),
        Name("miners.MinerWithBank"),
        None,
    ),
    (
        "chance-constrained programming (CCP)",
        Name("training.schedules.ChanceConstrained"),
        Absent("chance_?constr|k_?cent(er|re)"),
        Absent("chance_?constr|k_?cent(er|re)"),
        None,
    ),
    (
        "class-balanced batches",
        Name("data.BalancedBatchSampler"),
        Name("samplers.MPerClassSampler"),
        Name("samplers.BalanceSampler"),
        None,
    ),
    (
        "batches by super-classes or categories",
        Absent("category_balance|hierarchical_?sampl"),
        Name("samplers.HierarchicalSampler"),
        Name("samplers.CategoryBalanceSampler"),
        None,
    ),
    ("few-shot episodes", Name("data.EpisodeSampler"), Absent("episod|few_?shot"), Absent("episod|few_?shot"), None),
    (
        "batches larger than the memory (gradient caching)",
        Option("recipe.TrainingSection", "gradient_cache"),
        Absent("grad\\w*_?cach|cached_loss"),
        Absent("grad\\w*_?cach|cached_loss"),
        None,
    ),
    (
        "adversarial training against attacks",
        Name("training.schedules.Adversarial"),
        Absent("attack|pgd"),
        Absent("attack|pgd|adversar"),
        None,
    ),
]

LOOP = [
    (
        "a training loop",
        Name("training.train"),
        Count(("trainers",)),
        Name("lightning.pipelines.train.extractor_training_pipeline"),
        None,
    ),
    (
        "any loop of your own, losses and miners as plain modules",
        InPart("objectives.make_objective", "an objective is a module, built from a recipe's section"),
        Name("losses.BaseMetricLossFunction"),
        Name("losses.TripletLossWithMiner"),
        None,
    ),
    (
        "training described by a file",
        Name("recipe.load_recipe"),
        Absent("recipe|hydra|omegaconf"),
        Name("lightning.pipelines.train.extractor_training_pipeline"),
        None,
    ),
    (
        "several processes",
        Name("training.ranks.Ranks"),
        Name("utils.distributed.DistributedLossWrapper"),
        Name("lightning.modules.ddp.ModuleDDP"),
        None,
    ),
    (
        "metrics gathered from several processes",
        Judged("no", "the first process measures alone", "several-processes.md"),
        InPart("utils.distributed.all_gather", "for losses and miners; metrics are of what they are given"),
        Name("metrics.accumulation.Accumulator.sync"),
        Name("metric.Metric.sync"),
    ),
    (
        "resuming a killed run to the same bits",
        Name("training.LoopState"),
        InPart("utils.logging_presets.HookContainer", "loads the latest saved models of a trainer"),
        Judged("in part", "what Lightning's Trainer resumes", OML_EXAMPLES + "#usage-with-pytorch-lightning"),
        None,
    ),
    (
        "used on GPUs by its makers",
        Judged("no", "`training.accelerator` takes GPUs; all results are from CPUs", "several-processes.md"),
        Judged("yes", "notebooks for GPUs, GPU search", "https://github.com/KevinMusgrave/pytorch-metric-learning"),
        Judged("yes", "GPU images, models trained on several GPUs", OML_HOME),
        Judged(
            "yes", "metrics are moved to devices", "https://lightning.ai/docs/torchmetrics/stable/pages/overview.html"
        ),
    ),
    (
        "sends to experiment trackers (W&B, MLflow, TensorBoard)",
        Absent("wandb|mlflow|tensorboard"),
        InPart("utils.logging_presets.HookContainer", "TensorBoard and record-keeper"),
        Name("lightning.pipelines.logging.WandBPipelineLogger"),
        None,
    ),
]

MODELS = [
    (
        "backbones of its own",
        Count(("models.list_backbones",)),
        Absent("backbone|resnet|vit_"),
        Count(("registry.EXTRACTORS_REGISTRY",), besides="mlp"),
        None,
    ),
    (
        "pretrained weights by name",
        Count(("models.list_backbones",), given={"pretrained": True}),
        Absent("pretrained"),
        Count(
            (
                "models.ViTExtractor.pretrained_models",
                "models.ViTCLIPExtractor.pretrained_models",
                "models.ViTUnicomExtractor.pretrained_models",
                "models.ResnetExtractor.pretrained_models",
                "models.ECAPATDNNExtractor.pretrained_models",
            )
        ),
        None,
    ),
    (
        "weights trained for retrieval on public sets",
        Absent("pretrained_models|model_zoo"),
        Absent("pretrained|zoo"),
        Judged("yes", "InShop, SOP, CUB, CARS, with their configs", OML_ZOO),
        None,
    ),
    (
        "poolings",
        Count(("models.list_poolings",)),
        Absent("pooling"),
        InPart("models.resnet.pooling.GEM", "in its ResNets"),
        None,
    ),
    (
        "feature cache of a frozen part",
        Name("models.FeatureCache"),
        Absent("cache"),
        InPart("inference.abstract.inference_cached", "keeps the embeddings of an inference"),
        None,
    ),
    (
        "reads images",
        Name("data.decode_image"),
        InPart("datasets.CUB", "its data sets; otherwise it takes tensors"),
        Name("datasets.ImageLabeledDataset"),
        None,
    ),
    (
        "reads sounds",
        Name("data.LogMelTransform"),
        Absent("audio|spectrogram"),
        Name("datasets.AudioLabeledDataset"),
        None,
    ),
    (
        "reads texts",
        Absent("tokeni[sz]er|text_dataset"),
        Absent("tokeni[sz]er"),
        Name("datasets.TextLabeledDataset"),
        None,
    ),
    (
        "public data sets by name",
        Count(("data.list_entries",)),
        Count(("datasets",)),
        Judged("4", "converters for CARS196, CUB, InShop and SOP", OML_HOME),
        None,
    ),
]

TRAINING = {"losses": LOSSES, "mining and batches": MINING, "training": LOOP, "models and data": MODELS}
