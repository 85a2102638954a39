{{- define "cenote.labels" -}}
app.kubernetes.io/name: cenote
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
{{- define "cenote.least" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
{{- define "cenote.resources" -}}
requests: {cpu: 100m, memory: {{ .Values.memory }}}
limits: {memory: {{ .Values.memory }}}
{{- end -}}
