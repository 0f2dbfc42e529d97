"""Pictures and one self-contained HTML page, drawn from plain values."""

from nearkin._moved import renamed
from nearkin.report.bars import Bar, draw_bars
from nearkin.report.comparison import Column, ComparisonRow, draw_comparison
from nearkin.report.confidence import draw_rejection, draw_reliability, draw_risk_coverage, draw_sensitivity, draw_shift
from nearkin.report.curves import draw_curves, draw_metric_curves, draw_sweep
from nearkin.report.dendrogram import Dendrogram, draw_dendrograms
from nearkin.report.dynamics import draw_accuracies, draw_adversary, draw_dynamics
from nearkin.report.geometry import (
    draw_distance_pairs,
    draw_map,
    draw_measures,
    draw_reweighting,
    draw_spectra,
    project_2d,
)
from nearkin.report.grid import NeighbourRow, NeighbourThumb, Thumb, draw_neighbours, draw_novel
from nearkin.report.heat import draw_class_distances, draw_corruption, draw_domain_matrix
from nearkin.report.page import render_comparison, render_report, write_comparison, write_report
from nearkin.report.terminal import comparison_table, metric_table
from nearkin.report.values import Figure, MetricRow, Report
from nearkin.report.verification import draw_det, draw_histograms, draw_null

__all__ = [
    "Bar",
    "Column",
    "ComparisonRow",
    "Dendrogram",
    "Figure",
    "MetricRow",
    "NeighbourRow",
    "NeighbourThumb",
    "Report",
    "Thumb",
    "comparison_table",
    "draw_accuracies",
    "draw_adversary",
    "draw_bars",
    "draw_class_distances",
    "draw_comparison",
    "draw_corruption",
    "draw_curves",
    "draw_dendrograms",
    "draw_det",
    "draw_distance_pairs",
    "draw_domain_matrix",
    "draw_dynamics",
    "draw_histograms",
    "draw_map",
    "draw_measures",
    "draw_metric_curves",
    "draw_neighbours",
    "draw_novel",
    "draw_null",
    "draw_rejection",
    "draw_reliability",
    "draw_reweighting",
    "draw_risk_coverage",
    "draw_sensitivity",
    "draw_shift",
    "draw_spectra",
    "draw_sweep",
    "metric_table",
    "project_2d",
    "render_comparison",
    "render_report",
    "write_comparison",
    "write_report",
]


__getattr__ = renamed(__name__, Neighbour="NeighbourThumb")
