package cli

import (
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/internal/commandline"
)

func TestPrintPruned(t *testing.T) {
	p := &api.Pruned{DryRun: true, Bytes: 1500, Items: []api.Freed{
		{Kind: api.FreedImage, Name: "registry.test/a\x1b[31m:1", ID: "sha256:1", Bytes: 1000},
		{Kind: api.FreedContainer, Name: "main", ID: "2", Pod: "default/web", Bytes: 500},
	}}
	var out strings.Builder
	if err := tablePruned(commandline.Visible(&out), p); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"KIND", "image", "<none>", "1kB", "default/web", "Would free 1.5kB."} {
		if !strings.Contains(out.String(), w) {
			t.Errorf("no %q in\n%s", w, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("an escape sequence comes through")
	}
	out.Reset()
	if err := tablePruned(&out, &api.Pruned{}); err != nil || out.String() != "Freed 0B.\n" {
		t.Errorf("%v, %q", err, out.String())
	}
}
