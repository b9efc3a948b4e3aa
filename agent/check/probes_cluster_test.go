package check

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/cluster"
)

func TestProbeCluster(t *testing.T) {
	const server = "https://10.0.0.1:6443"
	for _, c := range []struct {
		is     cluster.State
		err    error
		status Status
		says   string
	}{
		{cluster.State{}, nil, OK, "its own"},
		{cluster.State{Phase: "Joined", Server: server}, nil, OK, server},
		{cluster.State{Phase: "Joined", Server: server, Serving: "approval"}, nil, Limited, "approval"},
		{cluster.State{Phase: "CertificateEnded", Server: server, Message: "set the clock"}, nil, Limited, "CertificateEnded: set the clock"},
		{cluster.State{}, errors.New("no answer"), Limited, "no answer"},
	} {
		e := &env{cluster: func(context.Context) (cluster.State, error) { return c.is, c.err }}
		if a := probeCluster(t.Context(), e); a.status != c.status || !strings.Contains(a.found, c.says) {
			t.Errorf("%+v, %v: %+v", c.is, c.err, a)
		}
	}
	if a := probeCluster(t.Context(), &env{}); a.status != OK {
		t.Errorf("nobody to ask: %+v", a)
	}
}
