{{- define "labels" -}}
app.kubernetes.io/name: evenkeel-cni, app.kubernetes.io/instance: {{ .Release.Name | quote }}, app.kubernetes.io/part-of: istio, app.kubernetes.io/managed-by: {{ .Release.Service | quote }}, app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}, helm.sh/chart: "{{ .Chart.Name }}-{{ .Chart.Version }}"
{{- end -}}
