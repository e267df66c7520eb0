{{- /* What a schema cannot say: values that contradict each other. Each message names what to change. */ -}}
{{- define "autoclave.checks" -}}
{{- $v := .Values -}}
{{- if not $v.image.repository -}}
{{- fail "image.repository: no image of Autoclave is published; build one, push it to a registry of yours, and set image.repository (docs/install.md#with-helm)" -}}
{{- end -}}
{{- if contains ":" (base $v.image.repository) -}}
{{- fail (printf "image.repository: %s names a tag, and the chart adds one; set image.repository=%s and image.tag=%s" $v.image.repository (regexReplaceAll ":[^:]*$" $v.image.repository "") (regexFind "[^:]*$" $v.image.repository)) -}}
{{- end -}}
{{- $more := dict "podMonitor.labels" $v.podMonitor.labels "serviceMonitor.labels" $v.serviceMonitor.labels "prometheusRule.labels" $v.prometheusRule.labels "dashboards.labels" $v.dashboards.labels -}}
{{- range $name, $labels := $more -}}
  {{- range $label, $_ := $labels }}{{ if hasKey $v.commonLabels $label }}{{ fail (printf "commonLabels: %s also sets the label %s; leave it out of one of them" $name $label) }}{{ end }}{{ end -}}
{{- end -}}
{{- $scrubber := include "autoclave.account" (list . "scrubber") -}}
{{- $kubelet := include "autoclave.account" (list . (include "autoclave.kubelet-side" .)) -}}
{{- if or (eq $kubelet "default") (eq $kubelet $scrubber) -}}
{{- fail (printf "plugin.serviceAccount: %s is also the account of other pods, and rights are bound to it; give the plugin or the DRA driver one of its own" $kubelet) -}}
{{- end -}}
{{- if and $v.podMonitor.enabled $v.serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled and serviceMonitor.enabled: every pod would be asked twice; switch one off" -}}
{{- end -}}
{{- if or (hasKey $v "sharing") (hasKey $v.plugin "sharing") -}}
{{- fail "sharing: a GPU belongs to one container at a time, as nothing is cleared between two that share it; take it out, use MIG (plugin.migStrategy), or leave such nodes to NVIDIA's plugin (nodeSelector)" -}}
{{- end -}}
{{- if and $v.policy.byNodeLabel (not $v.policy.nodeLabel) -}}
{{- fail "policy.byNodeLabel: no label chooses among them; set policy.nodeLabel too" -}}
{{- end -}}
{{- if and $v.policy.nodeLabel $v.affinity -}}
{{- fail "policy.nodeLabel: the chart needs the affinity to keep nodes apart; leave affinity empty, and use nodeSelector" -}}
{{- end -}}
{{- if and $v.policy.nodeLabel (not $v.policy.byNodeLabel) -}}
{{- fail "policy.nodeLabel: no node with this label would get a scrubber; set policy.byNodeLabel too, or leave policy.nodeLabel empty" -}}
{{- end -}}
{{- if and $v.policy.inline $v.policy.existingConfigMap -}}
{{- fail "policy.inline and policy.existingConfigMap: there can be one policy; leave one of them empty" -}}
{{- end -}}
{{- if and (or $v.policy.inline $v.policy.existingConfigMap) (ne $v.policy.shipped "default") -}}
{{- fail "policy.shipped: another policy replaces it; leave it at default, or leave policy.inline and policy.existingConfigMap empty" -}}
{{- end -}}
{{- if and $v.runtimeClass.create (not $v.runtimeClass.name) -}}
{{- fail "runtimeClass.create: it has no name; set runtimeClass.name" -}}
{{- end -}}
{{- if $v.scrubber.driverRoot -}}
  {{- if not (include "autoclave.real" .) -}}
  {{- fail "scrubber.driverRoot: simulated GPUs have no driver; leave it empty" -}}
  {{- else if not $v.scrubber.privileged -}}
  {{- fail "scrubber.driverRoot: without NVIDIA's container toolkit only a privileged container can open GPUs; set scrubber.privileged too" -}}
  {{- else if or $v.runtimeClass.create $v.cdi.generate -}}
  {{- fail (printf "%s: it needs NVIDIA's container toolkit; leave it off, or leave scrubber.driverRoot empty" (ternary "runtimeClass.create" "cdi.generate" $v.runtimeClass.create)) -}}
  {{- end -}}
  {{- range $v.scrubber.extraEnv -}}
    {{- if has .name (list "LD_LIBRARY_PATH" "PATH") -}}
    {{- fail (printf "scrubber.extraEnv: %s is set because of scrubber.driverRoot; leave it out" .name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if $v.dra.enabled -}}
  {{- if semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version -}}
  {{- fail (printf "dra.enabled: the DRA driver needs Kubernetes 1.34 or newer, and this cluster has %s; leave it off to install the device plugin" .Capabilities.KubeVersion.Version) -}}
  {{- end -}}
  {{- if $v.clusterReports.enabled -}}
  {{- fail "clusterReports.enabled: dra.enabled replaces the plugin, which makes the reports; switch one off" -}}
  {{- end -}}
  {{- if ne (include "autoclave.strategy" .) "cdi-cri" -}}
  {{- fail "plugin.strategy: claims get devices by CDI names only; with dra.enabled leave it empty" -}}
  {{- end -}}
  {{- range $name, $default := dict "resourcePrefix" "nvidia.com" "passDeviceSpecs" false -}}
    {{- if ne (index $v.plugin $name) $default -}}
    {{- fail (printf "plugin.%s: the DRA driver has no such choice; with dra.enabled leave it at %v" $name $default) -}}
    {{- end -}}
  {{- end -}}
  {{- if include "autoclave.dra-in-front" . -}}
    {{- range $name, $most := dict "pluginsDir" 28 "registryDir" 38 -}}
      {{- if gt (len (index $v.kubelet $name)) (int $most) -}}
      {{- fail (printf "kubelet.%s: with dra.inFrontOf it is too long for the path of a socket; it may have %d characters" $name (int $most)) -}}
      {{- end -}}
    {{- end -}}
    {{- if ne $v.dra.driverName (printf "gpu.%s" (include "autoclave.domain" .)) -}}
    {{- fail "dra.driverName: the other driver keeps its name; with dra.inFrontOf set dra.inFrontOf.driverName instead" -}}
    {{- end -}}
    {{- range $taken := list "autoclave" $v.dra.inFrontOf.driverName -}}
      {{- if hasPrefix (printf "%s/%s/" $v.kubelet.pluginsDir $taken) (printf "%s/" $v.dra.inFrontOf.registrarDirectory) -}}
      {{- fail (printf "dra.inFrontOf.registrarDirectory: sockets for claims are in %s/%s; give another directory, such as %s/gated" $v.kubelet.pluginsDir $taken $v.kubelet.pluginsDir) -}}
      {{- end -}}
    {{- end -}}
    {{- if $v.dra.deviceClass.extendedResourceName -}}
    {{- fail "dra.deviceClass.extendedResourceName: with dra.inFrontOf the DeviceClass is the other vendor's; set it there" -}}
    {{- end -}}
  {{- else -}}
    {{- range $name := list "pluginsDir" "registryDir" -}}
      {{- if gt (add (len (index $v.kubelet $name)) (len $v.dra.driverName)) 88 -}}
      {{- fail (printf "dra.driverName: with kubelet.%s it is too long for the path of a socket; together they may have 88 characters" $name) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- else if $v.dra.inFrontOf.registrarDirectory -}}
{{- fail "dra.inFrontOf: the device plugin stands in front of no DRA driver; set dra.enabled too" -}}
{{- end -}}
{{- if and (ne $v.dra.inFrontOf.driverName "gpu.nvidia.com") (not $v.dra.inFrontOf.registrarDirectory) -}}
{{- fail "dra.inFrontOf.driverName: it belongs to the directory where that driver registers; set dra.inFrontOf.registrarDirectory too" -}}
{{- end -}}
{{- with $v.nameOverride -}}
{{- $name := contains . $.Release.Name | ternary $.Release.Name (printf "%s-%s" $.Release.Name .) -}}
{{- fail (printf "nameOverride: it has left, and without it each object would be created again beside the old one; set fullnameOverride=%s in its place" $name) -}}
{{- end -}}
{{- if and $v.dra.deviceClass.extendedResourceName (not $v.dra.deviceClass.create) -}}
{{- fail "dra.deviceClass.extendedResourceName: it is a part of the class; set dra.deviceClass.create too" -}}
{{- end -}}
{{- if include "autoclave.in-front" . -}}
  {{- if $v.dra.enabled -}}
  {{- fail "plugin.inFrontOf: dra.enabled replaces the device plugin; leave one of them out" -}}
  {{- end -}}
  {{- range $name, $default := dict "strategy" list "cdiKind" "nvidia.com/gpu" "passDeviceSpecs" false "driverRoot" "/" "migStrategy" "none" -}}
    {{- if ne (toJson (index $v.plugin $name)) (toJson $default) -}}
    {{- fail (printf "plugin.%s: with plugin.inFrontOf the other plugin decides it; set it there" $name) -}}
    {{- end -}}
  {{- end -}}
  {{- if not (hasPrefix (printf "%s/" $v.kubelet.devicePluginsDir) $v.plugin.inFrontOf.directory) -}}
  {{- fail (printf "plugin.inFrontOf.directory: the other plugin sees only kubelet.devicePluginsDir; give a directory below it, such as %s/vendor" $v.kubelet.devicePluginsDir) -}}
  {{- end -}}
{{- end -}}
{{- if $v.cdi.generate -}}
  {{- if not (include "autoclave.real" .) -}}
  {{- fail "cdi.generate: simulated GPUs have a CDI specification of their own; leave it off" -}}
  {{- else if or (include "autoclave.in-front" .) (include "autoclave.dra-in-front" .) -}}
  {{- fail "cdi.generate: the plugin or driver behind ours writes the CDI specification itself; leave it off" -}}
  {{- else if not (include "autoclave.by-cdi" .) -}}
  {{- fail "cdi.generate: plugin.strategy uses no CDI; leave it off, or add cdi-cri to plugin.strategy" -}}
  {{- end -}}
{{- end -}}
{{- range $side := list "scrubber" "plugin" -}}
  {{- $program := ternary (include "autoclave.kubelet-side" $) $side (eq $side "plugin") -}}
  {{- $set := splitList " " (include (printf "autoclave.%s.args" $program) $ | fromYamlArray | join " ") -}}
  {{- range (index $v $side).extraArgs -}}
    {{- $flag := regexFind "^--[a-z-]+" . -}}
    {{- range $set -}}
      {{- if eq (regexFind "^--[a-z-]+" .) $flag -}}
      {{- fail (printf "%s.extraArgs: %s is set by a value of its own; use that" $side $flag) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and (has "Deny" $v.admissionPolicy.kubeletDirectories) (has "Warn" $v.admissionPolicy.kubeletDirectories) -}}
{{- fail "admissionPolicy.kubeletDirectories: Deny and Warn exclude each other; leave Warn out" -}}
{{- end -}}
{{- range $v.prometheusRule.disabled -}}
  {{- if not (contains (printf "alert: %s\n" .) ($.Files.Get "files/alerts.yaml")) -}}
  {{- fail (printf "prometheusRule.disabled: there is no alert %s" .) -}}
  {{- end -}}
{{- end -}}
{{- $inline := dict "policy.inline" $v.policy.inline -}}
{{- range $value, $policy := $v.policy.byNodeLabel }}{{ $_ := set $inline (printf "policy.byNodeLabel.%s.inline" $value) ($policy.inline | default "") }}{{ end -}}
{{- range $where, $text := $inline -}}
  {{- $policy := $text | default "name: none" | fromYaml -}}
  {{- if hasKey $policy "Error" -}}
  {{- fail (printf "%s: it is not YAML: %s; see `autoclave policy check`" $where $policy.Error) -}}
  {{- end -}}
  {{- if not $policy.name -}}
  {{- fail (printf "%s: a policy has a name; see `autoclave policy check`" $where) -}}
  {{- end -}}
  {{- range $key, $_ := $policy -}}
    {{- if not (has $key (list "name" "description" "defaults" "rules")) -}}
    {{- fail (printf "%s: a policy has no %s; see `autoclave policy check`" $where $key) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled (not (regexMatch "^[a-z]" (include "autoclave.fullname" .))) -}}
{{- fail (printf "serviceMonitor.enabled: %s is not the beginning of a Service's name; set fullnameOverride to one that begins with a letter" (include "autoclave.fullname" .)) -}}
{{- end -}}
{{- include "autoclave.checks.places" . -}}
{{- if and .Release.IsInstall (not $v.policy.afterObserve) (or (include "autoclave.in-front" .) (include "autoclave.dra-in-front" .)) (include "autoclave.scrubs" .) -}}
{{- fail "policy.shipped: the plugin or driver behind ours still hands out GPUs, and a scrub would overwrite them; install with policy.shipped=observe, and choose another policy by `helm upgrade` when the other one registers with ours on all nodes (docs/in-front.md#switch); a tool that renders each change as a first install sets policy.afterObserve=true then" -}}
{{- end -}}
{{- end -}}

{{- /* Directories that would be one, or inside each other, and mounts and names that there are already. */ -}}
{{- define "autoclave.checks.places" -}}
{{- $v := .Values -}}
{{- $fixed := list "/etc/autoclave/policy" "/host" "/driver" "/proc" "/sys" "/dev" -}}
{{- $own := dict "directories.state" $v.directories.state "directories.run" $v.directories.run "kubelet.devicePluginsDir" $v.kubelet.devicePluginsDir "kubelet.pluginsDir" $v.kubelet.pluginsDir "kubelet.registryDir" $v.kubelet.registryDir -}}
{{- with $v.dra.inFrontOf.registrarDirectory }}{{ $own = set $own "dra.inFrontOf.registrarDirectory" . }}{{ end -}}
{{- range $name, $path := $own -}}
  {{- $here := regexReplaceAll "^/var/run/" $path "/run/" -}}
  {{- if eq $here "/tmp" -}}
  {{- fail (printf "%s: %s is taken; choose another directory" $name $path) -}}
  {{- end -}}
  {{- range $fixed -}}
    {{- if or (eq . $here) (hasPrefix (printf "%s/" .) $here) -}}
    {{- fail (printf "%s: %s is taken; choose another directory" $name $path) -}}
    {{- end -}}
  {{- end -}}
  {{- range $other, $there := $own -}}
    {{- if and (eq $name "dra.inFrontOf.registrarDirectory") (eq $other "kubelet.pluginsDir") (ne $path $there) -}}
    {{- continue -}} {{- /* NVIDIA's operator mounts nothing else; the kubelet looks for drivers in registryDir only */ -}}
    {{- end -}}
    {{- $there = regexReplaceAll "^/var/run/" $there "/run/" -}}
    {{- if and (ne $name $other) (or (eq $here $there) (hasPrefix (printf "%s/" $there) $here)) -}}
    {{- fail (printf "%s: it is, or is inside, %s; choose another directory" $name $other) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $mounts := concat (values $own) (list "/etc/autoclave/policy" "/host" "/driver" "/var/run/secrets/kubernetes.io/serviceaccount") -}}
{{- with $v.scrubber.driverRoot }}{{ $mounts = append $mounts "/run/nvidia-persistenced" }}{{ end -}}
{{- $edges := list "/tmp" (clean (printf "%s/dev" $v.plugin.driverRoot)) -}}
{{- range $side := list "scrubber" "plugin" -}}
  {{- $more := index $v $side -}}
  {{- $volumes := list -}}
  {{- range $more.extraVolumes }}{{ $volumes = append $volumes .name }}{{ end -}}
  {{- if ne (len $volumes) (len (uniq $volumes)) -}}
  {{- fail (printf "%s.extraVolumes: two have one name" $side) -}}
  {{- end -}}
  {{- $env := list -}}
  {{- range $more.extraEnv }}{{ $env = append $env .name }}{{ end -}}
  {{- if ne (len $env) (len (uniq $env)) -}}
  {{- fail (printf "%s.extraEnv: two have one name" $side) -}}
  {{- end -}}
  {{- $paths := list -}}
  {{- range $mount := $more.extraVolumeMounts -}}
    {{- if not (has .name $volumes) -}}
    {{- fail (printf "%s.extraVolumeMounts: there is no %s in extraVolumes" $side .name) -}}
    {{- end -}}
    {{- range concat $edges $mounts -}}
      {{- if or (eq . $mount.mountPath) (and (has . $mounts) (hasPrefix (printf "%s/" .) $mount.mountPath)) -}}
      {{- fail (printf "%s.extraVolumeMounts: %s is taken; choose another path" $side $mount.mountPath) -}}
      {{- end -}}
    {{- end -}}
    {{- $paths = append $paths .mountPath -}}
  {{- end -}}
  {{- if ne (len $paths) (len (uniq $paths)) -}}
  {{- fail (printf "%s.extraVolumeMounts: two have one path" $side) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
