{{- define "autoclave.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "autoclave.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "autoclave.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "autoclave.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that a selector may stand on: they never change. Called with (list $ "scrubber"). */ -}}
{{- define "autoclave.selector" -}}
app.kubernetes.io/name: {{ include "autoclave.name" (first .) }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- define "autoclave.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "autoclave.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: autoclave
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "autoclave.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion (ternary (printf "-%s" .Values.image.cuda) "" (eq .Values.backend "nvidia"))) }}
{{- end -}}
{{- end -}}

{{- define "autoclave.real" -}}
{{- if eq .Values.backend "nvidia" -}}yes{{- end -}}
{{- end -}}

{{- /* The directory of the sockets, inside what is mounted: the kubelet makes a missing host path with mode 0755, and the
       service takes none that others may enter. */ -}}
{{- define "autoclave.doors" -}}
{{ .Values.directories.run }}/doors
{{- end -}}
