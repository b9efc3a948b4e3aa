package cli

import (
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/api"
)

func TestPrintPruned(t *testing.T) {
	p := &api.Pruned{DryRun: true, Bytes: 1500, Items: []api.Freed{
		{Kind: api.FreedImage, Name: "registry.test/a\x1b[31m:1", ID: "sha256:1", Bytes: 1000},
		{Kind: api.FreedContainer, Name: "main", ID: "2", Pod: "default/web", Bytes: 500},
	}}
	for output, want := range map[string][]string{
		"":     {"KIND", "image", "<none>", "1kB", "default/web", "Would free 1.5kB."},
		"json": {`"dryRun": true`, `"bytes": 1500`, `"kind": "container"`},
		"yaml": {"dryRun: true", "  kind: image"},
	} {
		var out strings.Builder
		if err := printPruned(&out, output, p); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("-o %q lacks %q:\n%s", output, w, out.String())
			}
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("-o %q lets an escape sequence through", output)
		}
	}
	var out strings.Builder
	if err := printPruned(&out, "", &api.Pruned{}); err != nil || out.String() != "Freed 0B.\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}
