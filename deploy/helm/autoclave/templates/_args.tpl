{{- define "autoclave.address" -}}
$(POD_IP):{{ . | int }}
{{- end -}}

{{- define "autoclave.policy" -}}
{{- if or .Values.policy.inline .Values.policy.existingConfigMap -}}
/etc/autoclave/policy/{{ .Values.policy.key }}
{{- else -}}
{{ .Values.policy.shipped }}
{{- end -}}
{{- end -}}

{{- define "autoclave.scrubber.args" -}}
- --backend={{ .Values.backend }}
- --policy={{ include "autoclave.policy" . }}
- --state-dir={{ .Values.directories.state }}
- --run-dir={{ include "autoclave.doors" . }}
- --kubelet-dir={{ .Values.kubelet.devicePluginsDir }}
- --pod-logs-dir={{ .Values.kubelet.podLogsDir }}
{{- range .Values.policy.operatorNamespaces }}
- --operator-namespace={{ . }}
{{- end }}
{{- with .Values.policy.fence }}
- --fence={{ . }}
{{- end }}
{{- range .Values.policy.exempt }}
- --exempt-unit={{ . }}
{{- end }}
- --host-root=/host
- --sight={{ .Values.scrubber.sight }}
- --standby
{{- if not (include "autoclave.real" .) }}
- --simulated-gpus={{ .Values.scrubber.simulated.gpus | int }}
- --simulated-memory={{ .Values.scrubber.simulated.memory }}
- --simulated-cdi-dir=/host/cdi
{{- end }}
- --metrics-address={{ include "autoclave.address" (include "autoclave.scrubber.port" .) }}
- --log-level={{ .Values.scrubber.logLevel }}
- --log-format={{ .Values.scrubber.logFormat }}
{{- end -}}

{{- define "autoclave.strategy" -}}
{{- .Values.plugin.strategy | default (list "cdi-cri") | join "," -}}
{{- end -}}

{{- /* Whether containers are given devices by CDI names, which somebody must have written down on the node. */ -}}
{{- define "autoclave.by-cdi" -}}
{{- if and (not (include "autoclave.in-front" .)) (contains "cdi-" (include "autoclave.strategy" .)) -}}yes{{- end -}}
{{- end -}}

{{- define "autoclave.cdi.args" -}}
- --host-root=/host
- --driver-root={{ .Values.plugin.driverRoot }}
- --cdi-kind={{ .Values.plugin.cdiKind }}
- --cdi-dir={{ .Values.directories.cdi }}
- --cdi-dir={{ .Values.directories.cdiDynamic }}
{{- end -}}

{{- define "autoclave.nvsentinel.args" -}}
{{- with .Values.nvsentinel.socket }}
- --nvsentinel-socket={{ . }}
- --nvsentinel-action={{ $.Values.nvsentinel.action }}
{{- end }}
{{- end -}}

{{- /* The port of metrics and probes: both plugins of a pod have one address. */ -}}
{{- define "autoclave.scrubber.port" -}}9475{{- end -}}
{{- define "autoclave.plugin.port" -}}
{{- add 9476 (ternary 1 0 (eq (toString .second) "-2")) -}}
{{- end -}}

{{- define "autoclave.plugin.args" -}}
- --kubelet-dir={{ .Values.kubelet.devicePluginsDir }}
- --run-dir={{ include "autoclave.doors" . }}
- --resource-prefix={{ .Values.plugin.resourcePrefix }}
{{- if include "autoclave.in-front" . }}
- --vendor-dir={{ .Values.plugin.inFrontOf.directory }}
- --cdi-dir=/host/etc/cdi
- --cdi-dir=/host/run/cdi
{{- else }}
- --strategy={{ include "autoclave.strategy" . }}
- --cdi-kind={{ .Values.plugin.cdiKind }}
{{- if .Values.plugin.passDeviceSpecs }}
- --pass-device-specs
{{- end }}
- --driver-root={{ .Values.plugin.driverRoot }}
- --mig-strategy={{ .Values.plugin.migStrategy }}
{{- end }}
- --standby
- --cluster-reports={{ ternary "on" "off" .Values.clusterReports.enabled }}
{{- if .Values.clusterReports.checkpoint }}
- --checkpoint-annotation
{{- end }}
{{- include "autoclave.nvsentinel.args" . }}
- --metrics-address={{ include "autoclave.address" (include "autoclave.plugin.port" .) }}
- --log-level={{ .Values.plugin.logLevel }}
- --log-format={{ .Values.plugin.logFormat }}
{{- end -}}

{{- define "autoclave.dra.args" -}}
- --driver-name={{ include "autoclave.dra.driver" . }}
{{- if include "autoclave.dra-in-front" . }}
- --vendor-registry-dir={{ .Values.dra.inFrontOf.registrarDirectory }}
{{- if include "autoclave.dra.taints" . }}
- --taint-rules
{{- end }}
- --cdi-dir=/host/etc/cdi
- --cdi-dir=/host/run/cdi
{{- end }}
- --run-dir={{ include "autoclave.doors" . }}
- --plugins-dir={{ .Values.kubelet.pluginsDir }}
{{- include "autoclave.nvsentinel.args" . }}
- --registry-dir={{ .Values.kubelet.registryDir }}
- --cdi-kind={{ .Values.plugin.cdiKind }}
- --metrics-address={{ include "autoclave.address" (include "autoclave.plugin.port" .) }}
- --log-level={{ .Values.plugin.logLevel }}
- --log-format={{ .Values.plugin.logFormat }}
{{- end -}}
