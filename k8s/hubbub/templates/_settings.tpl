{{/* Environment of a party: (dict "root" $ "role" role "party" party). Nothing here is secret: files in /run/hubbub are. */}}
{{- define "hubbub.environment" -}}
{{- $values := .root.Values -}}
{{- $prefix := printf "HUBBUB_%s" (upper .role) -}}
- {name: {{ $prefix }}_IDENTITY, value: /run/hubbub/identity.json}
- {name: {{ $prefix }}_ROSTER, value: /etc/hubbub/roster.json}
- {name: {{ $prefix }}_AMQP_URL, value: {{ join "," $values.broker.urls | quote }}}
{{- if $values.broker.proxy }}
- {name: {{ $prefix }}_PROXY, value: {{ $values.broker.proxy | quote }}}
{{- end }}
- {name: {{ $prefix }}_FOLDER, value: /var/lib/hubbub}
{{- if $values.newState }}
- {name: {{ $prefix }}_NEW_STATE, value: "true"}
{{- end }}
- {name: {{ $prefix }}_LOG_LEVEL, value: {{ .party.logLevel }}}
{{- if include "hubbub.hasCa" .root }}
- {name: {{ $prefix }}_AMQP_CA_FILE, value: /etc/hubbub/broker-ca.pem}
{{- end }}
{{- if .party.clientCertificate }}
- {name: {{ $prefix }}_AMQP_CERT_FILE, value: /run/hubbub/tls.crt}
- {name: {{ $prefix }}_AMQP_KEY_FILE, value: /run/hubbub/tls.key}
{{- end }}
{{- if .party.settingsFile }}
- {name: {{ $prefix }}_CONFIG_FILE, value: /run/hubbub/settings.toml}
{{- end }}
{{- if eq .role "coordinator" }}
{{- if $values.roster.sha256 }}
- {name: {{ $prefix }}_ROSTER_SHA256, value: {{ $values.roster.sha256 | quote }}}
{{- end }}
- {name: {{ $prefix }}_HOST, value: 0.0.0.0}
- {name: {{ $prefix }}_PORT, value: "8750"}
- {name: {{ $prefix }}_READ_TOKEN_FILE, value: /run/hubbub/read.token}
- {name: {{ $prefix }}_CHANGE_TOKEN_FILE, value: /run/hubbub/change.token}
- {name: {{ $prefix }}_AFTER_VOID, value: {{ .party.afterVoid }}}
{{- else }}
- {name: {{ $prefix }}_POLICY, value: {{ ternary "/etc/hubbub/policy.toml" "/run/hubbub/policy.toml" (eq "yes" (include "hubbub.hasPolicyMap" .)) }}}
- {name: {{ $prefix }}_METRICS_HOST, value: 0.0.0.0}
- {name: {{ $prefix }}_METRICS_PORT, value: "8751"}
{{- end }}
{{- if eq .role "trainer" }}
- {name: {{ $prefix }}_DATA, value: {{ .party.data | quote }}}
- {name: {{ $prefix }}_CACHE_FOLDER, value: /var/cache/hubbub}
{{- if .party.task }}
- {name: {{ $prefix }}_TASK, value: {{ .party.task | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* What is mounted: the party's own secret, what is public, its state, and room to work. */}}
{{- define "hubbub.mounts" -}}
- {name: secret, mountPath: /run/hubbub, readOnly: true}
- {name: public, mountPath: /etc/hubbub, readOnly: true}
- {name: state, mountPath: /var/lib/hubbub}
- {name: tmp, mountPath: /tmp}
{{- if eq .role "trainer" }}
- {name: cache, mountPath: /var/cache/hubbub}
{{- if .party.dataClaim }}
- {name: data, mountPath: /data, readOnly: true}
{{- end }}
{{- if include "hubbub.hasTasks" . }}
- {name: tasks, mountPath: /etc/hubbub-tasks, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "hubbub.volumes" -}}
{{- $name := include "hubbub.partyName" . -}}
- name: secret
  secret:
    secretName: {{ .party.secret }}
    # Root's, and for the group of fsGroup to read: the service refuses what is open to more.
    defaultMode: 0440
- name: public
  projected:
    defaultMode: 0444
    sources:
      - configMap:
          name: {{ include "hubbub.rosterMap" .root }}
          items: [{key: roster.json, path: roster.json}]
      {{- if include "hubbub.hasCa" .root }}
      - configMap:
          name: {{ include "hubbub.caMap" .root }}
          items: [{key: broker-ca.pem, path: broker-ca.pem}]
      {{- end }}
      {{- if include "hubbub.hasPolicyMap" . }}
      - configMap:
          name: {{ .party.policy.existingConfigMap | default (printf "%s-policy" $name) }}
          items: [{key: policy.toml, path: policy.toml}]
      {{- end }}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
{{- if eq .role "trainer" }}
- name: cache
  emptyDir: {sizeLimit: {{ .party.cacheSize }}}
{{- if .party.dataClaim }}
- name: data
  # Read-only for the kubelet too: otherwise it would change the group of every file.
  persistentVolumeClaim: {claimName: {{ .party.dataClaim }}, readOnly: true}
{{- end }}
{{- if include "hubbub.hasTasks" . }}
- name: tasks
  configMap:
    name: {{ .party.tasks.existingConfigMap | default (printf "%s-tasks" $name) }}
    defaultMode: 0444
{{- end }}
{{- end }}
{{- end -}}
