{{- /* What a schema cannot say: values that contradict each other. Each message names what to change. */ -}}
{{- define "autoclave.checks" -}}
{{- $v := .Values -}}
{{- if and $v.podMonitor.enabled $v.serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled and serviceMonitor.enabled: every pod would be asked twice; switch one off" -}}
{{- end -}}
{{- if and $v.policy.inline $v.policy.existingConfigMap -}}
{{- fail "policy.inline and policy.existingConfigMap: there can be one policy; leave one of them empty" -}}
{{- end -}}
{{- if and (or $v.policy.inline $v.policy.existingConfigMap) (ne $v.policy.shipped "default") -}}
{{- fail "policy.shipped: another policy replaces it; leave it at default, or leave policy.inline and policy.existingConfigMap empty" -}}
{{- end -}}
{{- if and $v.clusterReports.taint (not $v.clusterReports.enabled) -}}
{{- fail "clusterReports.taint: it is a part of the reports; set clusterReports.enabled too" -}}
{{- end -}}
{{- if $v.clusterReports.taint -}}
  {{- $borne := false -}}
  {{- range $v.tolerations -}}
    {{- if and (eq (.operator | default "Equal") "Exists") (or (not .key) (eq .key "autoclave.dev/no-healthy-devices")) (or (not .effect) (eq .effect "NoSchedule")) -}}
      {{- $borne = true -}}
    {{- end -}}
  {{- end -}}
  {{- if not $borne -}}
  {{- fail "clusterReports.taint: tolerations must bear autoclave.dev/no-healthy-devices, or a tainted node never comes back" -}}
  {{- end -}}
{{- end -}}
{{- if and $v.runtimeClass.create (not $v.runtimeClass.name) -}}
{{- fail "runtimeClass.create: it has no name; set runtimeClass.name" -}}
{{- end -}}
{{- range $side := list "scrubber" "plugin" -}}
  {{- $rest := omit (index $v $side) "extraArgs" -}}
  {{- $set := splitList " " (include (printf "autoclave.%s.args" $side) $ | fromYamlArray | join " ") -}}
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
  {{- if not (contains (printf "alert: %s\n" .) ($.Files.Get "files/prometheusrule.yaml")) -}}
  {{- fail (printf "prometheusRule.disabled: there is no alert %s" .) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
