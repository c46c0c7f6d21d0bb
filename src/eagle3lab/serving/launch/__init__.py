"""What is to be launched: a plan, read from a command, a script or parameters, and written back as a command."""

from eagle3lab.serving.launch.plan import LaunchPlan
from eagle3lab.serving.launch.profiles import cpu, gpu8, multi_node
from eagle3lab.serving.launch.reading import read_command, read_script

__all__ = ["LaunchPlan", "cpu", "gpu8", "multi_node", "read_command", "read_script"]
