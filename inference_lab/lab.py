"""Everything a running server knows: its models, its settings, its open streams."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Factory, define, frozen
from twisted.internet.interfaces import IReactorTime

from inference_lab.configuration.deployment import Deployment
from inference_lab.content.tokens import PieceTokenizer, Tokenizer
from inference_lab.faults.grammar import ModelFault
from inference_lab.faults.modes import Mode, built_in
from inference_lab.faults.plans import ModelPlan
from inference_lab.journal import Journal
from inference_lab.metrics import Metrics
from inference_lab.pacing.backend import Backend
from inference_lab.sessions import Sessions
from inference_lab.web.errors import unknown_model
from inference_lab.web.planning import Lengths
from inference_lab.web.wire import Wire


@frozen
class Settings:
    """What the operator chose for the whole server.

    ``drain_timeout`` is in seconds. ``api_keys`` are those that clients may use;
    none at all lets everyone in.
    """

    directives: bool = False
    drain_timeout: float = 10.0
    lengths: Lengths = Factory(Lengths)
    reasoning_field: str = "reasoning_content"
    api_keys: tuple[str, ...] = ()


@frozen
class Served:
    """One model: how it is deployed, how it dies by itself, what generates for it."""

    deployment: Deployment
    fault: ModelFault | ModelPlan | None
    backend: Backend


@define
class Lab:
    """One server's state.

    ``models`` maps each served id (and alias) to its model, ``modes`` each way to
    die (and `none`) to its script.
    """

    clock: IReactorTime
    settings: Settings
    models: Mapping[str, Served]
    tokenizer: Tokenizer = Factory(PieceTokenizer)
    metrics: Metrics = Factory(Metrics)
    modes: Mapping[str, Mode] = Factory(built_in)
    open: set[Wire] = Factory(set)
    sessions: Sessions = Factory(lambda lab: Sessions(lab.clock), takes_self=True)
    journal: Journal = Factory(lambda lab: Journal(lab.clock), takes_self=True)

    def __attrs_post_init__(self) -> None:
        self.metrics.watch_streams(lambda: len(self.open))

    def served(self, name: str | None) -> Served:
        """The model of this name; any one for a request that needs none.

        :raises ApiError: 404, naming the models there are.
        """
        if name is None:
            # All count alike.
            return next(iter(self.models.values()))
        try:
            return self.models[name]
        except KeyError:
            known = {served.deployment.name for served in self.models.values()}
            raise unknown_model(name, sorted(known)) from None
