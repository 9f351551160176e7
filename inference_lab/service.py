"""The service: options in, a listening server out, the same for every runner.

The port is bound while the service is made, so that a taken one ends the boot
in the foreground, even of a daemon; the fork inherits the socket.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from klein.resource import KleinResource
from twisted.application.service import Service
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from inference_lab.configuration.deployment import Deployment
from inference_lab.configuration.loader import Loaded
from inference_lab.engine.engine import Engine
from inference_lab.faults.grammar import FaultError, ModelFault
from inference_lab.faults.modes import Mode
from inference_lab.faults.plans import ModelPlan, parse_model
from inference_lab.journal import Journal, JournalFile
from inference_lab.lab import Lab, Served, Settings
from inference_lab.metrics import DeploymentMetrics, Metrics
from inference_lab.options import BootError, Options
from inference_lab.pacing.driver import Driver
from inference_lab.pacing.timebase import Paced, Unpaced
from inference_lab.web import drain
from inference_lab.web.api import Api
from inference_lab.web.planning import Lengths
from inference_lab.web.site import Front, LabSite


def makeService(options: Options) -> LabService:
    """Build the whole server and bind its port.

    :raises BootError: with one line, for anything the operator can mend.
    """
    from twisted.internet import reactor

    return build(options, reactor)


def build(options: Options, reactor: Any) -> LabService:
    """`makeService` on a reactor of the caller's choice."""
    settings = Settings(
        directives=bool(options["enable-directives"]),
        drain_timeout=options["drain-timeout"],
        lengths=Lengths(options["default-output-tokens"], options.drawn_lengths),
        reasoning_field=options["reasoning-field"],
        api_keys=tuple(options["api-key"]),
    )
    models, figures = serve_models(options, reactor)
    lab = Lab(
        reactor,
        settings,
        models,
        options.tokenizer,
        Metrics(figures),
        options.modes,
        journal=Journal(reactor, file=_journal_file(options["journal"])),
    )
    site = LabSite(Front(KleinResource(Api(lab).app), settings.api_keys, lab.modes), reactor)
    endpoint, named = _endpoint(options, reactor)
    port = _listen(endpoint, named, site)
    return LabService(reactor, lab, port, options.loaded, options["hardware"], _scheme(options))


def serve_models(
    options: Options, reactor: Any
) -> tuple[Mapping[str, Served], Sequence[DeploymentMetrics]]:
    """Every deployment, ready to be asked, by its id and its aliases; and their figures.

    :raises BootError: for a ``[fault]`` table that is wrong.
    """
    models: dict[str, Served] = {}
    figures: list[DeploymentMetrics] = []
    for deployment in options.loaded.deployments:
        engine = Engine(deployment, max_waiting=options["max-queue"])
        figures.append(DeploymentMetrics(deployment.name, engine))
        speed = options["speed"]
        time = Paced(reactor, speed) if speed else Unpaced()
        driver = Driver(engine, reactor, time, figures[-1])
        served = Served(deployment, _fault(deployment, options.modes), driver)
        models[deployment.name] = served
        for alias in deployment.aliases:
            models.setdefault(alias, served)
    return models, figures


def _journal_file(path: str | None) -> JournalFile | None:
    try:
        return None if path is None else JournalFile(path)
    except OSError as error:
        raise BootError(f"--journal {path}: {error.strerror}") from None


def _fault(deployment: Deployment, modes: Mapping[str, Mode]) -> ModelFault | ModelPlan | None:
    if deployment.fault is None:
        return None
    try:
        fault = parse_model(deployment.fault, modes)
        items = fault.plan.items if isinstance(fault, ModelPlan) else (fault.fault,)
        for mode in (modes[item.mode] for item in items):
            if not fault.endpoints <= set(mode.endpoints):
                raise FaultError(
                    f"{mode.name} is for {', '.join(mode.endpoints)} only", "endpoints"
                )
    except FaultError as error:
        key = f" {error.key}" if error.key else ""
        raise BootError(f"{deployment.source}: [fault]{key}: {error}") from None
    return fault


def _endpoint(options: Options, reactor: Any) -> tuple[IStreamServerEndpoint, str]:
    if options["listen"] is not None:
        try:
            return serverFromString(reactor, options["listen"]), f"--listen {options['listen']}"
        except Exception as error:
            # Endpoint parsers raise whatever they like.
            raise BootError(f"--listen {options['listen']}: {error or type(error)}") from None
    host, port = options["host"], options["port"]
    kind = TCP6ServerEndpoint if ":" in host else TCP4ServerEndpoint
    return kind(reactor, port, interface=host), f"{host} port {port}"


def _listen(endpoint: IStreamServerEndpoint, named: str, site: LabSite) -> IListeningPort:
    outcome: list[IListeningPort | Failure] = []
    endpoint.listen(site).addBoth(outcome.append)
    match outcome:
        case [Failure() as failure]:
            error = failure.value
            reason = error.socketError if isinstance(error, CannotListenError) else error
            raise BootError(f"cannot listen on {named}: {reason}")
        case [port] if not isinstance(port, Failure):
            drain.keep_account(port)
            return port
    raise BootError(f"cannot listen on {named}: the endpoint did not bind at once")


class LabService(Service):
    """Announces a bound server, and ends it in order."""

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        lab: Lab,
        port: IListeningPort,
        loaded: Loaded,
        hardware: str | None,
        scheme: str,
    ) -> None:
        self._reactor = reactor
        self.lab = lab
        self._port = port
        self._loaded = loaded
        self._hardware = hardware
        self._scheme = scheme

    def startService(self) -> None:
        """Say that the server is ready, once the reactor runs."""
        super().startService()  # type: ignore[no-untyped-call]
        for message in (*self._loaded.skipped, *self._loaded.warnings):
            self._log.warn("{message}", message=message)
        self._reactor.callWhenRunning(self._announce)

    def stopService(self) -> Deferred[Any]:
        """Close the port and cut every open stream; the reactor closes what idles."""
        super().stopService()  # type: ignore[no-untyped-call]
        for wire in tuple(self.lab.open):
            wire.cut()
        self.lab.journal.close()
        return maybeDeferred(lambda: self._port.stopListening())

    def ready_line(self) -> str:
        """The fixed line that says where and what is served."""
        models = ",".join(d.name for d in self._loaded.deployments)
        entries = sorted({d.entry for d in self._loaded.deployments})
        directives = "on" if self.lab.settings.directives else "off"
        return (
            f"inference-lab ready: {self.url()} models={models} "
            f"hardware={self._hardware or ','.join(entries)} directives={directives}"
        )

    def url(self) -> str:
        """Where clients connect."""
        return _url(self._scheme, self._port.getHost())

    def _announce(self) -> None:
        address = self._port.getHost()
        if self.lab.settings.directives and not _is_loopback(address):
            self._log.warn(
                "Directives are on and {address} is not loopback: whoever reaches this server "
                "can stall and abort connections at will",
                address=self.url(),
            )
        # Runners capture sys.stdout into their log; readiness is for the parent process.
        print(self.ready_line(), file=sys.__stdout__, flush=True)


def _scheme(options: Options) -> str:
    kind = (options["listen"] or "tcp").partition(":")[0]
    return "https" if kind in ("ssl", "tls") else "http"


def _url(scheme: str, address: IAddress) -> str:
    if isinstance(address, UNIXAddress):
        name = address.name or b""
        return f"unix:{name.decode(errors='replace') if isinstance(name, bytes) else name}"
    host = str(getattr(address, "host", ""))
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{getattr(address, 'port', 0)}"


def _is_loopback(address: IAddress) -> bool:
    if isinstance(address, UNIXAddress):
        return True
    try:
        return ipaddress.ip_address(str(getattr(address, "host", ""))).is_loopback
    except ValueError:
        return False
