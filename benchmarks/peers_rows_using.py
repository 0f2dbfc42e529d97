"""Features of judging and using embeddings: metrics, confidence, robustness, fairness, galleries.

A line is: what, then a probe each for nearkin, PML, OML and torchmetrics.
"""

from __future__ import annotations

from peers_probes import Absent, Count, InPart, Judged, Name, Option

METRICS = [
    (
        "P@1, R-precision, MAP@R",
        Name("metrics.retrieval_metrics"),
        Name("utils.accuracy_calculator.AccuracyCalculator.calculate_mean_average_precision_at_r"),
        InPart("functional.metrics.calc_retrieval_metrics", "CMC@k, precision@k and MAP@k with one k for all queries"),
        InPart("retrieval.RetrievalRPrecision", "no MAP@R; takes scores and relevance of every pair"),
    ),
    (
        "a value for each query",
        Option("metrics.retrieval_metrics", "per_query"),
        Absent("return_per_(query|sample)"),
        Option("functional.metrics.calc_retrieval_metrics", "reduce"),
        InPart("retrieval.RetrievalMAP", "an `aggregation` of your own sees every value"),
    ),
    (
        "a value for each class or category",
        Name("metrics.RetrievalResult.per_class"),
        Option("utils.accuracy_calculator.AccuracyCalculator", "return_per_class"),
        Option("functional.metrics.calc_retrieval_metrics", "query_categories"),
        None,
    ),
    (
        "measured batch by batch",
        Absent("accumulator"),
        Absent("accumulat"),
        Name("metrics.EmbeddingMetrics.update"),
        Name("retrieval.RetrievalMAP.update"),
    ),
    (
        "clustering (NMI, AMI)",
        Name("metrics.clustering_metrics"),
        Name("utils.accuracy_calculator.AccuracyCalculator.calculate_AMI"),
        Absent("mutual_info|k_?means"),
        Name("clustering.AdjustedMutualInfoScore"),
    ),
    (
        "verification (EER, FNMR at FMR)",
        Name("metrics.verification_metrics"),
        Absent("equal_error|false_accept|fnmr"),
        Name("functional.metrics.calc_fnmr_at_fmr"),
        Name("classification.BinaryEER"),
    ),
    (
        "few-shot accuracy",
        Name("metrics.fewshot_accuracy"),
        Absent("few_?shot"),
        Absent("few_?shot"),
        Absent("few_?shot"),
    ),
    (
        "metrics of a class hierarchy",
        Name("metrics.hierarchical_metrics"),
        InPart("testers.WithSameParentLabelTester", "retrieval inside a super-class"),
        InPart("samplers.CategoryBalanceSampler", "categories, one level; metrics by category"),
        Absent("hierarch|taxonom"),
    ),
    (
        "geometry of the embedding",
        Name("metrics.geometry_metrics"),
        Absent("geometry|spectrum|effective_rank"),
        InPart("functional.metrics.calc_pcf", "principal components that explain the variance"),
        Absent("effective_rank|uniformity"),
    ),
    (
        "retrieval metrics of graded relevance (nDCG)",
        Absent("ndcg|dcg"),
        Absent("ndcg|dcg"),
        Absent("ndcg|dcg"),
        Name("retrieval.RetrievalNormalizedDCG"),
    ),
]

FAIRNESS = [
    (
        "intervals of a metric",
        Name("metrics.class_bootstrap"),
        Absent("bootstrap|confidence_interval"),
        Absent("bootstrap|confidence_interval"),
        InPart("wrappers.BootStrapper", "draws samples, not classes"),
    ),
    (
        "paired tests of two models",
        Name("metrics.paired_permutation"),
        Absent("permutation_test|paired|sign_test"),
        Absent("permutation_test|paired_|sign_test"),
        Absent("permutation_test|paired_test|sign_test|mcnemar"),
    ),
    (
        "a protocol: folds of classes, seeds, one table",
        Name("protocol.run_benchmark"),
        Judged(
            "no",
            "a repository of its own, powerful-benchmarker",
            "https://github.com/KevinMusgrave/powerful-benchmarker",
        ),
        Absent("cross_val|k_?fold"),
        None,
    ),
    (
        "classes held out and checked for overlap",
        Name("data.check_disjoint"),
        Absent("disjoint|held_out"),
        Absent("disjoint|held_out"),
        None,
    ),
]

CONFIDENCE = [
    (
        "calibration error",
        Name("metrics.calibration_metrics"),
        Absent("calibration|reliability_"),
        Absent("calibration|reliability_"),
        Name("classification.MulticlassCalibrationError"),
    ),
    (
        "probabilities from neighbours, temperature fitted",
        Name("confidence.fit_temperature"),
        Absent("fit_temperature|temperature_scal"),
        Absent("fit_temperature|temperature_scal"),
        None,
    ),
    (
        "unknown classes rejected",
        Name("confidence.UnknownRejector"),
        InPart("utils.inference.MatchFinder", "a threshold that you choose"),
        InPart("retrieval.AdaptiveThresholding", "cuts lists of neighbours where distances jump"),
        None,
    ),
    ("conformal prediction sets", Name("confidence.ConformalSets"), Absent("conformal"), Absent("conformal"), None),
]

ROBUSTNESS = [
    ("attacks on neighbours and classes", Name("attacks.attack"), Absent("attack|pgd"), Absent("attack|pgd"), None),
    ("common corruptions", Name("data.corruptions.CorruptedDataset"), Absent("corruption"), Absent("corruption"), None),
    ("certified by smoothing", Name("attacks.certify"), Absent("certif"), Absent("certif"), None),
    (
        "drift between data sets",
        Name("audits.drift.drift"),
        Absent("drift|two_sample"),
        Absent("drift|two_sample"),
        InPart("image.kid.KernelInceptionDistance", "of images, by a network of its own"),
    ),
]

USE = [
    (
        "exact search of bounded memory",
        Option("search.exact", "memory_mb"),
        Option("utils.inference.CustomKNN", "batch_size"),
        Option("functional.knn.batched_knn", "bs"),
        None,
    ),
    ("approximate search (faiss)", Name("search.faiss"), Name("utils.inference.FaissKNN"), Absent("faiss|hnsw"), None),
    (
        "re-ranking by neighbours of neighbours",
        Name("search.KReciprocal"),
        Absent("re_?rank|query_expansion"),
        Absent("k_?reciprocal|query_expansion"),
        None,
    ),
    (
        "re-ranking by a trained model of pairs",
        Absent("pairwise_?rerank|cross_encoder"),
        Absent("re_?rank"),
        Name("retrieval.PairwiseReranker"),
        None,
    ),
    (
        "a learned similarity in place of a distance",
        Name("models.SimilarityModel"),
        Absent("siamese|pair_similarity"),
        InPart("models.ConcatSiamese", "for re-ranking"),
        None,
    ),
    (
        "a gallery on disk: enrol, identify, verify",
        Name("gallery.Gallery"),
        InPart("utils.inference.InferenceModel", "an index in memory that can be saved; no labels, no items"),
        InPart("retrieval.RetrievalResults", "what queries found; nothing is enrolled"),
        None,
    ),
    (
        "HTTP service and web page",
        Name("serve.create_app"),
        Absent("fastapi|http"),
        Absent("fastapi|http_?serv|create_app"),
        None,
    ),
    ("command line", Name("cli.app"), Absent("argparse|^cli$|click"), Absent("^cli$|click"), None),
    ("ONNX export", Name("models.onnx.export"), Absent("onnx"), Absent("onnx"), None),
    (
        "millions of items in restartable shards",
        Name("models.bulk.embed_shards"),
        Absent("shard"),
        Absent("shard"),
        None,
    ),
    (
        "pictures of queries and what they found",
        Name("report.draw_neighbours"),
        InPart("testers.BaseTester", "a map of the embedding by a visualiser you pass"),
        Name("metrics.EmbeddingMetrics.visualize"),
        None,
    ),
    (
        "heat maps of where it looks",
        Name("models.explanations.grad_cam"),
        Absent("grad_?cam|saliency|explain"),
        Name("models.ViTExtractor.draw_attention"),
        None,
    ),
    (
        "a report in one HTML file",
        Name("report.page.write_report"),
        Absent("html|report"),
        InPart("retrieval.RetrievalResults.visualize_as_html", "of queries and what they found"),
        None,
    ),
    ("audit suites run by name", Count(("audits.suites",)), Count(("testers",)), Absent("audit|suite"), None),
]

COMMUNITY = [
    (
        "known users outside its makers",
        Judged("no", "none that we know of", "../index.md"),
        Judged(
            "yes",
            "other toolkits build on it, such as luxonis-train, and nearkin",
            "https://docs.luxonis.com/software-v3/ai-inference/model-source/training/luxonis-train/luxonis-train-api-reference/attached_modules/losses/embedding_losses",
        ),
        Judged("yes", "companies and theses that its page names", "https://open-metric-learning.readthedocs.io/"),
        Judged("yes", "Lightning and much else", "https://lightning.ai/docs/torchmetrics/stable/"),
    ),
]

USING = {
    "metrics": METRICS,
    "fair comparisons": FAIRNESS,
    "confidence": CONFIDENCE,
    "robustness": ROBUSTNESS,
    "use": USE,
    "around it": COMMUNITY,
}
