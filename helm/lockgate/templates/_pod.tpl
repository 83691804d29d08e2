{{/* The pod of both kinds of workload. The data directory is the volume "data", that of children "work". */}}
{{- define "lockgate.podTemplate" -}}
{{- $v := .Values -}}
{{- $manifest := include "lockgate.manifestName" . -}}
{{- $files := include "lockgate.secretFiles" . | fromYaml -}}
{{- $named := dict -}}
{{- range $name, $secret := $v.secrets -}}
{{- if $secret.existingSecret -}}
{{- $_ := set $named $name $secret -}}
{{- end -}}
{{- end -}}
metadata:
  # Without the labels of the release: a new version of the chart alone restarts nothing.
  labels:
    {{- include "lockgate.selectorLabels" . | nindent 4 }}
    {{- with $v.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: lockgate
    checksum/settings: {{ include "lockgate.settings" . | sha256sum }}
    {{- if and $v.manifest.content $v.manifest.restartOnChange }}
    checksum/manifest: {{ toJson $v.manifest.content | sha256sum }}
    {{- end }}
    {{- with $v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "lockgate.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "lockgate.gracePeriod" . }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not (kindIs "invalid" $v.sandbox.hostUsers) }}
  hostUsers: {{ $v.sandbox.hostUsers }}
  {{- end }}
  {{- if $v.shareProcessNamespace }}
  shareProcessNamespace: true
  {{- end }}
  securityContext:
    {{- $pod := deepCopy $v.podSecurityContext }}
    {{- if $v.sandbox.uids }}
    {{- $pod = mergeOverwrite $pod (dict "runAsNonRoot" false "runAsUser" 0) }}
    {{- end }}
    {{- toYaml $pod | nindent 4 }}
  {{- with $v.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: lockgate
      image: {{ include "lockgate.image" . | quote }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args:
        - serve
        {{- if $v.manifest.prune }}
        - --apply
        - /etc/lockgate/manifest/{{ $v.manifest.key }}
        - --prune
        {{- end }}
        {{- with $v.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      env:
        # Variables, so that commands of kubectl exec have the same files, and find the gateway.
        - name: LOCKGATE_CONFIG
          value: /etc/lockgate/settings/lockgate.toml
        {{- if $manifest }}
        - name: LOCKGATE_APPLY
          value: /etc/lockgate/manifest/{{ $v.manifest.key }}
        {{- end }}
        {{- if not $v.administration.public }}
        - name: LOCKGATE_URL
          value: http://{{ include "lockgate.administration" . }}
        {{- end }}
        {{- if $v.secrets.adminKey.existingSecret }}
        - name: LOCKGATE_KEY_FILE
          value: /run/secrets/lockgate/admin-key
        {{- end }}
        {{- if eq $v.mode "replicated" }}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - name: LOCKGATE_CLUSTER__ADVERTISE
          value: {{ printf "%s:%d" (include "lockgate.address" (dict "root" . "variable" "POD_IP")) (int $v.ports.cluster) | quote }}
        {{- end }}
        {{- range $name, $_ := $named }}
        {{- with (index $files $name).variable }}
        - name: {{ . }}
          value: /run/secrets/lockgate/{{ (index $files $name).file }}
        {{- end }}
        {{- end }}
        {{- with $v.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $v.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: http, containerPort: {{ int $v.ports.http }}, protocol: TCP}
        - {name: operations, containerPort: {{ int $v.ports.operations }}, protocol: TCP}
        {{- if eq $v.mode "replicated" }}
        - {name: cluster, containerPort: {{ int $v.ports.cluster }}, protocol: TCP}
        {{- end }}
      {{- range $kind := list "startup" "liveness" "readiness" }}
      {{ $kind }}Probe:
        httpGet: {path: {{ ternary "/readyz" "/livez" (eq $kind "readiness") }}, port: operations}
        {{- toYaml (index $v.probes $kind) | nindent 8 }}
      {{- end }}
      {{- with include "lockgate.preStopSeconds" . | int }}
      lifecycle:
        preStop: {sleep: {seconds: {{ . }}}}
      {{- end }}
      securityContext:
        {{- $own := deepCopy $v.securityContext }}
        {{- if $v.sandbox.uids }}
        {{- $own = mergeOverwrite $own (dict "capabilities" (dict "drop" (list "ALL") "add" (list "CHOWN" "DAC_OVERRIDE" "KILL" "SETGID" "SETUID"))) }}
        {{- end }}
        {{- toYaml $own | nindent 8 }}
      {{- with $v.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: data, mountPath: /var/lib/lockgate}
        - {name: work, mountPath: /work}
        - {name: tmp, mountPath: /tmp}
        - {name: settings, mountPath: /etc/lockgate/settings, readOnly: true}
        {{- if $manifest }}
        - {name: manifest, mountPath: /etc/lockgate/manifest, readOnly: true}
        {{- end }}
        {{- if $named }}
        - {name: secrets, mountPath: /run/secrets/lockgate, readOnly: true}
        {{- end }}
        {{- if $v.tls.existingSecret }}
        - {name: tls, mountPath: /run/secrets/tls, readOnly: true}
        {{- end }}
        {{- range $index, $name := $v.manifest.secrets }}
        - {name: manifest-secret-{{ $index }}, mountPath: /run/secrets/manifest/{{ $name }}, readOnly: true}
        {{- end }}
        {{- with $v.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $v.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- if or (eq $v.mode "replicated") (not $v.persistence.enabled) }}
    - name: data
      {{- include "lockgate.volume" $v.dataVolume | nindent 6 }}
    {{- else if $v.persistence.existingClaim }}
    - name: data
      persistentVolumeClaim: {claimName: {{ $v.persistence.existingClaim }}}
    {{- end }}
    - name: work
      {{- include "lockgate.volume" $v.workVolume | nindent 6 }}
    - name: tmp
      {{- include "lockgate.volume" $v.tmpVolume | nindent 6 }}
    - name: settings
      configMap: {name: {{ include "lockgate.fullname" . }}-settings, defaultMode: 0440}
    {{- if $manifest }}
    - name: manifest
      configMap: {name: {{ $manifest }}, defaultMode: 0440}
    {{- end }}
    {{- if $named }}
    # Whole volumes, without subPath: the kubelet replaces the files when a Secret changes.
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- range $name, $secret := $named }}
          - secret:
              name: {{ $secret.existingSecret }}
              items: [{key: {{ $secret.key | quote }}, path: {{ (index $files $name).file }}}]
          {{- end }}
    {{- end }}
    {{- with $v.tls.existingSecret }}
    - name: tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- range $index, $name := $v.manifest.secrets }}
    - name: manifest-secret-{{ $index }}
      secret: {secretName: {{ $name }}, defaultMode: 0440}
    {{- end }}
    {{- with $v.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if kindIs "invalid" $v.topologySpreadConstraints }}
  {{- if eq $v.mode "replicated" }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      # Of the pods of one revision, so that those that are about to end do not count.
      matchLabelKeys: [pod-template-hash]
      labelSelector:
        matchLabels:
          {{- include "lockgate.selectorLabels" $ | nindent 10 }}
    {{- end }}
  {{- end }}
  {{- else if $v.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml $v.topologySpreadConstraints | nindent 4 }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "dnsConfig" }}
  {{- with index $v $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- range $key := list "priorityClassName" "runtimeClassName" "dnsPolicy" }}
  {{- with index $v $key }}
  {{ $key }}: {{ . }}
  {{- end }}
  {{- end }}
{{- end -}}
