{{/* A party: (dict "root" $ "role" role "party" party). One pod and one volume: it has one active instance. */}}
{{- define "hubbub.statefulSet" -}}
{{- $values := .root.Values -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "hubbub.partyName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "hubbub.partyLabels" . | nindent 4 }}
spec:
  replicas: 1
  serviceName: {{ include "hubbub.name" .root }}-parties
  # In order would mean: a pod that never gets ready is never replaced by one that would.
  podManagementPolicy: Parallel
  # The journal and the keys of running runs are in it, and the ids that must never be joined again.
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  selector:
    matchLabels: {{- include "hubbub.partySelector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "hubbub.partyLabels" . | nindent 8 }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ .role }}
        # A service reads roster and CA when it starts; a policy it reads anew for every run.
        checksum/public: {{ printf "%s|%s" $values.roster.content $values.broker.ca | sha256sum }}
    spec: {{- include "hubbub.podSpec" . | nindent 6 }}
  volumeClaimTemplates:
    - metadata:
        name: state
        labels: {{- include "hubbub.partySelector" . | nindent 10 }}
      spec:
        accessModes: [{{ .party.storage.accessMode }}]
        {{- with .party.storage.className }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests: {storage: {{ .party.storage.size }}}
{{- end -}}

{{- define "hubbub.podSpec" -}}
{{- $values := .root.Values -}}
serviceAccountName: {{ include "hubbub.name" .root }}
automountServiceAccountToken: false
# Kubernetes would set HUBBUB_COORDINATOR_PORT and the like for a Service of that name, and a service refuses to start
# with a variable that is no setting of its own.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add $values.phaseSeconds 60 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .party.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .party.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .party.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .party.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .party.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .role }}
    image: {{ include "hubbub.image" . }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    env: {{- include "hubbub.environment" . | nindent 6 }}
    {{- $port := ternary "http" "metrics" (eq .role "coordinator") }}
    ports:
      - {name: {{ $port }}, containerPort: {{ ternary 8750 8751 (eq .role "coordinator") }}, protocol: TCP}
    startupProbe:
      httpGet: {path: /healthz, port: {{ $port }}}
      periodSeconds: 5
      failureThreshold: {{ div (add $values.startupSeconds 4) 5 }}
    # It takes no events any more: best started again.
    livenessProbe:
      httpGet: {path: /healthz, port: {{ $port }}}
      periodSeconds: 20
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe:
      httpGet: {path: /readyz, port: {{ $port }}}
      periodSeconds: 10
      timeoutSeconds: 5
    resources: {{- toYaml .party.resources | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts: {{- include "hubbub.mounts" . | nindent 6 }}
volumes: {{- include "hubbub.volumes" . | nindent 2 }}
{{- end -}}
