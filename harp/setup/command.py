# SPDX-License-Identifier: Apache-2.0
"""`harp setup` and its subcommands: plan, apply, status, undo, restore, nics."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Optional

import click

from harp.setup import dpdk, host, nics, pages, restore, use
from harp.setup.apply import Plan, planned
from harp.setup.apply import apply as apply_steps
from harp.setup.apply import undo as undo_steps
from harp.setup.bind import Bind
from harp.setup.journal import SCHEMA, Journal
from harp.setup.plan import SCHEMES, conf_dir, existing_files
from harp.setup.request import PlanError, Request, WrongUsage
from harp.setup.steps import Step, StepError

SUCCESS = "Set up HARP successfully"

FAILURES = (PlanError, StepError, host.HostError, OSError)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that plan, apply and setup itself share."""
    for option in reversed(
        (
            click.option(
                "--device",
                "devices",
                multiple=True,
                metavar="DEVICE",
                help="A NIC for HARP; repeat for more. packet:IFACE shares it with the kernel, "
                "xdp:IFACE too, by AF_XDP. dpdk:IFACE or dpdk:PCI-ID gives it to "
                "HARP alone. Default: the configured devices. If there are none, HARP shares the "
                "interface of NCCL_SOCKET_IFNAME, or the only usable one, or the default route's.",
            ),
            click.option(
                "--dpdk",
                is_flag=True,
                help="Give all free NICs to HARP alone (harp setup nics lists them).",
            ),
            click.option(
                "--address",
                "addresses",
                multiple=True,
                metavar="ADDRESS/PREFIX|kernel",
                help="HARP's own address on the NIC, or kernel: a packet or xdp device shares the "
                "kernel's. Default: a dpdk device takes over the interface's address, the others "
                "share it. One for each --device, in their order.",
            ),
            click.option(
                "--gateway",
                "gateways",
                multiple=True,
                metavar="ADDRESS|none",
                help="Next hop outside the prefix, or none. One for each --device, in their order.",
            ),
            click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="KEY=VALUE",
                help="Any other key of ztcp*.conf, for every --device. KEY= removes the key.",
            ),
            click.option(
                "--driver",
                type=click.Choice(nics.DRIVERS),
                help="The kernel driver for dpdk devices. Default: vfio-pci, also without an "
                "IOMMU if the kernel allows that, else uio_pci_generic.",
            ),
            click.option(
                "--hugepages",
                type=click.IntRange(0, 1048576),
                metavar="MIB",
                default=pages.MIB_PER_NIC,
                show_default=True,
                help="Memory in 2 MiB pages for each dpdk device, until the next boot.",
            ),
            click.option(
                "--pages",
                type=click.Choice(["2M", "1G"]),
                default="2M",
                show_default=True,
                help="1G also puts 1 GiB pages on the kernel's command line: 5 for each GPU "
                "and 10 more, 50 for eight GPUs. The kernel reserves them at the next boot.",
            ),
            click.option(
                "--even-if-used",
                is_flag=True,
                help="Take over a NIC that is in use. Set-up never takes the NIC of the default "
                "route or of your ssh session.",
            ),
        )
    ):
        command = option(command)
    return command


def _as_json(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--json", "as_json", is_flag=True, help="Report as JSON.")(command)


def _known() -> list[Request]:
    """The configured devices that set-up handles, and the NICs that a crash left without their
    file."""
    files = [one for one in existing_files(conf_dir()) if one.inner.startswith(SCHEMES)]
    places = {file.place for file in files}
    begun = [step.pci_id for step in Journal(conf_dir()).steps if isinstance(step, Bind)]
    return [Request({"device": file.device, "address": file.address}) for file in files] + [
        Request({"device": f"dpdk:{pci_id}"}) for pci_id in begun if pci_id not in places
    ]


def _free() -> list[Request]:
    """The NICs that HARP may take over without being named. Raises ClickException if there are
    none."""
    found = [Request({"device": f"dpdk:{nic.device.id}"}) for nic in nics.all_nics() if nic.is_free]
    if not found:
        raise click.ClickException("no NIC is free; harp setup nics says why, for each NIC")
    return found


def _jobs_interfaces() -> list[host.Interface]:
    """The interfaces that a job's traffic takes. Raises UsageError with the list to choose from."""
    usable = host.candidates()
    if not usable:
        raise click.UsageError(
            "no Ethernet interface here is up and has an IPv4 address; name an interface with "
            "--device packet:IFACE --address ADDRESS/PREFIX"
        )
    wanted = os.environ.get("NCCL_SOCKET_IFNAME", "")
    default = use.default_interfaces()
    found = [one for one in usable if wanted and host.is_chosen(one.name, wanted)]
    found = found or (usable if len(usable) == 1 else [])
    found = found or [one for one in usable if one.name in default]
    if found:
        others = [one.name for one in usable if one not in found]
        if others:
            click.echo(f"note: HARP could also use {', '.join(others)}: --device", err=True)
        return found
    listed = "\n".join(f"  --device packet:{one.name:<16}{one.describe}" for one in usable)
    raise click.UsageError(f"several NICs are usable; name one or more of\n{listed}")


def unnamed(dpdk_wanted: bool) -> list[Request]:
    """The default devices, for a command that names none. Raises ClickException."""
    try:
        if dpdk_wanted:
            return _free()
        return _known() or [Request({"device": f"packet:{one.name}"}) for one in _jobs_interfaces()]
    except FAILURES as failure:
        raise _fail(failure) from failure


def _by_device(
    values: tuple[str, ...], requests: list[Request], option: str
) -> list[Optional[str]]:
    if len(values) not in (0, len(requests)):
        raise click.UsageError(
            f"{len(values)} {option} for {len(requests)} --device: give one for "
            "each, in their order, or none"
        )
    return list(values) or [None] * len(requests)


def _resolved(device: str) -> str:
    try:
        return dpdk.resolved(device)
    except FAILURES as failure:
        raise _fail(failure) from failure


def _common(settings: tuple[str, ...]) -> dict[str, str]:
    """The keys for every device; the value "" removes a key."""
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key.strip() in ("device", "address", "gateway"):
            raise click.UsageError(
                f"--set {setting}: expected KEY=VALUE; device, address and gateway have options "
                "of their own"
            )
        found[key.strip()] = value.strip()
    return found


def _requests(options: dict[str, Any]) -> list[Request]:
    if options["devices"] and options["dpdk"]:
        raise click.UsageError("--dpdk takes all free NICs: leave it out, or leave --device out")
    named = [Request({"device": _resolved(device)}) for device in options["devices"]]
    found = named or unnamed(options["dpdk"])
    common = _common(options["settings"])
    addresses = _by_device(options["addresses"], found, "--address")
    gateways = _by_device(options["gateways"], found, "--gateway")
    for request, address, gateway in zip(found, addresses, gateways):
        if address:
            request.settings["address"] = address
        if gateway:
            request.settings["gateway"] = "" if gateway == "none" else gateway
        request.settings.update(common)
    return found


def _fail(failure: Exception) -> click.ClickException:
    if isinstance(failure, WrongUsage):
        return click.UsageError(str(failure))
    if isinstance(failure, PermissionError):
        return click.ClickException(f"{failure}; run as root")
    return click.ClickException(str(failure))


def _does(step: Step) -> str:
    return step.describe()


def _undoes(step: Step) -> str:
    return f"undo {step.kind} {step.target} (no file needs it any more)"


def _rows(steps: list[Step], said: Callable[[Step], str]) -> list[dict[str, str]]:
    return [{"kind": step.kind, "target": step.target, "does": said(step)} for step in steps]


def _edits(entries: list[tuple[Step, str]]) -> list[str]:
    """A line of advice for each file that was edited or removed since set-up wrote it."""
    said = {
        "edited": "{0} was edited by hand; set-up leaves it (undo keeps it as {0}.edited). To get "
        "set-up's text back: harp setup undo, then harp setup",
        "removed": "{0} was removed by hand; harp setup undo restores it as it was before set-up",
    }
    return [said[state].format(step.target) for step, state in entries if state in said]


def _as_document(steps: list[Step], **more: Any) -> str:
    return json.dumps({"schema": SCHEMA, "steps": _rows(steps, _does), **more}, indent=1)


def _report(plan: Plan, as_json: bool) -> None:
    if as_json:
        click.echo(_as_document(plan.steps, undo=_rows(plan.undo, _undoes)))
        return
    for line in [*map(_does, plan.steps), *map(_undoes, plan.undo)]:
        click.echo(f"  {line}")
    if not plan:
        click.echo("  nothing to change")
    changed = {step.target for step in plan.steps}
    kept = [entry for entry in Journal(conf_dir()).entries() if entry[0].target not in changed]
    for line in plan.notes + _edits(kept):
        click.echo(f"note: {line}")


def _choice(options: dict[str, Any]) -> dpdk.Choice:
    return dpdk.Choice(
        options["driver"], options["pages"], options["hugepages"], options["even_if_used"]
    )


def _plan(options: dict[str, Any]) -> tuple[list[Request], Plan]:
    requests = _requests(options)
    try:
        return requests, planned(requests, _choice(options))
    except FAILURES as failure:
        raise _fail(failure) from failure


def _apply(requests: list[Request], choice: dpdk.Choice, as_json: bool) -> None:
    try:
        done = apply_steps(requests, choice)
        advice = done.failed + dpdk.advice(Journal(conf_dir()).steps)
    except FAILURES as failure:
        raise _fail(failure) from failure
    if as_json:
        click.echo(_as_document(done.steps, undone=done.undone, result=SUCCESS, advice=advice))
        return
    for line in done.undone:
        click.echo(f"  {line}: no file needs that step any more")
    for line in advice:
        click.echo(f"note: {line}")
    click.echo(SUCCESS)


@click.group(invoke_without_command=True)
@_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@_as_json
def setup(**options: Any) -> None:
    """Prepare this host for HARP, or undo that.

    Without a subcommand, it plans, asks, and applies. A second run changes nothing.
    A packet device with the kernel's address needs one ztcp*.conf and no other
    change. Several of them in one subnet also need sysctls: without these the kernel
    answers ARP for each address on every NIC. A packet device with its own address
    also needs a blackhole route if this host forwards: without it the kernel would
    forward or answer HARP's frames. An xdp device needs the same; set-up also
    switches LRO and GRO in hardware off, and adjusts queues and rings where needed. A
    dpdk device is taken from the kernel, with its address; undo returns it.
    """
    context = click.get_current_context()
    if context.invoked_subcommand:
        default = click.core.ParameterSource.DEFAULT
        if any(context.get_parameter_source(name) != default for name in options):
            raise click.UsageError(
                "put options after the subcommand: harp setup SUBCOMMAND OPTIONS"
            )
        return
    requests, plan = _plan(options)
    if options["dry_run"] or not options["as_json"]:
        _report(plan, options["as_json"])
    if options["dry_run"]:
        return
    if plan and not options["yes"]:
        try:
            agreed = click.confirm("Apply this?", err=options["as_json"])
        except click.Abort:
            raise click.ClickException("no answer; --yes applies this without a question") from None
        if not agreed:
            raise click.Abort
    _apply(requests, _choice(options), options["as_json"])


@setup.command("plan")
@_options
@_as_json
def plan_command(as_json: bool, **options: Any) -> None:
    """Show what apply would change."""
    _report(_plan(options)[1], as_json)


@setup.command("apply")
@_options
@_as_json
def apply_command(as_json: bool, **options: Any) -> None:
    """Make the changes, without asking."""
    requests, plan = _plan(options)
    if not as_json:
        _report(plan, False)
    _apply(requests, _choice(options), as_json)


@setup.command("restore")
@_as_json
def restore_command(as_json: bool) -> None:
    """Make again what a reboot has undone, with the choices of the last set-up.

    It asks nothing and takes over no other NIC. Without a set-up on this host it does
    nothing. harp-setup.service runs it at boot.
    """
    try:
        requests, choice = restore.recorded()
        plan = planned(requests, choice) if requests else Plan()
    except FAILURES as failure:
        raise _fail(failure) from failure
    if not as_json:
        _report(plan, False)
    if requests or as_json:
        _apply(requests, choice, as_json)


@setup.command("nics")
@_as_json
def nics_command(as_json: bool) -> None:
    """List the NICs on the PCI bus, and why HARP may not take some of them over."""
    try:
        found = nics.all_nics()
    except FAILURES as failure:
        raise _fail(failure) from failure
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "nics": [nic.row() for nic in found]}, indent=1))
        return
    for nic in found:
        click.echo(nic.describe())
    if not found:
        click.echo("there are no NICs on the PCI bus")


def _astray(entries: list[tuple[Step, str]]) -> bool:
    return any(state not in ("done", "edited", "removed") for _, state in entries)


def _show_advice(entries: list[tuple[Step, str]], complete: bool) -> None:
    if not complete:
        click.echo(
            "a set-up or an undo is running or was interrupted; wait until it ends, or run harp "
            "setup again, or harp setup undo"
        )
    elif not entries:
        click.echo(f"nothing set up in {conf_dir()}; run harp setup")
    elif _astray(entries):
        click.echo(
            "some steps are not in place (after a reboot, a crash, or a change by hand); run "
            "harp setup again, or harp setup undo"
        )
    for line in _edits(entries):
        click.echo(line)


@setup.command("status")
@_as_json
def status_command(as_json: bool) -> None:
    """Show what set-up has changed here, and whether it is still in place.

    Exit 1 if a step is not in place, if nothing was set up, or if a set-up or an undo
    is running or was interrupted. A file counts as in place if it was edited by hand,
    or if it was there before set-up and was removed by hand.
    """
    try:
        journal = Journal(conf_dir())
        entries = journal.entries()
        existing_files(conf_dir())
    except FAILURES as failure:
        raise _fail(failure) from failure
    if as_json:
        rows = [
            {"kind": step.kind, "target": step.target, "state": state} for step, state in entries
        ]
        document = {"schema": SCHEMA, "complete": journal.complete, "steps": rows}
        click.echo(json.dumps(document, indent=1))
    else:
        for step, state in entries:
            click.echo(f"  {state:<8} {step.kind} {step.target}")
        _show_advice(entries, journal.complete)
    if not journal.complete or not entries or _astray(entries):
        raise click.exceptions.Exit(1)


@setup.command("undo")
@click.option("--yes", is_flag=True, help="Changes nothing: undo never asks.")
@_as_json
def undo_command(yes: bool, as_json: bool) -> None:
    """Undo everything that set-up has changed here."""
    said = []
    try:
        for line in undo_steps():
            said.append(line)
            if not as_json:
                click.echo(f"  {line}")
    except FAILURES as failure:
        raise _fail(failure) from failure
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "undone": said}, indent=1))
    elif not said:
        click.echo("nothing to undo")
