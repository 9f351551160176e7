"""Tests. A shared machine may be slow: hypothesis judges answers here, not speed."""

from hypothesis import settings

settings.register_profile("inference-lab", deadline=None)
settings.load_profile("inference-lab")
