"""Repair of dead messages: a function says what becomes of each, and a run requeues, dismisses or leaves them."""

from airflow_provider_pgqueue.core.repair.answer import KEEP, LEAVE, Dismiss, RepairFunction, keep
from airflow_provider_pgqueue.core.repair.repair import Repair
from airflow_provider_pgqueue.core.repair.validator import Validator

__all__ = ["KEEP", "LEAVE", "Dismiss", "Repair", "RepairFunction", "Validator", "keep"]
