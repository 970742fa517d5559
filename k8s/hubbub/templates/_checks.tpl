{{/* What a schema cannot say, or not in words that tell what to do. */}}

{{- define "hubbub.check" -}}
{{- $parties := (include "hubbub.parties" . | fromJson).parties -}}
{{- if not $parties -}}
{{- fail "there is nothing to install: set coordinator.enabled, or name aggregators or trainers; see values/" -}}
{{- end -}}
{{- include "hubbub.checkBroker" . -}}
{{- $roster := .Values.roster -}}
{{- if not (or $roster.content $roster.existingConfigMap) -}}
{{- fail "the roster is missing: --set-file roster.content=roster.json, or roster.existingConfigMap" -}}
{{- end -}}
{{- $names := list -}}
{{- $secrets := list -}}
{{- range $parties -}}
{{- if not .party.secret -}}
{{- fail (printf "%s.secret is missing: name the Secret with the files of %s" .role .party.name) -}}
{{- end -}}
{{- if has .party.name $names -}}
{{- fail (printf "two parties are called %s; a name stands for one party" .party.name) -}}
{{- end -}}
{{- if has .party.secret $secrets -}}
{{- fail (printf "two parties share the Secret %s; each has one of its own" .party.secret) -}}
{{- end -}}
{{- $names = append $names .party.name -}}
{{- $secrets = append $secrets .party.secret -}}
{{- if and (eq .role "coordinator") (not $roster.sha256) (not .party.settingsFile) -}}
{{- fail (printf "%s pins no roster: set roster.sha256 to the digest that all compared, or settingsFile: true if its Secret has settings.toml with roster_sha256" .party.name) -}}
{{- end -}}
{{- end -}}
{{- include "hubbub.checkCoordinator" . -}}
{{- end -}}

{{- define "hubbub.checkBroker" -}}
{{- range .Values.broker.urls -}}
{{- if and (hasPrefix "amqp://" .) (not $.Values.broker.plaintext) -}}
{{- fail (printf "%s: without TLS passwords cross the network in the clear; write amqps://, or broker.plaintext: true to try things out" .) -}}
{{- end -}}
{{- end -}}
{{- $to := .Values.networkPolicy.broker -}}
{{- if and .Values.networkPolicy.enabled (not (or $to.cidrs $to.namespaceLabels $to.podLabels)) -}}
{{- fail "networkPolicy.broker is missing: say where the broker is (cidrs, or namespaceLabels and podLabels), or no party reaches it" -}}
{{- end -}}
{{- $dns := .Values.networkPolicy.dns -}}
{{- if and .Values.networkPolicy.enabled (not (or $dns.cidrs $dns.namespaceLabels $dns.podLabels)) -}}
{{- fail "networkPolicy.dns is missing: say where names are resolved" -}}
{{- end -}}
{{- end -}}

{{- define "hubbub.checkCoordinator" -}}
{{- $ingress := .Values.coordinator.ingress -}}
{{- if and $ingress.enabled (not .Values.coordinator.enabled) -}}
{{- fail "coordinator.ingress is enabled, and the coordinator is not" -}}
{{- end -}}
{{- if and $ingress.enabled (not (and $ingress.host $ingress.tlsSecret)) -}}
{{- fail "coordinator.ingress needs host and tlsSecret: tokens must not travel in the clear" -}}
{{- end -}}
{{- end -}}
