{{/* Parts of an origin, as JSON: scheme, host without brackets, port, kind (ipv4, ipv6, name). */}}
{{- define "cofferdam.originParts" -}}
{{- $scheme := splitList "://" . | first -}}
{{- $authority := splitList "://" . | last -}}
{{- $port := regexFind ":[0-9]+$" $authority -}}
{{- $host := trimSuffix $port $authority -}}
{{- $kind := "name" -}}
{{- if hasPrefix "[" $host -}}
{{- $kind = "ipv6" -}}
{{- else if regexMatch "^[0-9]+(\\.[0-9]+){3}$" $host -}}
{{- $kind = "ipv4" -}}
{{- end -}}
{{- $default := ternary "443" "80" (eq $scheme "https") -}}
{{- dict "host" ($host | trimPrefix "[" | trimSuffix "]" | lower) "kind" $kind "port" (default $default (trimPrefix ":" $port) | int) | toJson -}}
{{- end -}}

{{/* Network of an address, or the network itself. */}}
{{- define "cofferdam.network" -}}
{{- if contains "/" . -}}
{{- . -}}
{{- else if contains ":" . -}}
{{- printf "%s/128" . -}}
{{- else -}}
{{- printf "%s/32" . -}}
{{- end -}}
{{- end -}}

{{/* Egress rules for the origins of the driver, as a JSON list. With Cilium, a policy of its own has the names without addresses. */}}
{{- define "cofferdam.originRules" -}}
{{- $rules := list -}}
{{- range .Values.driver.origins -}}
{{- $parts := include "cofferdam.originParts" .origin | fromJson -}}
{{- $ports := list (dict "protocol" "TCP" "port" (int $parts.port)) -}}
{{- $networks := list -}}
{{- if ne $parts.kind "name" -}}
{{- $networks = list $parts.host -}}
{{- else if .addresses -}}
{{- $networks = .addresses -}}
{{- end -}}
{{- if $networks -}}
{{- $to := list -}}
{{- range $networks -}}{{- $to = append $to (dict "ipBlock" (dict "cidr" (include "cofferdam.network" .))) -}}{{- end -}}
{{- $rules = append $rules (dict "to" $to "ports" $ports) -}}
{{- else if not $.Values.networkPolicy.cilium -}}
{{- $rules = append $rules (dict "ports" $ports) -}}
{{- end -}}
{{- end -}}
{{- $rules | uniq | toJson -}}
{{- end -}}

{{/* Whether a process resolves names: true or empty. */}}
{{- define "cofferdam.resolvesNames" -}}
{{- $resolves := false -}}
{{- with .Values.kubernetes.serviceHost -}}
{{- if not (regexMatch "^([0-9]+(\\.[0-9]+){3}|.*:.*)$" .) -}}{{- $resolves = true -}}{{- end -}}
{{- end -}}
{{- range .Values.driver.origins -}}
{{- if eq (include "cofferdam.originParts" .origin | fromJson).kind "name" -}}{{- $resolves = true -}}{{- end -}}
{{- end -}}
{{- if $resolves -}}true{{- end -}}
{{- end -}}

{{/* Egress rules of a pod that calls the API server, as a JSON list. */}}
{{- define "cofferdam.apiRules" -}}
{{- $api := .Values.networkPolicy.apiServer -}}
{{- $ports := list -}}
{{- range concat $api.ports (compact (list .Values.kubernetes.servicePort)) -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- $rule := dict "ports" list -}}
{{- range $ports | uniq -}}
{{- $_ := set $rule "ports" (append $rule.ports (dict "protocol" "TCP" "port" .)) -}}
{{- end -}}
{{- if $api.addresses -}}
{{- $to := list -}}
{{- range $api.addresses -}}{{- $to = append $to (dict "ipBlock" (dict "cidr" (include "cofferdam.network" .))) -}}{{- end -}}
{{- $_ := set $rule "to" $to -}}
{{- end -}}
{{- list $rule | toJson -}}
{{- end -}}

{{/* Egress rule of a pod that resolves names, as a JSON list. */}}
{{- define "cofferdam.dnsRules" -}}
{{- list (dict "ports" (list (dict "protocol" "UDP" "port" 53) (dict "protocol" "TCP" "port" 53))) | toJson -}}
{{- end -}}
