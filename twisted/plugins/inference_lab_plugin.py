"""Makes ``inference-lab`` a twistd command. Nothing else may be imported here."""

from twisted.application.service import ServiceMaker

inference_lab = ServiceMaker(
    "inference-lab",
    "inference_lab.service",
    "An OpenAI-compatible test double that kills streams on demand",
    "inference-lab",
)
