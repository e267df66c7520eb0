{{- /* The values of older versions that are given, and change nothing any more: a line for each. */ -}}
{{- define "autoclave.former" -}}
{{- $port := "the port of the metrics is the chart's" -}}
{{- $stop := "how long a stop may take is the chart's" -}}
{{- range $path, $why := dict
  "createGate.mode" "the create gate has left" "createGate.runtimeClasses" "the create gate has left" "kubelet.runtimeRequestTimeout" "the create gate has left"
  "scrubber.metricsPort" $port "plugin.metricsPort" $port
  "scrubber.terminationGracePeriodSeconds" $stop "plugin.terminationGracePeriodSeconds" $stop "dra.terminationGracePeriodSeconds" $stop
-}}
  {{- $names := splitList "." $path -}}
  {{- if hasKey (index $.Values (first $names) | default dict) (last $names) }}
  {{ $path }}: {{ $why }}
  {{- end -}}
{{- end -}}
{{- end -}}
