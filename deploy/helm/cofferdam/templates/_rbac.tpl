{{/*
The objects that `cofferdam render rbac` prints for an account, from files/rbac.json, which the program generates:
dict "context" "account" "namespace" "leaseNamespace" "placement" "roles" "secretNamespaces" (a list) "secrets" (a list of NAMESPACE/NAME)
"component" (of the labels).
*/}}
{{- define "cofferdam.rbac" -}}
{{- $ := . -}}
{{- $table := .context.Files.Get "files/rbac.json" | fromJson -}}
{{- $byRole := get $table .placement -}}
{{- /* The setting needs a right beside those of the placement. */ -}}
{{- $labelsContents := dig "enable-distributed-snapshotting" false .context.Values.controller.settings -}}
{{- $shared := printf "%s:%s" .namespace .account -}}
{{- /* Rules by the namespace of their Role; "" is the ClusterRole. */ -}}
{{- $rules := dict "" list -}}
{{- range $role := .roles -}}
{{- $of := get $byRole $role -}}
{{- if and (eq $role "snapshot-controller") $labelsContents -}}{{- $of = get (get $table "node-labels") $role -}}{{- end -}}
{{- $_ := set $rules "" (concat (get $rules "") $of.cluster) -}}
{{- include "cofferdam.addRules" (dict "rules" $rules "namespace" $.namespace "add" $of.namespace) -}}
{{- include "cofferdam.addRules" (dict "rules" $rules "namespace" $.leaseNamespace "add" $of.leases) -}}
{{- if $.secrets -}}
{{- range $secret := $.secrets -}}
{{- $parts := splitList "/" $secret -}}
{{- range $rule := $of.secrets -}}
{{- $named := merge (dict "resourceNames" (list (index $parts 1))) $rule -}}
{{- include "cofferdam.addRules" (dict "rules" $rules "namespace" (index $parts 0) "add" (list $named)) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range $namespace := $.secretNamespaces -}}
{{- include "cofferdam.addRules" (dict "rules" $rules "namespace" (ternary "" $namespace (eq $namespace "*")) "add" $of.secrets) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $namespace := keys $rules | sortAlpha -}}
{{- $merged := include "cofferdam.mergeRules" (dict "rules" (get $rules $namespace)) | fromJsonArray -}}
{{- if $merged -}}
{{- $kind := ternary "Role" "ClusterRole" (ne $namespace "") -}}
{{- $name := ternary $.account $shared (eq $namespace $.namespace) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "cofferdam.labels" $.context | nindent 4 }}
    app.kubernetes.io/component: {{ $.component }}
rules:
  {{- toYaml $merged | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "cofferdam.labels" $.context | nindent 4 }}
    app.kubernetes.io/component: {{ $.component }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $.account }}
    namespace: {{ $.namespace }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cofferdam.addRules" -}}
{{- $_ := set .rules .namespace (concat (default list (get .rules .namespace)) .add) -}}
{{- end -}}

{{/* One rule, with the union of the verbs, for each group and resource; Secrets of a namespace have one rule with all names. */}}
{{- define "cofferdam.mergeRules" -}}
{{- $merged := dict -}}
{{- range .rules -}}
{{- $secrets := eq (first .resources) "secrets" -}}
{{- $names := default list .resourceNames -}}
{{- $key := printf "%s %s %s" (join "," .apiGroups) (join "," .resources) (ternary "" (join "," $names) $secrets) -}}
{{- $known := default (dict "verbs" list "resourceNames" list) (get $merged $key) -}}
{{- $rule := dict "apiGroups" .apiGroups "resources" .resources -}}
{{- $_ := set $rule "verbs" (concat $known.verbs .verbs | uniq | sortAlpha) -}}
{{- with concat (default list $known.resourceNames) $names | uniq | sortAlpha -}}{{- $_ := set $rule "resourceNames" . -}}{{- end -}}
{{- $_ := set $merged $key $rule -}}
{{- end -}}
{{- $list := list -}}
{{- range $key := keys $merged | sortAlpha -}}
{{- $list = append $list (get $merged $key) -}}
{{- end -}}
{{- toJson $list -}}
{{- end -}}

{{/* The policies that `cofferdam render admission-policy` prints: dict "context" "policy" "namespace" "account" */}}
{{- define "cofferdam.admissionPolicies" -}}
{{- $words := dict "DRIVER" .context.Values.driver.name "NAMESPACE" .namespace "ACCOUNT" .account -}}
{{- $text := get (.context.Files.Get "files/admission-policies.json" | fromJson) .policy | toJson -}}
{{- range $word, $value := $words -}}
{{- $text = replace $word $value $text -}}
{{- end -}}
{{- $labels := include "cofferdam.labels" .context | fromYaml -}}
{{- range $object := fromJsonArray $text }}
---
{{- $_ := set $object.metadata "labels" $labels }}
{{ toYaml $object }}
{{- end }}
{{- end -}}
