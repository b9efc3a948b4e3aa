package control

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStopWithoutQuorum asks the last of three members to end, with a request under way that nobody can answer. It ends
// without the others, and does not wait for what needs them.
func TestStopWithoutQuorum(t *testing.T) {
	t.Parallel()
	_, planes := three(t, [3]string{t.TempDir(), t.TempDir(), t.TempDir()})
	planes[1].kill()
	planes[2].kill()
	last := planes[0]
	until(t, "there is no leader", func() error {
		out, err := control(t, last.dir, "etcd", "members")
		if err == nil && !strings.Contains(out, "most members do not answer") {
			err = errors.New(out)
		}
		return err
	})
	answered := make(chan error, 1)
	go func() {
		_, err := last.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap("late"), metav1.CreateOptions{})
		answered <- err
	}()
	last.stop(t)
	if err := <-answered; err == nil {
		t.Error("a write was acknowledged by one of three")
	}
	if state := last.cmd.ProcessState; !state.Success() {
		t.Errorf("asked to end, it has ended with %s", state)
	}
	if out := last.output.String(); !strings.Contains(out, "etcd does not answer: the server ends without it") {
		t.Error("it has waited for the others")
	}
}
