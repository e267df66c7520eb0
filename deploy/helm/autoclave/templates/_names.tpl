{{- /* No dots: names of Services have none. */ -}}
{{- define "autoclave.fullname" -}}
{{- $full := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- .Values.fullnameOverride | default $full | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* As in ground/public_names.py. */ -}}
{{- define "autoclave.domain" -}}autoclave.internal{{- end -}}

{{- /* Labels that a selector may stand on: they never change. Called with (list $ "scrubber"). */ -}}
{{- define "autoclave.selector" -}}
app.kubernetes.io/name: {{ (first .).Chart.Name }}
app.kubernetes.io/instance: {{ (first .).Release.Name | quote }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{- /* The policies by pool, as JSON: of the nodes without the label of policy.nodeLabel (""), and of each of its values.
       Each pool has a DaemonSet. No policy of a pool takes anything from the one above it. */ -}}
{{- define "autoclave.pools" -}}
{{- $pools := dict "" .Values.policy -}}
{{- range $pool, $chosen := .Values.policy.byNodeLabel -}}
  {{- $policy := deepCopy $.Values.policy -}}
  {{- $_ := set (set (set $policy "shipped" "default") "inline" "") "existingConfigMap" "" -}}
  {{- range $key, $value := $chosen }}{{ $_ := set $policy $key $value }}{{ end -}}
  {{- $_ := set $pools $pool $policy -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{- /* What the objects of a pool are called: called with the pool's context. */ -}}
{{- define "autoclave.of-pool" -}}
{{- with .pool }}-{{ . }}{{ end -}}
{{- end -}}

{{- define "autoclave.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: autoclave
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Labels of pods that nothing selects by: called with (list $ PODLABELS). */ -}}
{{- define "autoclave.pod-labels" -}}
{{- with merge (dict) (last .) (first .).Values.commonLabels }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- /* After the labels of an object that has no annotations of its own. */ -}}
{{- define "autoclave.annotations" -}}
{{- with .Values.commonAnnotations }}{{ printf "\n  annotations: %s" (toJson .) }}{{ end -}}
{{- end -}}

{{- /* What a program is for the API server: called with (list $ "scrubber"). The DRA driver takes the plugin's place. */ -}}
{{- define "autoclave.account" -}}
{{- $side := ternary "scrubber" "plugin" (eq (last .) "scrubber") -}}
{{- (index (first .).Values $side).serviceAccount | default (printf "%s-%s" (include "autoclave.fullname" (first .)) (last .)) -}}
{{- end -}}

{{- define "autoclave.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion (ternary (printf "-%s" .Values.image.cuda) "" (eq .Values.backend "nvidia"))) }}
{{- end -}}
{{- end -}}

{{- /* What hands GPUs out: one of the two, never both. */ -}}
{{- define "autoclave.kubelet-side" -}}
{{- ternary "dra" "plugin" .Values.dra.enabled -}}
{{- end -}}

{{- /* Whether our DRA driver stands in front of another one, and whose claims it answers. */ -}}
{{- define "autoclave.dra-in-front" -}}
{{- if and .Values.dra.enabled .Values.dra.inFrontOf.registrarDirectory -}}yes{{- end -}}
{{- end -}}

{{- /* Whether it taints quarantined devices of the other driver: older clusters have no DeviceTaintRule. */ -}}
{{- define "autoclave.dra.taints" -}}
{{- if and (include "autoclave.dra-in-front" .) .Values.dra.inFrontOf.taintRules (semverCompare ">=1.37.0-0" .Capabilities.KubeVersion.Version) -}}yes{{- end -}}
{{- end -}}

{{- /* Whether the device plugin stands in front of a vendor's. */ -}}
{{- define "autoclave.in-front" -}}
{{- if .Values.plugin.inFrontOf.directory -}}yes{{- end -}}
{{- end -}}

{{- define "autoclave.dra.driver" -}}
{{- ternary .Values.dra.inFrontOf.driverName .Values.dra.driverName (eq (include "autoclave.dra-in-front" .) "yes") -}}
{{- end -}}

{{- /* Where its own socket is, below the kubelet's directory of plugins. */ -}}
{{- define "autoclave.dra.place" -}}
{{ .Values.kubelet.pluginsDir }}/{{ ternary "autoclave" .Values.dra.driverName (eq (include "autoclave.dra-in-front" .) "yes") }}
{{- end -}}

{{- define "autoclave.real" -}}
{{- if eq .Values.backend "nvidia" -}}yes{{- end -}}
{{- end -}}

{{- /* The directory of the sockets, inside what is mounted: the kubelet makes a missing host path with mode 0755, and the
       service takes none that others may enter. */ -}}
{{- define "autoclave.doors" -}}
{{ .Values.directories.run }}/doors
{{- end -}}

{{- /* Whether a policy of some node scrubs GPUs: any but `observe` does. */ -}}
{{- define "autoclave.scrubs" -}}
{{- range include "autoclave.pools" . | fromJson -}}
{{- if or .inline .existingConfigMap (ne .shipped "observe") }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{- /* Whether the kernel refuses GPUs to programs of the host on some node, by a value or by the policy `strict`. */ -}}
{{- define "autoclave.refuses" -}}
{{- if eq .Values.policy.fence "refuse" }}yes{{ else if not .Values.policy.fence -}}
{{- range include "autoclave.pools" . | fromJson }}{{ if and (not (or .inline .existingConfigMap)) (eq .shipped "strict") }}yes{{ end }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* For NOTES: called where another plugin or driver registers with ours. */ -}}
{{- define "autoclave.begin-with-observe" }}
{{- if include "autoclave.scrubs" . }}
CAUTION: on a node where the other one does not register there, nothing is proven, and a scrub can overwrite a GPU that it has just given to a pod.
{{- else }}
The policy observe scrubs nothing. When the other one has registered there on all nodes, choose another policy:
  helm upgrade {{ .Release.Name }} CHART --namespace {{ .Release.Namespace }} --reset-then-reuse-values --set policy.shipped=default
{{- end }}
{{- end }}
