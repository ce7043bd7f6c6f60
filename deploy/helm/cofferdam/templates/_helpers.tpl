{{/* Name of the chart's objects, at most 44 characters, so that each name with its suffix is a DNS label. */}}
{{- define "cofferdam.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.labels" -}}
{{ include "cofferdam.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.customLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cofferdam.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Image: dict "repository" "tag" "digest" */}}
{{- define "cofferdam.image" -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest }}
{{- else -}}
{{ printf "%s:%s" .repository .tag }}
{{- end -}}
{{- end -}}

{{/* Image of the processes that call drivers and register them. */}}
{{- define "cofferdam.mainImage" -}}
{{- $image := .Values.image -}}
{{- include "cofferdam.image" (dict "repository" $image.repository "tag" (default .Chart.AppVersion $image.tag) "digest" $image.digest) -}}
{{- end -}}

{{/* Image of the role `node`, with the programs that it runs. */}}
{{- define "cofferdam.nodeImage" -}}
{{- $image := .Values.node.image -}}
{{- $repository := default (printf "%s-node" .Values.image.repository) $image.repository -}}
{{- $tag := $image.tag | default .Values.image.tag | default .Chart.AppVersion -}}
{{- include "cofferdam.image" (dict "repository" $repository "tag" $tag "digest" $image.digest) -}}
{{- end -}}

{{/*
What the values mean, as JSON:
  component        the driver is a component, and not an existing CSI driver
  placement        central, node, node-labels or csi-node, as in `cofferdam render rbac --drivers`
  nodeLocal        the provisioner runs on each node
  centralRoles     roles of the Deployment
  localRoles       roles of the container `provisioner` of the DaemonSet
  nodeRoles        roles of the container `cofferdam` of the DaemonSet
  nodePlacement    the placement by which the account of the nodes gets its rights
  sharesNodeAccount   other containers of the DaemonSet use its account, and write objects that no policy knows
  preStop          the container `cofferdam` of the DaemonSet waits for the volumes of a drained node
  nodeApi          the container `cofferdam` of the DaemonSet calls the API
  nodeToken        a container of the DaemonSet calls the API
  replicas, recreate   of the Deployment
  controller, node, nodeNamespace, controllerAccount, nodeAccount
  manifest         the component's manifest
*/}}
{{- define "cofferdam.plan" -}}
{{- include "cofferdam.validate" . -}}
{{- $driver := .Values.driver -}}
{{- $component := eq (include "cofferdam.hasComponent" .) "true" -}}
{{- $manifest := ternary (default "{}" $driver.manifest | fromJson) dict $component -}}
{{- $ownKey := "topology.cofferdam.dev/node" -}}
{{- $hasLabels := false -}}
{{- range $manifest.topologyKeys -}}
{{- if ne . $ownKey -}}{{- $hasLabels = true -}}{{- end -}}
{{- end -}}
{{- $placement := "central" -}}
{{- if and (not $component) $driver.csi.nodeDeployment -}}
{{- $placement = "csi-node" -}}
{{- else if eq (default "" $manifest.placement) "node" -}}
{{- $placement = ternary "node-labels" "node" $hasLabels -}}
{{- end -}}
{{- $nodeLocal := ne $placement "central" -}}
{{- $abilities := default list $manifest.abilities -}}
{{- $central := list -}}
{{- $local := list -}}
{{- if .Values.controller.enabled -}}
{{- range .Values.controller.roles -}}
{{- if and $nodeLocal (has . (list "provisioner" "attacher" "resizer" "snapshotter")) -}}
{{- $expands := or (not $component) (has "expansion" $abilities) (has "modification" $abilities) -}}
{{- $snapshots := or (not $component) (has "snapshots" $abilities) -}}
{{- if or (eq . "provisioner") (and (eq . "resizer") $expands) (and (eq . "snapshotter") $snapshots) -}}
{{- $local = append $local . -}}
{{- end -}}
{{- else -}}
{{- $central = append $central . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.controller.enabled .Values.controller.extraContainers (not $central) -}}
{{- fail "controller.extraContainers is set, and the release has no Deployment: expected node.extraContainers, because the driver is on its nodes" -}}
{{- end -}}
{{- $preStop := and $component .Values.node.preStop.enabled -}}
{{- $nodeApi := and $component (or $hasLabels $preStop) -}}
{{- $sharesNodeAccount := dig "serviceAccountToken" false .Values.driver.csi.node -}}
{{- range .Values.node.extraContainers -}}
{{- range .volumeMounts -}}{{- if eq .name "token" -}}{{- $sharesNodeAccount = true -}}{{- end -}}{{- end -}}
{{- end -}}
{{- $nodeToken := or $nodeApi $local $sharesNodeAccount -}}
{{- $singleOwner := eq (include "cofferdam.hasSingleOwner" .) "true" -}}
{{- $ownsData := and $singleOwner (not $nodeLocal) -}}
{{- $replicas := default (ternary 1 2 $ownsData) .Values.controller.replicaCount -}}
{{- $fullname := include "cofferdam.fullname" . -}}
{{- $accountName := printf "%s-controller" $fullname -}}
{{- dict
  "component" $component
  "manifest" $manifest
  "placement" $placement
  "nodeLocal" $nodeLocal
  "centralRoles" ($central | uniq)
  "localRoles" ($local | uniq)
  "nodeRoles" (ternary (list "node" "registrar" "liveness") (list "registrar" "liveness") $component)
  "nodePlacement" (ternary "node-labels" $placement (and (or $hasLabels $preStop) (ne $placement "csi-node")))
  "nodeApi" $nodeApi
  "nodeToken" (not (empty $nodeToken))
  "sharesNodeAccount" $sharesNodeAccount
  "preStop" $preStop
  "replicas" $replicas
  "recreate" $ownsData
  "controller" (gt (len $central) 0)
  "node" .Values.node.enabled
  "nodeNamespace" (include "cofferdam.nodeNamespace" .)
  "controllerAccount" (default $accountName .Values.controller.serviceAccount.name)
  "nodeAccount" (default (printf "%s-node" $fullname) .Values.node.serviceAccount.name)
  | toJson -}}
{{- end -}}

{{- define "cofferdam.nodeNamespace" -}}
{{- default (printf "%s-node" .Release.Namespace) .Values.node.namespace -}}
{{- end -}}

{{- define "cofferdam.hasComponent" -}}
{{- with .Values.driver.component -}}
{{- if or .path .configMap.name .volume -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.hasCsi" -}}
{{- with .Values.driver.csi -}}
{{- if or .controller .node -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* The driver's data are in files or in the memory of one process. Without grants, a component that imports `state` gets it. */}}
{{- define "cofferdam.hasSingleOwner" -}}
{{- with .Values.driver -}}
{{- $imports := list -}}
{{- if .manifest -}}{{- $imports = default list (get (fromJson .manifest) "grants") -}}{{- end -}}
{{- $grants := default (list "state") .grants -}}
{{- if or .state .pool (and (has "state" $imports) (has "state" $grants)) (has "state" .grants) (has "pool" .grants) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/*
TOML of a map: dict "value" MAP "prefix" TABLE. helm's toToml writes whole numbers as 1.0, which settings reject; the JSON of texts,
numbers, booleans and of lists of them is also TOML.
*/}}
{{- define "cofferdam.toml" -}}
{{- $prefix := .prefix -}}
{{- range $key, $value := .value -}}
{{- if eq (include "cofferdam.isPlain" (dict "value" $value)) "true" -}}
{{- printf "%s = %s\n" (include "cofferdam.tomlKey" $key) (toJson $value) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := .value -}}
{{- $table := include "cofferdam.tomlKey" $key -}}
{{- if $prefix -}}{{- $table = printf "%s.%s" $prefix $table -}}{{- end -}}
{{- if kindIs "map" $value -}}
{{- $content := include "cofferdam.toml" (dict "value" $value "prefix" $table) -}}
{{- /* A table that has only tables needs no header. */ -}}
{{- if and $content (not (hasPrefix "[" $content)) -}}{{- printf "[%s]\n" $table -}}{{- end -}}
{{- $content -}}
{{- else if and (kindIs "slice" $value) (ne (include "cofferdam.isPlain" (dict "value" $value)) "true") -}}
{{- range $value -}}
{{- printf "[[%s]]\n" $table -}}
{{- include "cofferdam.toml" (dict "value" . "prefix" $table) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.isPlain" -}}
{{- if kindIs "slice" .value -}}
{{- $plain := true -}}
{{- range .value -}}{{- if kindIs "map" . -}}{{- $plain = false -}}{{- end -}}{{- end -}}
{{- $plain -}}
{{- else -}}
{{- not (or (kindIs "map" .value) (kindIs "invalid" .value)) -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.tomlKey" -}}
{{- ternary . (toJson .) (regexMatch "^[A-Za-z0-9_-]+$" .) -}}
{{- end -}}

{{/* Seconds of a duration in Go's syntax, rounded up. */}}
{{- define "cofferdam.seconds" -}}
{{- $units := dict "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9.]+(ms|us|µs|ns|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-zµ]+$" . -}}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit . | float64) (get $units $unit)) -}}
{{- end -}}
{{- ceil $seconds | int -}}
{{- end -}}

{{/* Time that a pod has to end: dict "settings" "value" */}}
{{- define "cofferdam.gracePeriod" -}}
{{- if .value -}}
{{- int .value -}}
{{- else -}}
{{- $drain := dig "drain-timeout" "30s" .settings -}}
{{- add 15 (include "cofferdam.seconds" (toString $drain) | int) -}}
{{- end -}}
{{- end -}}

{{/* Field of pods: dict "context" "nodeSelector", a value with precedence over the system and the architecture of the images. */}}
{{- define "cofferdam.nodeSelector" -}}
{{- $platform := dict "kubernetes.io/os" "linux" -}}
{{- with .context.Values.image.architecture -}}{{- $_ := set $platform "kubernetes.io/arch" . -}}{{- end -}}
nodeSelector:
  {{- merge (dict) (default dict .nodeSelector) $platform | toYaml | nindent 2 }}
{{- end -}}

{{- define "cofferdam.startupTaintToleration" -}}
{{- dict "key" (printf "%s/agent-not-ready" .Values.driver.name) "operator" "Exists" | toJson -}}
{{- end -}}

{{/* Variables with the address of the API server, for containers that call it. */}}
{{- define "cofferdam.apiEnv" -}}
{{- if .Values.kubernetes.serviceHost -}}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.kubernetes.serviceHost | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.kubernetes.servicePort | int | quote }}
{{- end -}}
{{- end -}}

{{/* The token of the account, in a volume that only the containers mount that call the API. */}}
{{- define "cofferdam.tokenVolume" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end -}}

{{- define "cofferdam.tokenMount" -}}
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}

{{/* Directory of the driver's sockets on the host. */}}
{{- define "cofferdam.pluginDirectory" -}}
{{- printf "%s/plugins/%s" (trimSuffix "/" .Values.node.kubeletPath) .Values.driver.name -}}
{{- end -}}

{{- define "cofferdam.hasMonitoring" -}}
{{- if or .monitor.forceEnable (.context.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") -}}true{{- end -}}
{{- end -}}
