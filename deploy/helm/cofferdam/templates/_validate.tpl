{{/* Fails with the name of a value, what it is, and what was expected. values.schema.json rejects unknown names and wrong types. */}}
{{- define "cofferdam.validate" -}}
{{- include "cofferdam.requireKinds" . -}}
{{- include "cofferdam.normalize" . -}}
{{- $driver := .Values.driver -}}
{{- $controller := .Values.controller -}}
{{- $node := .Values.node -}}

{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty: expected the image of Cofferdam, such as registry.example.com/cofferdam" -}}
{{- end -}}
{{- range $path, $image := dict "image" .Values.image "node.image" $node.image -}}
{{- if and $image.digest (not (regexMatch "^sha256:[0-9a-f]{64}$" $image.digest)) -}}
{{- fail (printf "%s.digest is %q: expected sha256: and 64 hexadecimal digits" $path $image.digest) -}}
{{- end -}}
{{- if regexMatch "[:@]" (splitList "/" $image.repository | last) -}}
{{- fail (printf "%s.repository is %q: expected no tag and no digest, which %s.tag and %s.digest set" $path $image.repository $path $path) -}}
{{- end -}}
{{- end -}}

{{- if not $driver.name -}}
{{- fail "driver.name is empty: expected the name of the CSI driver, such as array.example.com" -}}
{{- end -}}
{{- if or (gt (len $driver.name) 63) (not (regexMatch "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$" $driver.name)) -}}
{{- fail (printf "driver.name is %q: expected at most 63 lower-case letters, digits, dashes and dots, with a letter or digit at both ends" $driver.name) -}}
{{- end -}}

{{- $component := eq (include "cofferdam.hasComponent" .) "true" -}}
{{- $csi := eq (include "cofferdam.hasCsi" .) "true" -}}
{{- if and $component $csi -}}
{{- fail "driver.component and driver.csi are both set: expected one of the two" -}}
{{- end -}}
{{- if not (or $component $csi) -}}
{{- fail "driver.component and driver.csi are both empty: expected a component, or the containers of a CSI driver" -}}
{{- end -}}
{{- include "cofferdam.validateNames" . -}}
{{- if and $csi (or $node.image.repository $node.image.tag $node.image.digest) -}}
{{- fail "node.image is set for a CSI driver: expected it for a component only, because the image `image` registers the driver" -}}
{{- end -}}
{{- if and $component $node.enabled (ne (empty .Values.image.digest) (empty $node.image.digest)) -}}
{{- fail "image.digest and node.image.digest: expected both or none, because the nodes have an image of their own" -}}
{{- end -}}
{{- if not (or $controller.enabled $node.enabled) -}}
{{- fail "controller.enabled and node.enabled are both false: expected one of the two" -}}
{{- end -}}
{{- $nodeLocal := false -}}
{{- if $component -}}
{{- include "cofferdam.validateComponent" . -}}
{{- $nodeLocal = eq (get (fromJson $driver.manifest) "placement") "node" -}}
{{- else -}}
{{- include "cofferdam.validateCsi" . -}}
{{- $nodeLocal = $driver.csi.nodeDeployment -}}
{{- end -}}
{{- include "cofferdam.validateRoles" (dict "context" . "nodeLocal" $nodeLocal) -}}
{{- include "cofferdam.validateSettings" . -}}
{{- include "cofferdam.validateSecrets" (dict "context" . "nodeLocal" $nodeLocal) -}}
{{- include "cofferdam.validatePods" (dict "context" . "nodeLocal" $nodeLocal) -}}

{{- $kubernetes := .Values.kubernetes -}}
{{- if ne (empty $kubernetes.serviceHost) (empty $kubernetes.servicePort) -}}
{{- fail "kubernetes.serviceHost and kubernetes.servicePort belong together: expected both or none" -}}
{{- end -}}
{{- $namespace := include "cofferdam.nodeNamespace" . -}}
{{- if or (gt (len $namespace) 63) (not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" $namespace)) -}}
{{- fail (printf "node.namespace is %q: expected at most 63 lower-case letters, digits and dashes, with a letter or digit at both ends" $namespace) -}}
{{- end -}}
{{- if eq $namespace .Release.Namespace -}}
{{- fail (printf "node.namespace is %q, the namespace of the release: expected another one, because its pods are privileged" $namespace) -}}
{{- end -}}
{{- range $index, $origin := $driver.origins -}}
{{- if not (regexMatch "^https?://([a-zA-Z0-9.-]+|\\[[0-9a-fA-F:.]+\\])(:[0-9]{1,5})?$" $origin.origin) -}}
{{- fail (printf "driver.origins[%d].origin is %q: expected scheme, host and port, such as https://array.example.com:8443" $index $origin.origin) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.networkPolicy.cilium (not .Values.networkPolicy.enabled) -}}
{{- fail "networkPolicy.cilium is true and networkPolicy.enabled is false: expected both to be true" -}}
{{- end -}}
{{- end -}}

{{/* Fails for maps and lists with defaults that the values remove by null. */}}
{{- define "cofferdam.requireKinds" -}}
{{- $kinds := dict
  "map" "image kubernetes driver driver.component driver.csi controller controller.ports controller.podDisruptionBudget controller.serviceAccount controller.serviceMonitor node node.image node.preStop node.ports node.serviceAccount node.serviceMonitor networkPolicy networkPolicy.apiServer uninstallCheck"
  "slice" "controller.roles driver.origins networkPolicy.apiServer.addresses networkPolicy.apiServer.ports networkPolicy.metricsFrom networkPolicy.controllerEgress networkPolicy.nodeEgress" -}}
{{- range $kind, $paths := $kinds -}}
{{- range $path := splitList " " $paths -}}
{{- $value := $.Values -}}
{{- range $key := splitList "." $path -}}
{{- if kindIs "map" $value -}}{{- $value = get $value $key -}}{{- end -}}
{{- end -}}
{{- if not (kindIs $kind $value) -}}
{{- fail (printf "%s is null: expected a %s, or no value" $path (ternary "map" "list" (eq $kind "map"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for labels that the chart sets, and for names that are none of Kubernetes. */}}
{{- define "cofferdam.validateNames" -}}
{{- $fullname := include "cofferdam.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fullname) -}}
{{- fail (printf "the objects would have the name %q, from fullnameOverride, or nameOverride and the release: expected lower-case letters, digits and dashes, a letter first" $fullname) -}}
{{- end -}}
{{- $labels := dict "customLabels" .Values.customLabels "controller.podLabels" .Values.controller.podLabels "node.podLabels" .Values.node.podLabels -}}
{{- range $path, $map := $labels -}}
{{- range $key, $_ := $map -}}
{{- if or (has $key (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component")) (and (eq $path "customLabels") (has $key (list "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart"))) -}}
{{- fail (printf "%s has the label %s: expected none of those that the chart sets" $path $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $path, $classes := dict "storageClasses" .Values.storageClasses "volumeAttributesClasses" .Values.volumeAttributesClasses "volumeSnapshotClasses" .Values.volumeSnapshotClasses -}}
{{- $names := dict -}}
{{- range $classes -}}
{{- if hasKey $names .name -}}{{- fail (printf "%s has the name %q twice: expected one class of a name" $path .name) -}}{{- end -}}
{{- $_ := set $names .name true -}}
{{- end -}}
{{- end -}}
{{- $createsDriver := dig "create" true .Values.driver.csiDriver -}}
{{- $fields := keys (omit .Values.driver.csiDriver "create") | sortAlpha -}}
{{- if and $fields (not $createsDriver) -}}
{{- fail (printf "driver.csiDriver.create is false and driver.csiDriver.%s is set: expected no field of a CSIDriver that the chart does not create" (first $fields)) -}}
{{- end -}}
{{- $existing := dict -}}
{{- if $createsDriver -}}{{- $existing = lookup "storage.k8s.io/v1" "CSIDriver" "" .Values.driver.name -}}{{- end -}}
{{- $annotations := dig "metadata" "annotations" dict ($existing | default dict) -}}
{{- $owner := dig "meta.helm.sh/release-name" "" $annotations -}}
{{- $namespace := dig "meta.helm.sh/release-namespace" "" $annotations -}}
{{- if and $owner (or (ne $owner .Release.Name) (ne $namespace .Release.Namespace)) -}}
{{- fail (printf "driver.name is %q: expected a driver that no other release has; the release %s in the namespace %s has this one (driver.csiDriver.create: false leaves the CSIDriver there; --take-ownership takes it over after its annotations meta.helm.sh/release-name and meta.helm.sh/release-namespace are removed)" .Values.driver.name $owner $namespace) -}}
{{- end -}}
{{- end -}}

{{/* Replaces maps that the values remove by null with empty ones. */}}
{{- define "cofferdam.normalize" -}}
{{- $values := .Values -}}
{{- $maps := list
  (list $values.driver "settings" "secrets" "limits" "state" "pool" "csiDriver")
  (list $values.driver.component "configMap" "volume")
  (list $values.driver.csi "controller" "node")
  (list $values.controller "settings" "updateStrategy" "affinity")
  (list $values.node "settings" "updateStrategy" "provisionerSecurityContext") -}}
{{- range $maps -}}
{{- $parent := first . -}}
{{- range rest . -}}
{{- if not (kindIs "map" (get $parent .)) -}}{{- $_ := set $parent . dict -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.validateComponent" -}}
{{- $driver := .Values.driver -}}
{{- $component := $driver.component -}}
{{- if and $component.configMap.name $component.volume -}}
{{- fail "driver.component.configMap and driver.component.volume are both set: expected one of the two" -}}
{{- end -}}
{{- if $component.configMap.name -}}
{{- if not $component.configMap.key -}}
{{- fail "driver.component.configMap.key is empty: expected the key of the component in the ConfigMap" -}}
{{- end -}}
{{- if $component.path -}}
{{- fail "driver.component.path and driver.component.configMap are both set: expected one of the two" -}}
{{- end -}}
{{- else if not $component.path -}}
{{- fail "driver.component.path is empty: expected the path of the component in driver.component.volume" -}}
{{- else if and (not $component.volume) (not (hasPrefix "/" $component.path)) -}}
{{- fail (printf "driver.component.path is %q: expected an absolute path in the image" $component.path) -}}
{{- end -}}
{{- if has "name" (keys $component.volume) -}}
{{- fail "driver.component.volume.name is set: expected a volume source without a name" -}}
{{- end -}}
{{- if not $driver.manifest -}}
{{- fail "driver.manifest is empty: expected the output of `cofferdam backend inspect FILE --output manifest`, by --set-file driver.manifest=FILE" -}}
{{- end -}}
{{- $manifest := fromJson $driver.manifest -}}
{{- if hasKey $manifest "Error" -}}
{{- fail (printf "driver.manifest is not JSON (%s): expected the output of `cofferdam backend inspect FILE --output manifest`" $manifest.Error) -}}
{{- end -}}
{{- if ne (int (default 0 $manifest.manifestVersion)) 1 -}}
{{- fail (printf "driver.manifest has the manifestVersion %v: expected 1" $manifest.manifestVersion) -}}
{{- end -}}
{{- if ne (toString $manifest.driver) $driver.name -}}
{{- fail (printf "driver.manifest is that of the driver %q: expected %q, the value of driver.name" (toString $manifest.driver) $driver.name) -}}
{{- end -}}
{{- if not (has $manifest.placement (list "central" "node")) -}}
{{- fail (printf "driver.manifest has the placement %v: expected central or node" $manifest.placement) -}}
{{- end -}}
{{- $digest := default "" $manifest.digest | trimPrefix "sha256:" -}}
{{- if not (regexMatch "^[0-9a-f]{64}$" $digest) -}}
{{- fail (printf "driver.manifest has the digest %v: expected sha256: and 64 hexadecimal digits" $manifest.digest) -}}
{{- end -}}
{{- if and $component.sha256 (ne (lower $component.sha256) $digest) -}}
{{- fail (printf "driver.component.sha256 is %q: expected %q, the digest in driver.manifest" $component.sha256 $digest) -}}
{{- end -}}
{{- $attach := has "publishing" $manifest.abilities -}}
{{- if and (hasKey $driver.csiDriver "attachRequired") (ne $driver.csiDriver.attachRequired $attach) -}}
{{- fail (printf "driver.csiDriver.attachRequired is %t: expected %t, because the abilities in driver.manifest decide" $driver.csiDriver.attachRequired $attach) -}}
{{- end -}}
{{- if and .Values.node.enabled (hasKey .Values.node.settings "node") -}}
{{- $policy := .Values.node.settings.node -}}
{{- range $kind, $setting := dict "directory" "directory-root" "image" "image-root" "local-device" "stable-ids" "nfs" "nfs" "nvme-tcp" "nvme-tcp" "rbd" "rbd" "tmpfs" "tmpfs-max-bytes" -}}
{{- if and (has $kind (default list (get $policy "connection-kinds"))) (not (get $policy $setting)) -}}
{{- fail (printf "node.settings.node.connection-kinds has %s: expected node.settings.node.%s to be set" $kind $setting) -}}
{{- end -}}
{{- if and (get $policy $setting) (not (has $kind (default list (get $policy "connection-kinds")))) -}}
{{- fail (printf "node.settings.node.%s is set: expected %s in node.settings.node.connection-kinds" $setting $kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $kind, $object := dict "nfs" "NFS mounts" "nvme-tcp" "NVMe/TCP connections" "rbd" "RBD images" -}}
{{- if and $.Values.node.enabled (has $kind (dig "node" "connection-kinds" list $.Values.node.settings)) (not $.Values.node.hostNetwork) -}}
{{- fail (printf "node.hostNetwork is false: expected true, because %s use the network of the pod that made them, and outlive it" $object) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.node.enabled (not (hasKey .Values.node.settings "node")) -}}
{{- fail "node.settings.node is missing: expected the policy of the nodes, such as {connection-kinds: [directory], directory-root: /srv/volumes}" -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.validateCsi" -}}
{{- $driver := .Values.driver -}}
{{- range $key := list "manifest" "settings" "grants" "limits" "origins" "state" "pool" "classSecrets" -}}
{{- if get $driver $key -}}
{{- fail (printf "driver.%s is set for a CSI driver: expected it for a component only" $key) -}}
{{- end -}}
{{- end -}}
{{- if $driver.component.sha256 -}}
{{- fail "driver.component.sha256 is set for a CSI driver: expected it for a component only" -}}
{{- end -}}
{{- $needsController := and .Values.controller.enabled (not $driver.csi.nodeDeployment) -}}
{{- if and $needsController (not (get $driver.csi.controller "image")) -}}
{{- fail "driver.csi.controller.image is empty: expected the image of the driver's controller service, or controller.enabled: false" -}}
{{- end -}}
{{- if and $driver.csi.nodeDeployment $driver.csi.controller -}}
{{- fail "driver.csi.controller is set with driver.csi.nodeDeployment: expected driver.csi.node only, whose container has both services" -}}
{{- end -}}
{{- if and .Values.node.enabled (not (get $driver.csi.node "image")) -}}
{{- fail "driver.csi.node.image is empty: expected the image of the driver's node service, or node.enabled: false" -}}
{{- end -}}
{{- if .Values.node.preStop.enabled -}}
{{- fail "node.preStop.enabled is true for a CSI driver: expected it for a component only, because the driver's node service knows its mounts" -}}
{{- end -}}
{{- if .Values.networkPolicy.cilium -}}
{{- fail "networkPolicy.cilium is true for a CSI driver: expected it for a component only, whose origins are known" -}}
{{- end -}}
{{- if hasKey .Values.node.settings "node" -}}
{{- fail "node.settings.node is set for a CSI driver: expected it for a component only, because the driver's node service mounts volumes" -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.validateRoles" -}}
{{- $controller := .context.Values.controller -}}
{{- $known := list "provisioner" "attacher" "resizer" "snapshotter" "snapshot-controller" "pv-controller" "protection" "attach-detach" "startup-taint" -}}
{{- range $controller.roles -}}
{{- if not (has . $known) -}}
{{- fail (printf "controller.roles has %q: expected names of %s" . (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if and $controller.enabled (not $controller.roles) -}}
{{- fail (printf "controller.roles is empty: expected names of %s, or controller.enabled: false" (join ", " $known)) -}}
{{- end -}}
{{- if and .nodeLocal $controller.enabled (has "startup-taint" $controller.roles) -}}
{{- fail "controller.roles has \"startup-taint\" for a driver on nodes: expected it to be absent, because no process of the driver may change other nodes" -}}
{{- end -}}
{{- $local := false -}}
{{- if $controller.enabled -}}
{{- range $controller.roles -}}{{- if has . (list "provisioner" "resizer" "snapshotter") -}}{{- $local = true -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if and .nodeLocal $local (not .context.Values.node.enabled) -}}
{{- fail "node.enabled is false for a driver on nodes: expected true, because its provisioner, resizer and snapshotter run there" -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.validateSettings" -}}
{{- $owned := dict
  "role" "controller.roles" "backend" "driver" "csi-address" "driver.csi" "csi-socket" "" "socket-mode" "" "socket-group" ""
  "kubeconfig" "" "master" "kubernetes.serviceHost" "context" "" "namespace" "" "secret-namespaces" "controller.secretNamespaces"
  "http-endpoint" "controller.ports.health or node.ports.health" "metrics-address" "controller.ports.metrics or node.ports.metrics"
  "health-port" "node.ports.health" "node-deployment" "driver.csi.nodeDeployment" "single-process" "" "manifest" "driver.manifest"
  "csi-endpoint" "" "node-name" "" "node-records" "" "kubelet-root" "node.kubeletPath" "kubelet-registration-path" "node.kubeletPath"
  "plugin-registration-path" "node.kubeletPath" "compilation-cache" "" -}}
{{- range $part, $settings := dict "controller" .Values.controller.settings "node" .Values.node.settings -}}
{{- range $key, $_ := $settings -}}
{{- if hasKey $owned $key -}}
{{- $other := get $owned $key -}}
{{- $expected := ternary (printf "expected %s" $other) "expected it to be absent" (ne $other "") -}}
{{- fail (printf "%s.settings.%s is set, and the chart sets it: %s" $part $key $expected) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.controller.settings "node" -}}
{{- fail "controller.settings.node is set: expected the policy of the nodes in node.settings.node" -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.validateSecrets" -}}
{{- $values := .context.Values -}}
{{- $controller := $values.controller -}}
{{- range $controller.secrets -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$" .) -}}
{{- fail (printf "controller.secrets has %q: expected NAMESPACE/NAME of a Secret" .) -}}
{{- end -}}
{{- end -}}
{{- $listed := kindIs "slice" $controller.secretNamespaces -}}
{{- if and $listed $controller.secrets -}}
{{- fail "controller.secretNamespaces and controller.secrets are both set: expected one of the two" -}}
{{- end -}}
{{- if and $listed .nodeLocal $controller.secretNamespaces -}}
{{- fail (printf "controller.secretNamespaces is [%s] for a driver on nodes: expected controller.secrets, because the account of a node may read single Secrets only" (join ", " $controller.secretNamespaces)) -}}
{{- end -}}
{{- if $listed -}}
{{- range $controller.secretNamespaces -}}
{{- if not (or (eq . "*") (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" .)) -}}
{{- fail (printf "controller.secretNamespaces has %q: expected names of namespaces, or \"*\" alone" .) -}}
{{- end -}}
{{- end -}}
{{- if and (has "*" $controller.secretNamespaces) (gt (len $controller.secretNamespaces) 1) -}}
{{- fail (printf "controller.secretNamespaces is [%s]: expected names of namespaces, or \"*\" alone" (join ", " $controller.secretNamespaces)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $secret := $values.driver.secrets -}}
{{- if not (regexMatch "^[A-Za-z0-9_][A-Za-z0-9_.-]*$" $name) -}}
{{- fail (printf "driver.secrets has the name %q: expected letters, digits, dashes, underscores and dots, with a letter, digit or underscore first" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.validatePods" -}}
{{- $values := .context.Values -}}
{{- $controller := $values.controller -}}
{{- $node := $values.node -}}
{{- $driver := $values.driver -}}
{{- $singleOwner := eq (include "cofferdam.hasSingleOwner" .context) "true" -}}
{{- if and $singleOwner (not .nodeLocal) -}}
{{- if gt (int (default 1 $controller.replicaCount)) 1 -}}
{{- fail (printf "controller.replicaCount is %v for a driver with state or pool: expected 1, because its data has one owner" $controller.replicaCount) -}}
{{- end -}}
{{- range $name, $path := dict "driver.state.file" (default "" (get $driver.state "file")) "driver.pool.directory" (default "" (get $driver.pool "directory")) -}}
{{- if $path -}}
{{- $covered := false -}}
{{- range $controller.volumeMounts -}}
{{- $mount := trimSuffix "/" .mountPath -}}
{{- if or (eq $path $mount) (hasPrefix (printf "%s/" $mount) $path) -}}{{- $covered = true -}}{{- end -}}
{{- end -}}
{{- if not $covered -}}
{{- fail (printf "%s is %q: expected a volume in controller.volumes, and its mount at a directory above the path in controller.volumeMounts, because the root filesystem is read-only" $name $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $controller.updateStrategy (ne (toString (get $controller.updateStrategy "type")) "Recreate") -}}
{{- fail (printf "controller.updateStrategy.type is %v for a driver with state or pool: expected Recreate, because its data has one owner" (get $controller.updateStrategy "type")) -}}
{{- end -}}
{{- end -}}
{{- if and (kindIs "bool" (get $controller.settings "leader-election")) (not (get $controller.settings "leader-election")) (not .nodeLocal) (gt (int (default (ternary 1 2 $singleOwner) $controller.replicaCount)) 1) -}}
{{- fail "controller.settings.leader-election is false with several replicas: expected controller.replicaCount: 1 and controller.updateStrategy: {type: Recreate}" -}}
{{- end -}}
{{- if and (kindIs "bool" (get $controller.settings "leader-election")) (not (get $controller.settings "leader-election")) (eq (int $controller.replicaCount) 1) (not $singleOwner) (not .nodeLocal) (ne (toString (get $controller.updateStrategy "type")) "Recreate") -}}
{{- fail "controller.settings.leader-election is false and controller.updateStrategy is not Recreate: expected {type: Recreate}, because two processes would run during an update" -}}
{{- end -}}
{{- if and .nodeLocal (kindIs "bool" (get $controller.settings "leader-election")) (not (get $controller.settings "leader-election")) -}}
{{- range $controller.roles -}}
{{- if has . (list "pv-controller" "protection" "attach-detach") -}}
{{- fail (printf "controller.settings.leader-election is false with the role %s, which runs in two replicas: expected it to be absent" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .nodeLocal (get $controller.settings "leader-election") -}}
{{- fail "controller.settings.leader-election is true for a driver on nodes: expected it to be absent, because only one node would provision" -}}
{{- end -}}
{{- range $part, $settings := dict "controller" $controller "node" $node -}}
{{- $seconds := $settings.terminationGracePeriodSeconds -}}
{{- $drain := dig "drain-timeout" "30s" $settings.settings | toString -}}
{{- if and $seconds (le (int $seconds) (include "cofferdam.seconds" $drain | int)) -}}
{{- fail (printf "%s.terminationGracePeriodSeconds is %v: expected more than the setting drain-timeout, %s" $part $seconds $drain) -}}
{{- end -}}
{{- if and (eq $part "node") $seconds $node.preStop.enabled (le (int $seconds) (int $node.preStop.timeoutSeconds)) -}}
{{- fail (printf "node.terminationGracePeriodSeconds is %v: expected more than node.preStop.timeoutSeconds, %v" $seconds $node.preStop.timeoutSeconds) -}}
{{- end -}}
{{- if eq (int $settings.ports.health) (int $settings.ports.metrics) -}}
{{- fail (printf "%s.ports.health and %s.ports.metrics are both %v: expected two ports" $part $part $settings.ports.health) -}}
{{- end -}}
{{- end -}}
{{- if and $driver.csi.controller (not .nodeLocal) -}}
{{- $ports := $controller.ports -}}
{{- if has (int $ports.liveness) (list (int $ports.health) (int $ports.metrics)) -}}
{{- fail (printf "controller.ports.liveness is %v, as is another port of controller.ports: expected three ports" $ports.liveness) -}}
{{- end -}}
{{- end -}}
{{- if .nodeLocal -}}
{{- range $port := list $controller.ports.health $controller.ports.metrics -}}
{{- if has (int $port) (list (int $node.ports.health) (int $node.ports.metrics)) -}}
{{- fail (printf "controller.ports and node.ports have both %v: expected four ports, because the provisioner runs in the pods of the nodes" $port) -}}
{{- end -}}
{{- end -}}
{{- with get $driver.state "file" -}}
{{- if eq (dir .) "/" -}}
{{- fail (printf "driver.state.file is %q: expected a file in a directory other than /, which becomes a volume of the pods" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (dig "rollingUpdate" "maxSurge" 0 $node.updateStrategy | toString | trimSuffix "%" | int) 0 -}}
{{- fail (printf "node.updateStrategy.rollingUpdate.maxSurge is %v: expected 0, because two pods of a node would serve one socket" $node.updateStrategy.rollingUpdate.maxSurge) -}}
{{- end -}}
{{- if and $node.tolerateAllTaints $node.tolerations -}}
{{- fail "node.tolerations is set and node.tolerateAllTaints is true: expected node.tolerateAllTaints: false, or no tolerations" -}}
{{- end -}}
{{- if and $node.preStop.enabled (not $node.enabled) -}}
{{- fail "node.preStop.enabled is true and node.enabled is false: expected both to be true" -}}
{{- end -}}
{{- if not (regexMatch "^/[^/]+(/[^/]+)*/?$" $node.kubeletPath) -}}
{{- fail (printf "node.kubeletPath is %q: expected an absolute path other than /" $node.kubeletPath) -}}
{{- end -}}
{{- end -}}
