{{- /* Where both pods run, and as what. */ -}}
{{- define "autoclave.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- /* A pod of the scrubber runs on the nodes of its pool: those whose label has this value, or those without it. */ -}}
{{- $label := .Values.policy.nodeLabel }}
{{- $nodes := deepCopy .Values.nodeSelector }}
{{- $without := "" }}
{{- if and $label (hasKey . "pool") }}
{{- if .pool }}{{ $_ := set $nodes $label .pool }}{{ else }}{{ $without = printf ", {key: %s, operator: DoesNotExist}" $label }}{{ end }}
{{- end }}
{{- with $nodes }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- if .Values.affinity }}
affinity: {{ toJson .Values.affinity }}
{{- else if and .Values.gpuNodesOnly (include "autoclave.real" .) }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: # one of them is enough
        - matchExpressions: [{key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}{{ $without }}]
        - matchExpressions: [{key: feature.node.kubernetes.io/cpu-model.vendor_id, operator: In, values: [NVIDIA]}{{ $without }}]
        - matchExpressions: [{key: nvidia.com/gpu.present, operator: In, values: ["true"]}{{ $without }}]
{{- else if $without }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions: [{{ $without | trimPrefix ", " }}]
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}

{{- define "autoclave.update" -}}
updateStrategy:
  type: RollingUpdate
  rollingUpdate:
    maxUnavailable: 0
    maxSurge: {{ .Values.updateStrategy.maxUnavailable }} # the new pod waits (--standby), and takes over when the old one stops
{{- end -}}

{{- /* What the plugin needs, and whoever only looks: nothing but to be root, as the directories are root's alone. */ -}}
{{- define "autoclave.unprivileged" -}}
securityContext:
  runAsUser: 0 # the kubelet's directory has mode 0750, that of the sockets 0700
  runAsGroup: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
  {{- with .Values.plugin.seLinuxType }}
  seLinuxOptions: {type: {{ . | quote }}}
  {{- end }}
{{- end -}}

{{- /* Whoever looks into every process of the node, ends some, and resets GPUs. */ -}}
{{- define "autoclave.privileges" -}}
{{- if .Values.scrubber.privileged }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  privileged: true
  readOnlyRootFilesystem: true
{{- else }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    add:
      - DAC_READ_SEARCH # to look into processes of other users
      - KILL # to end what a tenant left
      - SYS_ADMIN # to see what processes have mapped; to reset GPUs and set them right; NVIDIA's runtime asks for it
      - SYS_PTRACE # to look into processes at all
  seccompProfile: {type: RuntimeDefault}
  appArmorProfile: {type: Unconfined} # a runtime's default profile hides the processes of others
  seLinuxOptions: {type: spc_t} # the same, and it may use directories of the node
{{- end }}
{{- end -}}

{{- /* What runs the host's nvidia-ctk, in the host's root directory. */ -}}
{{- define "autoclave.chroot" -}}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    add:
      - SYS_ADMIN # NVIDIA's runtime asks for it
      - SYS_CHROOT
  seccompProfile: {type: RuntimeDefault}
  seLinuxOptions: {type: spc_t} # it may use directories of the node
{{- end -}}

{{- /* Called with the name of the port. */ -}}
{{- define "autoclave.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 5
  failureThreshold: 36 # the program may take long to load from a slow disk
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 20
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}

{{- define "autoclave.pod-ip" -}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
{{- end -}}

{{- /* What a service account's token is mounted from, in the one container that needs it. */ -}}
{{- define "autoclave.token" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}

{{- /* A look at the node: called with (list $ FINDINGS) and more flags. Mounts, and privileges, are the caller's. */ -}}
{{- define "autoclave.doctor" -}}
{{- $ := first . -}}
name: doctor
image: {{ include "autoclave.image" $ }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
command: [autoclave]
args:
  - doctor
  - --run-dir={{ include "autoclave.doors" $ }}
  - --kubelet-dir={{ $.Values.kubelet.devicePluginsDir }}
  - --host-root=/host
{{- range index . 1 }}
  - --only={{ . }}
{{- end }}
{{- range slice . 2 }}
  - {{ . }}
{{- end }}
env:
  - {name: NVIDIA_VISIBLE_DEVICES, value: void} # it opens no GPU
resources: {{ toJson $.Values.doctor.resources }}
{{- end -}}
