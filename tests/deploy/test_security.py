"""What docs/security.md says of rights is what the chart gives."""

import re

from deploy import generate
from tests.deploy import manifests, podsecurity

PAGE = (generate.ROOT / "docs/security.md").read_text()
WRITER = "write-cdi (scrubber)"
DOCTORS = {"doctor (scrubber)", "doctor (plugin)", "doctor (test)"}


def tables(heading):
    """The tables under a heading, each row as a list of cells without their marks."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    for found in re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE):
        cells = [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in found.splitlines()]
        yield cells[2:]


def reasons(rows):
    """Level and name of each rule, and who breaks it."""
    for level, rule, who, why in rows:
        assert why.strip(" |")
        names = {each.strip() for each in who.split(",")}
        yield (level.strip("| "), rule), (names - {"doctors"}) | (DOCTORS if "doctors" in names else set())


def broken(case):
    """The same, as the chart is."""
    found: dict[tuple[str, str], set[str]] = {}
    for name, pod, one in manifests.containers(case):
        for rule in podsecurity.broken(pod, one):
            found.setdefault(rule, set()).add(name)
    return found


def test_the_page_explains_each_broken_security_rule():
    default, privileged = (dict(reasons(rows)) for rows in tables("Pod Security"))
    assert default == broken("default")
    replaced = {("baseline", "capabilities"), ("baseline", "AppArmor"), ("baseline", "SELinux")}
    replaced |= {("restricted", "add no capabilities")}
    assert privileged | {rule: who for rule, who in default.items() if rule not in replaced} == broken("privileged")


def test_with_simulated_gpus_the_scrubber_breaks_the_same_rules():
    assert broken("simulated") == broken("default")


def test_the_page_explains_each_capability():
    (rows,) = tables("Capabilities")
    assert [row[0].strip("| `") for row in rows] == sorted(row[0].strip("| `") for row in rows)
    given = manifests.container("default", "scrubber")["securityContext"]["capabilities"]
    assert {row[0].strip("| `") for row in rows} == set(given["add"])
    assert all(len(row) == 3 for row in rows)


def test_the_page_explains_each_directory_of_the_node():
    (rows,) = tables("Mounts")
    assert {(pod.strip("| "), volume, path, way) for pod, volume, path, way, _ in rows} == {
        (name, volume["name"], volume["hostPath"]["path"], "no" if mount.get("readOnly") else "yes")
        for name, pod, one in manifests.containers("default")
        if name in {"scrubber", "plugin"}
        for volume in pod["volumes"]
        for mount in one["volumeMounts"]
        if "hostPath" in volume and volume["name"] == mount["name"]
    }


def test_read_only_mounts_are_recursive_unless_they_follow_the_node():
    """A mount below a directory stays writable otherwise; the API takes one of the two only."""
    for case in manifests.MATRIX:
        for name, pod, one in manifests.containers(case):
            node = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
            for mount in one["volumeMounts"]:
                follows = "mountPropagation" in mount
                wanted = mount["name"] in node and mount.get("readOnly", False) and not follows
                assert mount.get("recursiveReadOnly") == ("IfPossible" if wanted else None), (case, mount)
                assert follows == (mount["mountPath"] in {"/host/dev", "/host/run"} and name != "plugin")


def test_plugin_and_doctor_have_only_the_right_of_root():
    for case in manifests.MATRIX:
        for name, _, one in manifests.containers(case):
            if name not in {"scrubber", WRITER}:
                context = {key: it for key, it in one["securityContext"].items() if key != "seLinuxOptions"}
                assert context == {
                    "runAsUser": 0,
                    "runAsGroup": 0,
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                }


def test_the_page_explains_what_writes_the_cdi_specification():
    (rows,) = tables("What writes the CDI specification")
    one = manifests.container("cdi", WRITER)
    pod = dict(manifests.pods("cdi"))["scrubber"]
    places = {it["name"]: it["hostPath"]["path"] for it in pod["volumes"] if "hostPath" in it}
    mounted = {
        (places[it["name"]], "no" if it.get("readOnly") else "yes")
        for it in one["volumeMounts"] if it["name"] in places
    }  # fmt: skip
    given = {(name, "-") for name in one["securityContext"]["capabilities"]["add"]}
    assert {(what.strip("| `"), way) for what, way, _ in rows} == mounted | given
    of_scrubber = {rule for rule, who in broken("default").items() if "scrubber" in who}
    assert set(podsecurity.broken(pod, one)) == of_scrubber - {("baseline", "AppArmor")}


def test_the_page_explains_what_takes_the_driver_from_the_node():
    (rows,) = tables("What takes the driver from the node")
    one = manifests.container("gpu cluster", "link-driver (scrubber)")
    assert {row[0].strip("| `") for row in rows} == {it["name"] for it in one["volumeMounts"]}
    of_scrubber = manifests.container("gpu cluster", "scrubber")
    assert [it for it in of_scrubber["volumeMounts"] if it["name"].startswith("driver") and not it["readOnly"]] == []
    pod = dict(manifests.pods("gpu cluster"))["scrubber"]
    by_doctor = {rule for rule, who in broken("gpu cluster").items() if "doctor (scrubber)" in who}
    assert set(podsecurity.broken(pod, one)) == by_doctor


def test_only_the_scrubber_shares_a_host_namespace():
    for case in manifests.MATRIX:
        for component, pod in manifests.pods(case):
            assert pod.get("hostPID", False) == (component == "scrubber")
            assert not pod.keys() & {"hostNetwork", "hostIPC", "hostUsers"}


def test_only_a_plugin_and_its_standby_see_each_other():
    """Each can kill the other one if that hangs."""
    for case in manifests.MATRIX:
        for component, pod in manifests.pods(case):
            two = component == "plugin" and len(pod["containers"]) == 2
            assert pod.get("shareProcessNamespace", False) == two


def test_only_the_scrubbers_pod_is_given_gpus():
    for case in manifests.MATRIX:
        for name, _, one in manifests.containers(case):
            visible = [it["value"] for it in one["env"] if it["name"] == "NVIDIA_VISIBLE_DEVICES"]
            values = manifests.MATRIX[case]
            other = values.get("backend") == "simulated" or "driverRoot" in values.get("scrubber", {})
            assert visible == ["all" if name in {"scrubber", WRITER} and not other else "void"]


def test_simulated_gpus_need_fewer_mounts_and_one_more():
    (rows,) = tables("Mounts")
    pod = dict(manifests.pods("simulated"))["scrubber"]
    places = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    known = {path for name, _, path, _, _ in rows if name.strip("| ") == "scrubber"}
    assert places - known == {"/var/run/cdi"}
    assert known - places == {"/dev", "/proc", "/run"}


def test_each_security_rule_finds_its_violation():
    """Each rule, once broken: what it cannot see, no table would show."""
    sysctls = {"sysctls": [{"name": "a", "value": "b"}]}
    pod = {"hostPID": True, "securityContext": sysctls, "volumes": [{"name": "v", "nfs": {}}]}
    worst = {
        "ports": [{"hostPort": 1}],
        "volumeMounts": [{"name": "v"}],
        "securityContext": {
            "privileged": True, "runAsUser": 0, "procMount": "Unmasked", "capabilities": {"add": ["SYS_ADMIN"]},
            "appArmorProfile": {"type": "Unconfined"}, "seLinuxOptions": {"type": "spc_t"},
            "seccompProfile": {"type": "Unconfined"},
        },
    }  # fmt: skip
    rules = {*podsecurity.BASELINE, *podsecurity.RESTRICTED}
    assert {name for _, name in podsecurity.broken(pod, worst)} == rules - {"hostPath volumes"}
    best = {"securityContext": {
        "runAsNonRoot": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }}  # fmt: skip
    assert list(podsecurity.broken({}, best)) == []
