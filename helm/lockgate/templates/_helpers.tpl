{{- define "lockgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough for the suffixes of other objects, such as "-operations" */}}
{{- define "lockgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "lockgate.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "lockgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "lockgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "lockgate.commonLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: lockgate
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "lockgate.labels" -}}
{{ include "lockgate.selectorLabels" . }}
{{ include "lockgate.commonLabels" . }}
{{- end -}}

{{- define "lockgate.testLabels" -}}
app.kubernetes.io/name: {{ include "lockgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end -}}

{{- define "lockgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "lockgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "lockgate.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The host that clients use */}}
{{- define "lockgate.publicHost" -}}
{{- (urlParse .Values.publicUrl).hostname | lower -}}
{{- end -}}

{{- define "lockgate.manifestName" -}}
{{- with .Values.manifest -}}
{{- if .existingConfigMap -}}
{{ .existingConfigMap }}
{{- else if .content -}}
{{ include "lockgate.fullname" $ }}-manifest
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Address of a listener: all addresses of the pod */}}
{{- define "lockgate.listen" -}}
{{- printf "%s:%d" (ternary "[::]" "0.0.0.0" (eq .root.Values.ipFamily "IPv6")) (int .port) -}}
{{- end -}}

{{/* The listener of the administration API on loopback */}}
{{- define "lockgate.administration" -}}
{{- printf "%s:%d" (ternary "[::1]" "127.0.0.1" (eq .Values.ipFamily "IPv6")) (int .Values.administration.port) -}}
{{- end -}}

{{/* An address in a variable, in the form that a port may follow */}}
{{- define "lockgate.address" -}}
{{- printf (ternary "[$(%s)]" "$(%s)" (eq .root.Values.ipFamily "IPv6")) .variable -}}
{{- end -}}

{{/* The variable prefix that the kubelet makes of the name of a Service */}}
{{- define "lockgate.serviceVariable" -}}
{{- printf "%s_SERVICE_HOST" (. | upper | replace "-" "_") -}}
{{- end -}}

{{/* What a pod takes to end: docs/kubernetes.md, "Upgrades" */}}
{{- define "lockgate.drainSeconds" -}}
{{- add (include "lockgate.preStopSeconds" . | int) (include "lockgate.delaySeconds" . | int) (int .Values.drain.timeoutSeconds) -}}
{{- end -}}

{{- define "lockgate.preStopSeconds" -}}
{{- include "lockgate.whileOthersServe" (list . .Values.drain.preStopSeconds) -}}
{{- end -}}

{{- define "lockgate.delaySeconds" -}}
{{- include "lockgate.whileOthersServe" (list . .Values.drain.delaySeconds) -}}
{{- end -}}

{{- define "lockgate.whileOthersServe" -}}
{{- $seconds := index . 1 -}}
{{- if kindIs "invalid" $seconds -}}
{{- ternary 5 0 (eq (index . 0).Values.mode "replicated") -}}
{{- else -}}
{{- int $seconds -}}
{{- end -}}
{{- end -}}

{{- define "lockgate.gracePeriod" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add (include "lockgate.drainSeconds" . | int) 24 -}}
{{- else -}}
{{- int .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* The file of a key of a Secret: variable of the gateway (or key of its settings), name of the file */}}
{{- define "lockgate.secretFiles" -}}
masterKey: {file: master-key, variable: LOCKGATE_MASTER_KEY_FILE}
adminKey: {file: admin-key, variable: LOCKGATE_ADMIN_KEY_FILE}
databaseUrl: {file: database-url, variable: LOCKGATE_SQL__URL_FILE}
redisUrl: {file: redis-url, variable: LOCKGATE_REDIS__URL_FILE}
redisCa: {file: redis-ca.crt}
databaseCa: {file: database-ca.crt}
{{- end -}}

{{/* A volume by its value. Helm merges one of another kind with the default, which is an emptyDir */}}
{{- define "lockgate.volume" -}}
{{- toYaml (ternary (omit . "emptyDir") . (gt (len .) 1)) -}}
{{- end -}}

{{/* Settings as TOML, one key a line: JSON's scalars and lists are TOML's */}}
{{- define "lockgate.toml" -}}
{{- $prefix := .prefix -}}
{{- range $key, $value := .values -}}
{{- if kindIs "map" $value -}}
{{- include "lockgate.toml" (dict "prefix" (printf "%s%s." $prefix $key) "values" $value) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{ $prefix }}{{ $key }} = {{ toJson $value }}
{{ end -}}
{{- end -}}
{{- end -}}

{{- define "lockgate.settings" -}}
{{- $ports := .Values.ports -}}
{{- $listen := dict -}}
{{- range $name, $port := $ports -}}
{{- $_ := set $listen $name (include "lockgate.listen" (dict "root" $ "port" $port)) -}}
{{- end -}}
{{- $drain := .Values.drain -}}
{{- $own := dict
  "public_url" .Values.publicUrl
  "data_dir" "/var/lib/lockgate"
  "work_dir" "/work"
  "http" (dict "listen" $listen.http)
  "ops" (dict "listen" $listen.operations)
  "drain" (dict "delay" (printf "%ss" (include "lockgate.delaySeconds" .)) "timeout" (printf "%ds" (int $drain.timeoutSeconds)))
-}}
{{- if not .Values.administration.public -}}
{{- $_ := set $own "admin" (dict "listen" (include "lockgate.administration" .)) -}}
{{- end -}}
{{- if eq .Values.mode "replicated" -}}
{{- $_ := set $own "cluster" (dict "listen" $listen.cluster) -}}
{{- end -}}
{{- if .Values.secrets.redisCa.existingSecret -}}
{{- $_ := set $own "redis" (dict "ca_file" "/run/secrets/lockgate/redis-ca.crt") -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $own.http "tls" (dict "cert" "/run/secrets/tls/tls.crt" "key" "/run/secrets/tls/tls.key") -}}
{{- end -}}
{{- with .Values.sandbox.uids -}}
{{- $_ := set $own "sandbox" (dict "uids" . "separation" "uid") -}}
{{- end -}}
{{- include "lockgate.toml" (dict "prefix" "" "values" (mustMergeOverwrite (deepCopy .Values.config) $own)) -}}
{{- end -}}

{{/* Fails with a message that names the value */}}
{{- define "lockgate.validate" -}}
{{- $v := .Values -}}
{{- if not $v.publicUrl -}}
{{- fail "publicUrl: is required: the URL that clients use, such as https://mcp.example.com" -}}
{{- end -}}
{{- if not $v.image.repository -}}
{{- fail "image.repository: is required: build deploy/Dockerfile, and push it to a registry of yours" -}}
{{- end -}}
{{- if eq $v.mode "replicated" -}}
{{- range list "masterKey" "adminKey" "databaseUrl" "redisUrl" -}}
{{- if not (index $v.secrets .).existingSecret -}}
{{- fail (printf "secrets.%s.existingSecret: is required with mode replicated: all replicas share it" .) -}}
{{- end -}}
{{- end -}}
{{- if eq 0 (add (include "lockgate.preStopSeconds" . | int) (include "lockgate.delaySeconds" . | int) | int) -}}
{{- fail "drain: preStopSeconds and delaySeconds are both 0: a pod would close its port before load balancers know" -}}
{{- end -}}
{{- else -}}
{{- range list "redisUrl" "redisCa" -}}
{{- if (index $v.secrets .).existingSecret -}}
{{- fail (printf "secrets.%s.existingSecret: is for mode replicated: one replica needs no Redis" .) -}}
{{- end -}}
{{- end -}}
{{- if and $v.secrets.databaseUrl.existingSecret (not $v.secrets.masterKey.existingSecret) -}}
{{- fail "secrets.masterKey.existingSecret: is required with secrets.databaseUrl: a key that is made in the volume would be lost with it, and the database would not open" -}}
{{- end -}}
{{- if $v.autoscaling.enabled -}}
{{- fail "autoscaling.enabled: needs mode replicated: SQLite serves one replica" -}}
{{- end -}}
{{- end -}}
{{- $ports := list (int $v.ports.http) (int $v.ports.operations) (int $v.ports.cluster) (int $v.administration.port) -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "ports: two listeners have the same port" -}}
{{- end -}}
{{- $least := add (include "lockgate.drainSeconds" . | int) 22 | int -}}
{{- if lt (include "lockgate.gracePeriod" . | int) $least -}}
{{- fail (printf "terminationGracePeriodSeconds: is %s, and drain takes up to %d s (preStopSeconds + delaySeconds + timeoutSeconds + 22): pods would be killed with calls in flight" (include "lockgate.gracePeriod" .) $least) -}}
{{- end -}}
{{- if and $v.manifest.content $v.manifest.existingConfigMap -}}
{{- fail "manifest: content and existingConfigMap exclude each other" -}}
{{- end -}}
{{- if and $v.manifest.prune (not (include "lockgate.manifestName" .)) -}}
{{- fail "manifest.prune: needs a manifest" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas: is more than maxReplicas" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (or $v.autoscaling.targetCPUUtilizationPercentage $v.autoscaling.targetSessions $v.autoscaling.metrics)) -}}
{{- fail "autoscaling: names no metric: set targetCPUUtilizationPercentage, targetSessions or metrics" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled $v.autoscaling.targetCPUUtilizationPercentage (not (dig "requests" "cpu" "" $v.resources)) -}}
{{- fail "autoscaling.targetCPUUtilizationPercentage: is a share of resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- $fewest := ternary $v.autoscaling.minReplicas $v.replicas $v.autoscaling.enabled | int -}}
{{- if and (eq $v.mode "replicated") $v.podDisruptionBudget.enabled (not (kindIs "invalid" $v.podDisruptionBudget.minAvailable)) -}}
{{- if and (not (kindIs "string" $v.podDisruptionBudget.minAvailable)) (ge (int $v.podDisruptionBudget.minAvailable) $fewest) -}}
{{- fail (printf "podDisruptionBudget.minAvailable: is %d of %d replicas: no node could be drained" (int $v.podDisruptionBudget.minAvailable) $fewest) -}}
{{- end -}}
{{- end -}}
{{- $secret := dict "LOCKGATE_MASTER_KEY" "masterKey" "LOCKGATE_ADMIN_KEY" "adminKey" "LOCKGATE_SQL__URL" "databaseUrl" "DATABASE_URL" "databaseUrl" "LOCKGATE_REDIS__URL" "redisUrl" "REDIS_URL" "redisUrl" -}}
{{- range $v.extraEnv -}}
{{- if hasKey $secret .name -}}
{{- fail (printf "extraEnv: %s: name a Secret in secrets.%s, which is mounted as a file" .name (index $secret .name)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.gateway.enabled (not $v.gateway.parentRefs) -}}
{{- fail "gateway.parentRefs: names no Gateway" -}}
{{- end -}}
{{- if and $v.ingress.tls.secretName (not (hasPrefix "https://" $v.publicUrl)) -}}
{{- fail "ingress.tls.secretName: is set, and publicUrl does not begin with https://" -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.operations.from) -}}
{{- fail "serviceMonitor.enabled: networkPolicy.operations.from lets nobody reach the operations port: name the peers of Prometheus" -}}
{{- end -}}
{{- include "lockgate.needsApi" (list . $v.gateway.enabled "gateway.enabled" "gateway.networking.k8s.io/v1") -}}
{{- include "lockgate.needsApi" (list . $v.serviceMonitor.enabled "serviceMonitor.enabled" "monitoring.coreos.com/v1") -}}
{{- include "lockgate.needsApi" (list . $v.prometheusRule.enabled "prometheusRule.enabled" "monitoring.coreos.com/v1") -}}
{{- end -}}

{{/* An object that is asked for is never left out in silence */}}
{{- define "lockgate.needsApi" -}}
{{- $root := index . 0 -}}
{{- $api := index . 3 -}}
{{- if and (index . 1) (not ($root.Capabilities.APIVersions.Has $api)) -}}
{{- fail (printf "%s: the cluster has no %s: install its definitions (helm template takes --api-versions %s)" (index . 2) $api $api) -}}
{{- end -}}
{{- end -}}
