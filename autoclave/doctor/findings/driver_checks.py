"""Checks of NVIDIA's driver, CuPy, MIG, resets, MPS, guests, toolkit and CDI: do they undo what a scrub proves?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from autoclave.doctor.facts import container_toolkit, posture, process_facts, service_facts
from autoclave.doctor.facts.posture import driver_is_loaded, guards_nvidia
from autoclave.doctor.finding import Finding, Level, broken, check, check_of_service, ok, unseen, warning
from autoclave.doctor.node_facts import CdiSpec, CheckFault, Node, ToolkitConfig
from ground import errors, process_names
from ground.quantities import quantity
from scrub_api import views
from scrubber.core.model import Holder
from scrubber.words import nvidia_advice

HOST_ROOT = "mount the host's root directory here and name the mount point with --host-root"
KIND = "nvidia.com/gpu"  # the default of the plugin
BY_UUID = ("GPU-", "MIG-")  # how the names of devices begin
SCRUBS_SINCE = (7, 5)  # compute capability of Turing: from there on the driver zeroes freed memory
ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"

_OPTIONS = ("RegistryDwords", "RegistryDwordsPerDevice")
_HOST_MEMORY = "InitializeSystemMemoryAllocations"
_NO_SCRUB, _NO_FAST_SCRUB = "RMDisableScrubOnFree".lower(), "RMDisableFastScrubber".lower()
_ZERO = re.compile(r"(0[xX]?0*)?")


@check("driver")
def driver(node: Node) -> Iterator[Finding]:
    """The driver is loaded, and is the one that is installed."""
    driver = posture.driver(node)
    if not guards_nvidia(node):
        if isinstance(driver, str):
            text = f"the NVIDIA driver is loaded ({driver}), but the scrub service uses another backend"
            yield warning(text, "to protect the NVIDIA GPUs, start `autoclave scrubber --backend nvidia`")
        return
    if isinstance(driver, CheckFault):
        text = "cannot tell which driver is loaded" if driver.denied else "the NVIDIA driver is not loaded"
        yield unseen(text, driver, f"load it (`modprobe nvidia`), or {HOST_ROOT}")
        return
    installed = posture.libraries(node)
    if installed and driver not in installed:
        text = f"the loaded driver is {driver}, but the installed driver library is {', '.join(installed)}"
        yield broken(text, "reboot the node, or unload the driver and load the new one")
    else:
        yield ok(f"the driver is loaded: {driver}")


@check("cupy", guards_nvidia)
def cupy(node: Node) -> Iterator[Finding]:
    """CuPy must be loaded, and work with the driver. Without an answer of the service, the doctor's Python counts."""
    status, loaded_driver = service_facts.status(node), posture.driver(node)
    if status is None:
        here = service_facts.cupy(node)
        doubt = f"for {here.path}, which runs this check; the scrub service does not say which Python it uses"
        lacks, cupy, loaded = here.lacks, here.cupy, f"installed {doubt}"
        why = f"CuPy is not installed {doubt}"
    else:
        lacks, cupy, loaded = status.service.lacks, status.service.cupy, "loaded for the service"
        why = f"the scrub service cannot overwrite memory, so it hands out no GPU: {lacks or 'CuPy is not loaded yet'}"
    driver = loaded_driver if isinstance(loaded_driver, str) else ""
    works = nvidia_advice.extras(driver)
    extra = next((extra for extra in nvidia_advice.SINCE if extra in cupy), "")  # of ours, which installed CuPy
    if lacks:
        yield broken(why, _install(works, driver))
    elif status is not None and not cupy:
        yield broken(why, "check again in a minute; if CuPy is still missing, read the log of the service")
    elif extra and extra not in works:
        text = f"CuPy {cupy} is {loaded}, but does not work with the driver {driver}: no memory can be overwritten"
        yield broken(text, _install(works, driver))
    else:
        text = f"{f'CuPy {cupy}'.strip()} is {loaded}"
        if extra and driver[:1].isdecimal():
            others = [f", as would {other}" for other in works if other != extra]
            text += f"; it works with the driver {driver}{''.join(others)}"
        yield ok(text)


@check("kernels", guards_nvidia)
def kernels(node: Node) -> Iterator[Finding]:
    """A wheel and the image have compiled kernels; a checkout has none before ``make kernels``."""
    if service_facts.kernels(node):
        yield ok("the GPU kernels are compiled")
    else:
        text = "the GPU kernels are not compiled in this checkout: no memory can be overwritten, no GPU is handed out"
        yield broken(text, f"run make kernels, then {errors.restart(on_kubernetes=service_facts.on_kubernetes(node))}")


def _install(works: tuple[str, ...], driver: str) -> str:
    if not works:
        return f"update the driver to {min(nvidia_advice.SINCE.values())} or newer: no CuPy works with {driver}"
    choice = " or ".join(f"autoclave[{extra}]" for extra in works) + (", not both," if len(works) > 1 else "")
    return f"install {choice} where the service runs, or its image (`image.cuda` of the chart); then restart it"


@check("scrub-on-free", driver_is_loaded)
def scrub_on_free(node: Node) -> Iterator[Finding]:
    """The driver zeroes freed memory that the service cannot overwrite, unless an option turns that off."""
    options = posture.options(node)
    if isinstance(options, CheckFault):
        yield unseen("cannot tell which options the driver was loaded with", options, HOST_ROOT)
        return
    findings = [*_zeroing_off(options), *_too_old(node)]
    yield from findings
    if not findings:
        yield ok("no option of the driver turns off the zeroing of freed memory")


def _zeroing_off(options: Mapping[str, str]) -> Iterator[Finding]:
    """The options that turn the zeroing off, or that cannot be seen."""
    for option in (*_OPTIONS, _HOST_MEMORY):
        if option not in options:
            text = f"cannot tell which options the driver was loaded with: {option} is not listed"
            yield broken(text, f"find out what hides /proc/driver/nvidia/params, or {HOST_ROOT}")
    remedy = "remove it from the driver's module options (/etc/modprobe.d, kernel command line) and reboot"
    for place, key in _keys(options):
        if key == _NO_SCRUB:
            text = f"RMDisableScrubOnFree is set{place}: freed memory keeps its bytes where no clear can reach it"
            yield broken(text, remedy)
        elif key == _NO_FAST_SCRUB:
            text = f"RMDisableFastScrubber is set{place}: the driver uses its slow way to zero freed memory"
            yield warning(text, remedy)
    if _ZERO.fullmatch(options.get(_HOST_MEMORY, "1")):
        yield broken(f"{_HOST_MEMORY} is off: a tenant may be given host memory with the bytes of another", remedy)


def _keys(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each registry key in effect, with its device, read as the driver does: without spaces, in upper or lower case.

    A value that is not zero counts as set. The driver ignores a key without a value.
    """
    for option in _OPTIONS:
        place = ""
        for pair in re.sub(r"\s", "", options.get(option, "")).split(";"):
            key, _, value = pair.partition("=")
            if key.lower() == "pci":
                place = f" for {value}"
            elif not _ZERO.fullmatch(value):
                yield place, key.lower()


def _too_old(node: Node) -> Iterator[Finding]:
    status = service_facts.status(node)
    for device in status.devices if status is not None else ():
        number = re.fullmatch(r"(\d+)\.(\d+)", device.compute)
        if number is not None and (int(number[1]), int(number[2])) < SCRUBS_SINCE:
            text = (
                f"GPU {device.name} ({device.device}) is older than Turing (compute capability {device.compute}): "
                "there are no kernels to clear it, so it is never handed out, "
                "and its driver does not zero freed memory"
            )
            yield warning(text, "do not share this GPU between tenants by other means")


@check("coherent-memory", driver_is_loaded)
def coherent(node: Node) -> Iterator[Finding]:
    """The memory of no GPU is a NUMA node of this host."""
    nodes = posture.numa_gpus(node)
    if isinstance(nodes, CheckFault):
        yield unseen("cannot tell whether the memory of a GPU is a NUMA node of this host", nodes, HOST_ROOT)
    elif nodes:
        text = f"the memory of GPU {', '.join(nodes)} is a NUMA node of this host, which no scrub may take"
        yield broken(text, nvidia_advice.MANAGE_MEMORY)
    else:
        yield ok("the memory of no GPU is a NUMA node of this host")


@check("vgpu-host", driver_is_loaded)
def guests(node: Node) -> Iterator[Finding]:
    """No GPU is shared with virtual machines."""
    signs = posture.shared_with_guests(node)
    if isinstance(signs, CheckFault):
        yield unseen("cannot tell whether virtual machines share these GPUs", signs, HOST_ROOT)
    elif signs:
        text = (
            f"virtual machines share the GPUs of this node ({'; '.join(signs)}): the driver does not zero freed memory"
        )
        yield broken(text, "use containers and virtual machines on different nodes")
    else:
        yield ok("no GPU is shared with virtual machines")


@check("mps", guards_nvidia)
def mps(node: Node) -> Iterator[Finding]:
    """CUDA's multi-process service does not run."""
    if process_facts.sees_all(node) is False:  # ``pid-namespace`` then says why
        return
    processes = process_facts.mps(node)
    if isinstance(processes, CheckFault):
        yield unseen("cannot tell whether CUDA's multi-process service runs", processes, "mount /proc")
    elif processes:
        text = (
            f"CUDA's multi-process service runs ({', '.join(processes)}): its clients share memory that no scrub clears"
        )
        yield broken(text, "end it: `echo quit | nvidia-cuda-mps-control`, and make sure that it is not started again")
    else:
        yield ok("CUDA's multi-process service does not run")


@check("persistence", driver_is_loaded)
def persistence(node: Node) -> Iterator[Finding]:
    """The driver keeps the settings of idle GPUs, by nvidia-persistenced or by itself."""
    there, status = posture.persistenced(node), service_facts.status(node)
    if there is not True and status is not None and posture.persistence_kept(node, status):
        yield ok("each scrub keeps the persistence mode on: idle GPUs keep their settings")
    elif isinstance(there, CheckFault):
        yield unseen("cannot tell whether nvidia-persistenced runs", there, HOST_ROOT, Level.WARNING)
    elif not there:
        text = (
            "nvidia-persistenced does not run, or its socket is not where NVIDIA's programs look for it: "
            "an idle GPU loses its settings, and its first use takes seconds"
        )
        yield warning(text, "start nvidia-persistenced")
    else:
        yield ok("nvidia-persistenced runs: idle GPUs keep their settings")


@check("container-toolkit", guards_nvidia, of_kubernetes=True)
def toolkit(node: Node) -> Iterator[Finding]:
    """No container gets a GPU by naming it in an environment variable, or by a mount."""
    toolkit = container_toolkit.toolkit(node)
    findings = [finding for config in toolkit.configs for finding in _toolkit_config(config)]
    yield from findings
    if toolkit.configs and not findings:
        yield ok("no container can get a GPU by naming it in an environment variable")
    elif not toolkit.configs and toolkit.installed:
        text = f"the container toolkit has no configuration, and {ENVIRONMENT} is true by default: {_ANY_POD}"
        yield broken(text, _DENY)
    elif not toolkit.configs:
        text = "the NVIDIA container toolkit was not found in its usual places, so its settings could not be checked"
        yield warning(text, f"if it is installed elsewhere, make sure that {ENVIRONMENT} is false; or {HOST_ROOT}")


_ANY_POD = "any pod can name any GPU in NVIDIA_VISIBLE_DEVICES and gets it without a request"
_DENY = f"set {ENVIRONMENT} = false in the toolkit's config.toml, and a strategy of the plugin other than envvar"


def _toolkit_config(config: ToolkitConfig) -> Iterator[Finding]:
    if config.fault is not None:
        yield unseen(f"cannot read {config.path}", config.fault, "repair it")
        return
    if config.by_environment:
        yield broken(f"{ENVIRONMENT} is not false in {config.path}: {_ANY_POD}", _DENY)
    if config.by_mounts:
        text = f"{MOUNTS} is true in {config.path}: a pod that may mount host paths gets any GPU without a request"
        remedy = "set it to false; with the plugin's strategy volume-mounts, let no tenant mount host paths instead"
        yield warning(text, remedy)


@check("cdi", of_kubernetes=True)
def cdi(node: Node) -> Iterator[Finding]:
    """A container does not start when no specification names its device. Strategies without CDI need none."""
    if not (node.cdi_kind or guards_nvidia(node)):
        return
    kind, level = node.cdi_kind or KIND, Level.BROKEN if node.cdi_kind else Level.WARNING
    specs = container_toolkit.cdi(node)
    faults = [(spec.path, spec.fault) for spec in specs if spec.fault is not None]
    for path, fault in faults:
        yield unseen(f"cannot use {path}", fault, f"repair it: {_NAME_GPUS}", Level.WARNING)
    named = frozenset(name for spec in specs if spec.kind == kind for name in spec.names)
    lack, twice = _unnamed(node, named), _named_twice(specs, kind)
    for files, name in twice.items():
        text = f"{' and '.join(files)} both name {name}, and container runtimes then refuse it"
        yield Finding(level, text, "remove one of these files")
    if lack and (node.cdi_kind or not faults):
        yield Finding(level, f"no CDI specification of the kind {kind} {lack}", _NAME_GPUS)
    elif not faults and not twice:
        yield ok(f"the CDI specifications of the kind {kind} name {quantity(len(named), 'device')}")


_NAME_GPUS = (
    "`nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml`, "
    "again after each driver update (`cdi.generate` of the chart does both); or give the plugin another --strategy or "
    "--cdi-kind"
)


def _named_twice(specs: Iterable[CdiSpec], kind: str) -> Mapping[tuple[str, ...], str]:
    """Files of one directory that name the same device, and the first one. Of two directories, one takes precedence."""
    naming: dict[tuple[str, str], tuple[str, ...]] = {}
    for spec in specs:
        for name in spec.names if spec.kind == kind else ():
            if name.startswith(BY_UUID):
                place = (spec.path.rpartition("/")[0], name)
                naming[place] = (*naming.get(place, ()), spec.path)
    return {files: name for (_, name), files in sorted(naming.items(), reverse=True) if len(files) > 1}


def _unnamed(node: Node, named: frozenset[str]) -> str:
    """What no specification does, as the end of a sentence. While the devices are not known, one UUID is enough."""
    status = service_facts.status(node)
    devices = status.devices if status is not None else ()
    sliced = {device.index for device in devices if device.mig}
    handed_out = {device.device for device in devices if device.mig or device.index not in sliced}
    missing = sorted(handed_out - named)
    if not named:
        return "exists, but the strategies cdi-cri and cdi-annotations need one"
    if missing:
        return f"names {', '.join(missing)}"
    return "" if any(name.startswith(BY_UUID) for name in named) else "names a GPU by its UUID"


# By branch, from NVIDIA's security bulletin 5821. Other branches up to these have no fix; later ones have it.
_MIG_FIXED = {535: (535, 309, 1), 580: (580, 159, 3), 595: (595, 71, 5)}


@check_of_service("mig-driver", guards_nvidia)
def slices(node: Node, status: views.Status) -> Iterator[Finding]:
    """The driver makes and removes MIG slices without damage."""
    driver = posture.driver(node)
    if isinstance(driver, CheckFault):
        return
    sliced = sorted({device.index for device in status.devices if device.mig})
    version = tuple(map(int, re.findall(r"\d+", driver)))
    if not sliced:
        yield ok("no GPU has MIG slices")
    elif version >= _MIG_FIXED.get(version[0] if version else 0, (max(_MIG_FIXED) + 1,)):
        yield ok(f"the driver {driver} has the fix for CVE-2026-24197")
    else:
        text = (
            f"GPU {', '.join(map(str, sliced))} has MIG slices, and the driver {driver} lacks the fix for "
            "CVE-2026-24197: while slices are made or removed, data may be damaged or the GPU may hang"
        )
        remedy = (
            "update the driver to 535.309.01, 580.159.03, 595.71.05, or a later one of these branches or after them"
        )
        yield warning(text, remedy)


_T4 = "Tesla T4"
_VGPU = re.compile(r"-\d+[ABCQ]$")  # the end of the names of vGPUs, such as "NVIDIA A40-8Q"
_DAEMON = "nvidia-persistenced"[:15]
_MOUNT = (
    "mount the directory of its socket as /run/nvidia-persistenced where the service runs, "
    "so that nvidia-smi can ask nvidia-persistenced to close the GPU, or "
)
_WHEN = "a reset is needed only after a fault, or if the policy has the path reset"
_REBOOTS = "after a fault, reboot the node or the virtual machine; choose no policy with the path reset"


@check_of_service("reset", guards_nvidia)
def resets(node: Node, status: views.Status) -> Iterator[Finding]:
    """What would refuse a reset now. GPUs with the same obstacle share a finding."""
    addresses = {device.device: device.pci_address for device in status.devices}
    openers = process_facts.openers(node, addresses)
    obstacles: dict[tuple[str, str], list[str]] = {}
    for device in status.devices:
        for obstacle in _obstacles(device, node, openers.get(device.device)):
            obstacles.setdefault(obstacle, []).append(device.name)
    for (why, remedy), gpus in obstacles.items():
        yield warning(f"no reset of GPU {', '.join(gpus)} is possible: {why}", remedy)
    if not obstacles:
        yield ok("nothing stands in the way of a reset of a GPU")


def _obstacles(device: views.DeviceStatus, node: Node, holders: tuple[Holder, ...] | None) -> Iterator[tuple[str, str]]:
    """Each with its remedy. The owner of a device is not in the way, because a device in use is not reset."""
    if device.model == _T4:
        yield "a Tesla T4 has no function-level reset", _REBOOTS
    if _VGPU.search(device.model):
        yield "it is a vGPU, which only its host can reset", _REBOOTS
    if posture.on_ec2(node):
        yield "Amazon EC2 refuses each reset, as NVIDIA's validation of clouds reports", _REBOOTS
    if holders is None:
        yield "the processes that have it open cannot be found", "run the doctor as root, where it sees all processes"
        return
    others = tuple(holder for holder in holders if holder.container is None or holder.container != device.owner)
    if others:
        names = ", ".join(process_names.describe(holder.command, holder.pid) for holder in others)
        mount = _MOUNT if any(holder.command == _DAEMON for holder in others) else ""
        yield f"it is open in {names}", f"{_WHEN}; then {mount}{nvidia_advice.how_to_stop(others)}"


_FLIPS = (
    "a tenant can flip bits of memory that is not its own, in GDDR memory also of the driver (GPUHammer, GPUBreach)"
)
_ECC_ON = (
    "switch ECC on: `settings: {ecc: true}` in the policy, then `autoclave scrub GPU --path reset`; keep a GPU without "
    "ECC for tenants that trust each other"
)


@check_of_service("ecc", guards_nvidia)
def memory(_node: Node, status: views.Status) -> Iterator[Finding]:
    """Memory that one tenant can change for another, whatever a scrub does."""
    bare = [device.name for device in status.devices if device.ecc is False]
    if bare:
        yield broken(f"the memory of GPU {', '.join(bare)} has no ECC: {_FLIPS}", _ECC_ON)
    else:
        yield ok("ECC is in force on every GPU that reports it")
