package issued

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/issued/issuedtest"
)

type thing struct{ Text string }

// TestKept: what a pod was issued is read under its name, by that pod alone, and nothing that is not readable.
func TestKept(t *testing.T) {
	k := new(issuedtest.Store)
	Keep(t.Context(), k, "u", "token", thing{"secret"})
	Keep(t.Context(), k, "u", "broken", func() {}) // no JSON
	k.Hand(t.Context(), "u", "torn", []byte(`{"Text":"sec`))
	var got thing
	if !Kept(k, "u", "token", &got) || got.Text != "secret" {
		t.Errorf("%+v", got)
	}
	for _, of := range []struct {
		store Store
		uid   types.UID
		name  string
	}{{k, "v", "token"}, {k, "u", "certificate"}, {k, "u", "broken"}, {k, "u", "torn"}, {nil, "u", "token"}} {
		if Kept(of.store, of.uid, of.name, &got) {
			t.Errorf("%s of %s is there", of.name, of.uid)
		}
	}
	Keep(t.Context(), nil, "u", "token", thing{"secret"})
}

// hung is on a disk that does not answer.
type hung struct{ issuedtest.Store }

func (h *hung) Hand(ctx context.Context, _ types.UID, _ string, _ []byte) { <-ctx.Done() }

// TestHungDisk: a pod has what it was issued though it is not kept.
func TestHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		Keep(t.Context(), new(hung), "u", "token", thing{"secret"})
		if took := time.Since(began); took != timeout {
			t.Errorf("it took %s", took)
		}
	})
}
