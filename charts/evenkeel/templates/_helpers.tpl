{{- define "name" -}}
istiod{{ if .Values.revision }}-{{ .Values.revision }}{{ end }}
{{- end -}}
{{- define "revision" -}}
{{ .Values.revision | default "default" }}
{{- end -}}
{{- /* Of objects of this revision. What follows a namespace in a name is absent where that is Istio's habit. */ -}}
{{- define "suffix" -}}
{{ if .Values.revision }}-{{ .Values.revision }}{{ end }}
{{- end -}}
{{- define "labels" -}}
app.kubernetes.io/name: istiod, app.kubernetes.io/instance: {{ .Release.Name | quote }}, app.kubernetes.io/part-of: istio, app.kubernetes.io/managed-by: {{ .Release.Service | quote }}, app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}, helm.sh/chart: "{{ .Chart.Name }}-{{ .Chart.Version }}", istio.io/rev: {{ template "revision" . }}
{{- end -}}
