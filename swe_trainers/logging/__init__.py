"""What a run writes: console, `training.log`, progress bars, `metrics.jsonl`, and further back ends for metrics."""

from __future__ import annotations

from swe_trainers.logging.backends import LOGGERS, MetricsLogger, logger_class
from swe_trainers.logging.json_logs import start_json_logs
from swe_trainers.logging.jsonl import read_metrics
from swe_trainers.logging.run import ProgressBar, Run, lock

__all__ = ["LOGGERS", "MetricsLogger", "ProgressBar", "Run", "lock", "logger_class", "read_metrics", "start_json_logs"]
