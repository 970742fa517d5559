{{/* What holds however the broker is run. */}}
{{- define "broker.configuration" -}}
# Users, rights and queues of the federation, at every start; with definitions to load, RabbitMQ makes no guest. Queues
# wait until all nodes are there, so that each is replicated to all.
load_definitions = /etc/hubbub-broker/definitions.json
cluster_formation.target_cluster_size_hint = {{ .Values.replicas }}
cluster_partition_handling = pause_minority
# A party shows name and password; nothing else lets anybody in.
auth_mechanisms.1 = PLAIN
# As large as a message of ours may be, twice the largest chunk that a manifest allows; 4.x takes no more either.
max_message_size = 16777216
# A party opens a handful.
channel_max = 64
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 2GB
{{- if not .Values.plaintext }}
ssl_options.versions.1 = tlsv1.3
ssl_options.versions.2 = tlsv1.2
{{- if .Values.tls.clientCaSecret }}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
{{- end }}
{{- end }}
{{- end -}}

{{/* What the operator would say by itself. */}}
{{- define "broker.plainConfiguration" -}}
{{ include "broker.configuration" . }}
log.console = true
log.file = false
prometheus.tcp.port = {{ include "broker.metricsPort" . }}
{{- if .Values.plaintext }}
listeners.tcp.default = 5672
{{- else }}
listeners.tcp = none
listeners.ssl.default = 5671
ssl_options.certfile = /run/hubbub-tls/tls.crt
ssl_options.keyfile = /run/hubbub-tls/tls.key
{{- if .Values.tls.clientCaSecret }}
ssl_options.cacertfile = /run/hubbub-client-ca/ca.crt
{{- end }}
{{- end }}
{{- if gt (int .Values.replicas) 1 }}
# By name, and not by asking the Kubernetes API: no node needs an account there.
cluster_formation.peer_discovery_backend = classic_config
{{- range $index := until (int .Values.replicas) }}
cluster_formation.classic_config.nodes.{{ add1 $index }} = rabbit@{{ $.Values.name }}-{{ $index }}.{{ $.Values.name }}-nodes.{{ $.Release.Namespace }}.svc.{{ $.Values.clusterDomain }}
{{- end }}
{{- end }}
{{- end -}}
