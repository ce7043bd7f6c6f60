{{/* Section [backend.driver] of a component's or CSI driver's configuration, as JSON. */}}
{{- define "cofferdam.backend" -}}
{{- $driver := .Values.driver -}}
{{- $section := dict -}}
{{- if eq (include "cofferdam.hasComponent" .) "true" -}}
{{- $digest := get (fromJson $driver.manifest) "digest" | trimPrefix "sha256:" -}}
{{- $section = dict "file" (include "cofferdam.componentFile" .) "sha256" $digest "settings" $driver.settings "limits" $driver.limits -}}
{{- if $driver.classSecrets -}}{{- $_ := set $section "class-secrets" true -}}{{- end -}}
{{- if $driver.grants -}}{{- $_ := set $section "grants" $driver.grants -}}{{- end -}}
{{- if $driver.origins -}}{{- $_ := set $section "http" (dict "origins" $driver.origins) -}}{{- end -}}
{{- if $driver.state -}}{{- $_ := set $section "state" $driver.state -}}{{- end -}}
{{- if $driver.pool -}}{{- $_ := set $section "pool" $driver.pool -}}{{- end -}}
{{- else -}}
{{- $section = dict "csi" "/csi/csi.sock" "driver-name" $driver.name -}}
{{- end -}}
{{- $files := dict -}}
{{- range $name, $_ := $driver.secrets -}}
{{- $_ := set $files $name (printf "/secrets/%s" $name) -}}
{{- end -}}
{{- $_ := set $section "secrets" $files -}}
{{- toJson $section -}}
{{- end -}}

{{- define "cofferdam.componentFile" -}}
{{- $component := .Values.driver.component -}}
{{- if $component.configMap.name -}}
{{- printf "/driver/%s" $component.configMap.key -}}
{{- else if $component.volume -}}
{{- printf "/driver/%s" (trimPrefix "/" $component.path) -}}
{{- else -}}
{{- $component.path -}}
{{- end -}}
{{- end -}}

{{/* Configuration of a process that calls the driver: dict "context" "plan" "roles" "withDriver". */}}
{{- define "cofferdam.processConfig" -}}
{{- $values := .context.Values -}}
{{- $config := deepCopy $values.controller.settings -}}
{{- if .withDriver -}}
{{- $_ := set $config "backend" (dict "driver" (include "cofferdam.backend" .context | fromJson)) -}}
{{- $namespaces := include "cofferdam.secretNamespaces" . | fromJsonArray -}}
{{- $_ := set $config "secret-namespaces" $namespaces -}}
{{- else if and (has .plan.placement (list "node-labels" "csi-node")) (has "snapshot-controller" .plan.centralRoles) -}}
{{- /* The processes of the nodes find their VolumeSnapshotContents by the label that this setting writes. */ -}}
{{- if not (hasKey $config "enable-distributed-snapshotting") -}}
{{- $_ := set $config "enable-distributed-snapshotting" true -}}
{{- end -}}
{{- end -}}
{{- include "cofferdam.toml" (dict "value" $config "prefix" "") -}}
{{- end -}}

{{/* The namespaces whose Secrets, or single Secrets, the process reads, as a JSON list: dict "context" "plan". */}}
{{- define "cofferdam.secretNamespaces" -}}
{{- $controller := .context.Values.controller -}}
{{- if $controller.secrets -}}
{{- $namespaces := list -}}
{{- range $controller.secrets -}}
{{- $namespaces = append $namespaces (splitList "/" . | first) -}}
{{- end -}}
{{- $namespaces | uniq | sortAlpha | toJson -}}
{{- else if kindIs "slice" $controller.secretNamespaces -}}
{{- $controller.secretNamespaces | uniq | sortAlpha | toJson -}}
{{- else if .plan.nodeLocal -}}
{{- list | toJson -}}
{{- else -}}
{{- list .context.Release.Namespace | toJson -}}
{{- end -}}
{{- end -}}

{{/*
Digest of the part of a process's configuration that needs a restart; the process itself takes the other changes over:
dict "context" "plan" "withDriver".
*/}}
{{- define "cofferdam.restartDigest" -}}
{{- $driver := .context.Values.driver -}}
{{- $parts := dict "settings" .context.Values.controller.settings -}}
{{- if .withDriver -}}
{{- $restart := list "deadline-ms" "concurrent-calls" "queued-calls" "breaker-failures" "breaker-pause-ms" "state-bytes" "session-keys" "session-ttl-ms" -}}
{{- $limits := dict -}}
{{- range $restart -}}
{{- if hasKey $driver.limits . -}}{{- $_ := set $limits . (get $driver.limits .) -}}{{- end -}}
{{- end -}}
{{- $_ := set $parts "limits" $limits -}}
{{- $_ := set $parts "state" $driver.state -}}
{{- $_ := set $parts "pool" $driver.pool -}}
{{- $_ := set $parts "secretNamespaces" (include "cofferdam.secretNamespaces" . | fromJsonArray) -}}
{{- end -}}
{{- toJson $parts | sha256sum -}}
{{- end -}}

{{/* Volumes of a process that calls the driver: dict "context" "configMap" "volume" (name of the volume of the ConfigMap). */}}
{{- define "cofferdam.driverVolumes" -}}
{{- $driver := .context.Values.driver -}}
- name: {{ .volume }}
  configMap:
    name: {{ .configMap }}
{{- if $driver.component.configMap.name }}
- name: component
  configMap:
    name: {{ $driver.component.configMap.name }}
{{- else if $driver.component.volume }}
- name: component
{{ toYaml $driver.component.volume | indent 2 }}
{{- end }}
{{- if $driver.secrets }}
- name: secrets
  projected:
    sources:
    {{- range $name, $secret := $driver.secrets }}
      - secret:
          name: {{ $secret.secretName }}
          items:
            - key: {{ $secret.key | quote }}
              path: {{ $name | quote }}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "cofferdam.driverMounts" -}}
{{- $driver := .context.Values.driver -}}
- name: {{ .volume }}
  mountPath: /config
  readOnly: true
{{- if or $driver.component.configMap.name $driver.component.volume }}
- name: component
  mountPath: /driver
  readOnly: true
{{- end }}
{{- if $driver.secrets }}
- name: secrets
  mountPath: /secrets
  readOnly: true
{{- end }}
{{- end -}}

{{/*
Container of a CSI driver: dict "context" "csi" "mounts" (a list) "securityContext", "probe" (port and settings of the process that calls
Probe), and "sidecar", true for an init container that runs as long as the pod.
*/}}
{{- define "cofferdam.csiContainer" -}}
{{- $directory := default "/csi" .csi.socketDir -}}
{{- $probe := dict "path" "/healthz/driver" "port" (int .probe.port) "timeout" (include "cofferdam.probeTimeout" .probe.settings) -}}
- name: driver
  image: {{ .csi.image }}
  imagePullPolicy: {{ default "IfNotPresent" .csi.imagePullPolicy }}
  {{- if .sidecar }}
  restartPolicy: Always
  {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  {{- with .csi.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .csi.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  env:
    - name: CSI_ENDPOINT
      value: unix://{{ $directory }}/csi.sock
    - name: NODE_NAME
      valueFrom:
        fieldRef:
          fieldPath: spec.nodeName
    {{- if .csi.serviceAccountToken }}
    {{- with include "cofferdam.apiEnv" .context }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- with .csi.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .csi.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .csi.metricsPort }}
  ports:
    - name: driver-metrics
      containerPort: {{ int . }}
  {{- end }}
  {{- include "cofferdam.startupProbe" $probe | nindent 2 }}
  {{- include "cofferdam.livenessProbe" $probe | nindent 2 }}
  {{- with .csi.lifecycle }}
  lifecycle:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .csi.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .securityContext | nindent 4 }}
  volumeMounts:
    - name: socket
      mountPath: {{ $directory }}
    {{- if .csi.serviceAccountToken }}
    {{- include "cofferdam.tokenMount" . | nindent 4 }}
    {{- end }}
    {{- with .mounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .csi.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Probes of a process that calls the driver, on the port `.port`: it listens after the driver is connected, or compiled. */}}
{{- define "cofferdam.callerProbes" -}}
{{- $alive := dict "path" "/healthz" "port" .port -}}
{{- include "cofferdam.startupProbe" $alive }}
{{ include "cofferdam.readinessProbe" (dict "path" "/readyz" "port" .port) }}
{{ include "cofferdam.livenessProbe" $alive }}
{{- end -}}

{{/* A probe: dict "path" "port", and "timeout" if it takes longer than 5 s. */}}
{{- define "cofferdam.startupProbe" -}}
startupProbe:
  httpGet:
    path: {{ .path }}
    port: {{ .port }}
  periodSeconds: 5
  timeoutSeconds: {{ default 5 .timeout }}
  failureThreshold: 120
{{- end -}}

{{- define "cofferdam.readinessProbe" -}}
readinessProbe:
  httpGet:
    path: {{ .path }}
    port: {{ .port }}
  periodSeconds: 5
  timeoutSeconds: {{ default 5 .timeout }}
{{- end -}}

{{- define "cofferdam.livenessProbe" -}}
livenessProbe:
  httpGet:
    path: {{ .path }}
    port: {{ .port }}
  periodSeconds: 20
  timeoutSeconds: {{ default 5 .timeout }}
  failureThreshold: 5
{{- end -}}

{{/* Seconds of a probe whose page calls Probe of the driver: more than the setting probe-timeout. */}}
{{- define "cofferdam.probeTimeout" -}}
{{- max 5 (add 2 (include "cofferdam.seconds" (dig "probe-timeout" "3s" . | toString) | int)) -}}
{{- end -}}
