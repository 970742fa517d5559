{{/* Names and labels. The operator gives its pods labels of its own. */}}

{{- define "broker.labels" -}}
app.kubernetes.io/name: {{ .Values.name }}
app.kubernetes.io/part-of: hubbub
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "hubbub-broker-%s" .Chart.Version }}
{{- end -}}

{{- define "broker.selector" -}}
app.kubernetes.io/name: {{ .Values.name }}
app.kubernetes.io/component: rabbitmq
{{- end -}}

{{- define "broker.peers" -}}
{{- range .cidrs }}
- ipBlock: {cidr: {{ . | quote }}}
{{- end }}
{{- if or .namespaceLabels .podLabels }}
- podSelector: {matchLabels: {{ toJson .podLabels }}}
  {{- if .namespaceLabels }}
  namespaceSelector: {matchLabels: {{ toJson .namespaceLabels }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "broker.isPlace" -}}
{{- if or .cidrs .namespaceLabels .podLabels }}yes{{ end -}}
{{- end -}}

{{- define "broker.amqpPort" -}}
{{- ternary 5672 5671 .Values.plaintext -}}
{{- end -}}

{{/* The operator turns to TLS for metrics as well where it does for clients. */}}
{{- define "broker.metricsPort" -}}
{{- ternary 15691 15692 (and (eq .Values.mode "operator") (not .Values.plaintext)) -}}
{{- end -}}

{{- define "broker.check" -}}
{{- $values := .Values -}}
{{- if not $values.definitionsSecret -}}
{{- fail "definitionsSecret is missing: name the Secret with definitions.json, which `hubbub roster broker-config` writes" -}}
{{- end -}}
{{- if and $values.plaintext $values.tls.secret -}}
{{- fail "plaintext and tls.secret exclude each other" -}}
{{- end -}}
{{- if not (or $values.plaintext $values.tls.secret) -}}
{{- fail "tls.secret is missing: name the Secret with the broker's certificate, or set plaintext: true to try things out" -}}
{{- end -}}
{{- if and (eq $values.mode "statefulset") (gt (int $values.replicas) 1) (not $values.cookieSecret) -}}
{{- fail "cookieSecret is missing: name the Secret with erlang.cookie, which the nodes know each other by" -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (not (include "broker.isPlace" $values.networkPolicy.clients)) -}}
{{- fail "networkPolicy.clients is missing: say where the parties are (cidrs, or namespaceLabels and podLabels)" -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (not (include "broker.isPlace" $values.networkPolicy.dns)) -}}
{{- fail "networkPolicy.dns is missing: say where names are resolved" -}}
{{- end -}}
{{- if and (eq $values.mode "operator") $values.networkPolicy.enabled (not (include "broker.isPlace" $values.networkPolicy.kubernetesApi)) -}}
{{- fail "networkPolicy.kubernetesApi is missing: under the operator, nodes find each other through it" -}}
{{- end -}}
{{- end -}}
