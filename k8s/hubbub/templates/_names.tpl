{{/* Names and labels. */}}

{{- define "hubbub.name" -}}
{{- $name := ternary .Release.Name (printf "%s-hubbub" .Release.Name) (contains "hubbub" .Release.Name) -}}
{{- if gt (len $name) 30 -}}
{{- fail (printf "the release's name %s is too long: 23 characters at most" .Release.Name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Of one party: (dict "root" $ "party" party). Never cut: two parties would be given one name. */}}
{{- define "hubbub.partyName" -}}
{{- $name := printf "%s-%s" (include "hubbub.name" .root) .party.name -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "%s is too long a name for a StatefulSet: choose a shorter name for the release" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* What all pods of this release have, and no others. */}}
{{- define "hubbub.selector" -}}
app.kubernetes.io/name: hubbub
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hubbub.labels" -}}
{{ include "hubbub.selector" . }}
app.kubernetes.io/part-of: hubbub
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Of one party: (dict "root" $ "role" role "party" party). */}}
{{- define "hubbub.partySelector" -}}
{{ include "hubbub.selector" .root }}
app.kubernetes.io/component: {{ .role }}
hubbub-party: {{ .party.name }}
{{- end -}}

{{- define "hubbub.partyLabels" -}}
{{ include "hubbub.labels" .root }}
app.kubernetes.io/component: {{ .role }}
hubbub-party: {{ .party.name }}
{{- end -}}

{{- define "hubbub.image" -}}
{{- if .party.image -}}
{{- .party.image -}}
{{- else -}}
{{- $image := .root.Values.image -}}
{{- if $image.registry }}{{ trimSuffix "/" $image.registry }}/{{ end -}}
hubbub-{{ .role }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "hubbub.rosterMap" -}}
{{- .Values.roster.existingConfigMap | default (printf "%s-roster" (include "hubbub.name" .)) -}}
{{- end -}}

{{- define "hubbub.hasCa" -}}
{{- if or .Values.broker.ca .Values.broker.existingCaConfigMap }}yes{{ end -}}
{{- end -}}

{{- define "hubbub.caMap" -}}
{{- .Values.broker.existingCaConfigMap | default (printf "%s-broker-ca" (include "hubbub.name" .)) -}}
{{- end -}}

{{/* Whether the policy of a trainer or an aggregator comes in a ConfigMap, and not in its Secret. */}}
{{- define "hubbub.hasPolicyMap" -}}
{{- if and (ne .role "coordinator") (or .party.policy.content .party.policy.existingConfigMap) }}yes{{ end -}}
{{- end -}}

{{- define "hubbub.hasTasks" -}}
{{- if and (eq .role "trainer") (or .party.tasks.files .party.tasks.existingConfigMap) }}yes{{ end -}}
{{- end -}}

{{/* Every party of the release as JSON: [{role, party}], each with its defaults. */}}
{{- define "hubbub.parties" -}}
{{- $found := list -}}
{{- if .Values.coordinator.enabled -}}
{{- $found = append $found (dict "role" "coordinator" "party" .Values.coordinator) -}}
{{- end -}}
{{- range .Values.aggregators -}}
{{- $found = append $found (dict "role" "aggregator" "party" (mergeOverwrite (deepCopy $.Values.aggregatorDefaults) .)) -}}
{{- end -}}
{{- range .Values.trainers -}}
{{- $found = append $found (dict "role" "trainer" "party" (mergeOverwrite (deepCopy $.Values.trainerDefaults) .)) -}}
{{- end -}}
{{- toJson (dict "parties" $found) -}}
{{- end -}}
