package manifest

import (
	"testing"
	"time"

	"github.com/berth-node/berth/agent/desired"
)

// BenchmarkDecode measures what a manifest costs from its text to a pod that may run.
func BenchmarkDecode(b *testing.B) {
	text := []byte(podYAML("web", "nginx:1") + `    ports: [{containerPort: 80}]
    env: [{name: A, value: b}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {cpu: 1, memory: 1Gi}}
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v}]
`)
	b.ReportAllocs()
	for b.Loop() {
		docs := decode(text)
		if _, ok := static(&docs[0], "node", desired.File, time.Now()); !ok {
			b.Fatal(docs[0].errors)
		}
	}
}
