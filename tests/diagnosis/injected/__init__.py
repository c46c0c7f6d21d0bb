"""Single faults put into healthy cases."""

from tests.diagnosis.injected import checkpoint, serving
from tests.diagnosis.injected.base import INJECTIONS, template, without_log

__all__ = ["INJECTIONS", "checkpoint", "serving", "template", "without_log"]
