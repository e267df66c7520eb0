{{- /* The values of older versions that are given, and no longer have an effect: a line for each. */ -}}
{{- define "autoclave.former" -}}
{{- range $path, $why := .Files.Get "files/former_values.yaml" | fromYaml -}}
  {{- $names := splitList "." $path -}}
  {{- if hasKey (index $.Values (first $names) | default dict) (last $names) }}
  {{ $path }}: {{ $why }}
  {{- end -}}
{{- end -}}
{{- end -}}
