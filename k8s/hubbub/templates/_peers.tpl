{{/* Places of a network policy from {cidrs, namespaceLabels, podLabels}. The caller sees to it that there are any: an
empty list would be everybody. */}}
{{- define "hubbub.peers" -}}
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

{{- define "hubbub.isPlace" -}}
{{- if or .cidrs .namespaceLabels .podLabels }}yes{{ end -}}
{{- end -}}

{{/* The ports in the broker's URLs, each once; with a proxy on the way, the proxy's. */}}
{{- define "hubbub.brokerPorts" -}}
{{- $ports := list -}}
{{- $urls := .Values.broker.urls -}}
{{- if .Values.broker.proxy -}}
{{- $urls = list .Values.broker.proxy -}}
{{- end -}}
{{- range $urls -}}
{{- $found := regexFind ":[0-9]+$" (urlParse .).host | trimPrefix ":" -}}
{{- $ports = append $ports ($found | default (ternary "5671" "5672" (hasPrefix "amqps://" .))) -}}
{{- end -}}
{{- range uniq $ports }}
- {protocol: TCP, port: {{ . }}}
{{- end }}
{{- end -}}
