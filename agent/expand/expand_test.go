package expand

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/node"
)

const (
	began1   = `patch {"allocatedResourceStatuses":{"storage":"NodeResizeInProgress"}}`
	expanded = "expand d h pv 2048"
	ended1   = `patch {"allocatedResourceStatuses":{"storage":null},"capacity":{"storage":"2Gi"},` +
		`"conditions":[{"lastProbeTime":null,"lastTransitionTime":null,"status":"True","type":"Other"}]}`
)

// once is how long to wait for the second try, and no third one.
const once = firstDelay*3/2 - 1

var told = []string{"event " + reasonExpanded + " a", "event " + reasonExpanded + " b", "event " + reasonExpanded + " claim"}

// test has a cluster in a bubble, where nothing waits for the clock.
func test(t *testing.T, name string, do func(*testing.T, *cluster)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			do(t, c)
			c.end()
		})
	})
}

// TestExpand expands a volume that two pods have, once.
func TestExpand(t *testing.T) {
	all := append([]string{began1, expanded, ended1}, told...)
	for _, deaf := range []bool{false, true} {
		test(t, fmt.Sprint("deaf ", deaf), func(t *testing.T, c *cluster) {
			c.deaf = deaf // its own changes are what it knows of the claim
			c.start()
			c.said(all...)
			if c.settled != 1 {
				t.Errorf("pods were told %d times", c.settled)
			}
			c.x.Look()
			c.x.Again()
			time.Sleep(time.Hour)
			c.said()
			if deaf { // something of before comes late
				c.x.Look()
				c.said()
			}
		})
	}
	test(t, "the controller is slower", func(t *testing.T, c *cluster) {
		set := func(s corev1.ClaimResourceStatus) func() {
			return func() { c.claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = s }
		}
		set(corev1.PersistentVolumeClaimControllerResizeInProgress)()
		c.show()
		c.start()
		c.said()
		c.change(set(corev1.PersistentVolumeClaimNodeResizePending))
		c.said(all...)
	})
	test(t, "the pod is slower", func(t *testing.T, c *cluster) {
		uses := c.here.Uses
		c.here.Uses = nil
		c.start()
		c.said()
		c.mu.Lock()
		c.here.Uses = uses
		c.here.Size = 2 << 30 // it was expanded when the pod got it
		c.mu.Unlock()
		c.x.Look()
		c.said(append([]string{ended1}, told...)...)
	})
}

// TestKilled begins where another was killed.
func TestKilled(t *testing.T) {
	inProgress := func(c *cluster) {
		c.claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInProgress
		c.show()
	}
	test(t, "before the driver", func(t *testing.T, c *cluster) {
		inProgress(c)
		c.start()
		c.said(append([]string{expanded, ended1}, told...)...)
	})
	test(t, "after the driver", func(t *testing.T, c *cluster) {
		inProgress(c)
		c.here.Size = 2 << 30
		c.start()
		c.said(append([]string{ended1}, told...)...)
	})
	test(t, "after all", func(t *testing.T, c *cluster) {
		c.start()
		c.said(append([]string{began1, expanded, ended1}, told...)...)
		c.start()
		c.said()
	})
	test(t, "while a driver hangs", func(t *testing.T, c *cluster) {
		going := make(chan struct{})
		c.fails = func(node.Expansion) error { close(going); return context.Canceled }
		c.start()
		<-going
		c.end()
		c.fails, c.did = nil, nil
		c.start()
		c.said(append([]string{expanded, ended1}, told...)...)
	})
}

// TestAway has the API server be away at each step: what is left is done when it is back.
func TestAway(t *testing.T) {
	test(t, "at first", func(t *testing.T, c *cluster) {
		c.away = errors.New("connection refused")
		c.start()
		c.said("away")
		time.Sleep(once)
		c.said("away")
		time.Sleep(24 * time.Hour)
		c.mu.Lock()
		c.did, c.away = nil, nil
		c.mu.Unlock()
		c.x.Again()
		c.said(append([]string{began1, expanded, ended1}, told...)...)
	})
	test(t, "in the midst", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error { c.away = errors.New("connection refused"); return nil }
		c.start()
		c.said(began1, expanded, "away")
		c.mu.Lock()
		c.away = nil
		c.mu.Unlock()
		time.Sleep(mostDelay)
		c.said(append([]string{ended1}, told...)...)
	})
	test(t, "somebody else has changed it", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error {
			c.claim = c.claim.DeepCopy()
			c.claim.ResourceVersion = "other"
			return nil
		}
		c.start()
		c.said(began1, expanded, "conflict", "get claim")
		time.Sleep(once)
		c.said(append([]string{ended1}, told...)...)
	})
}

func answer(code codes.Code) error {
	return &csi.Error{Driver: "d", Method: "NodeExpandVolume", Code: code, Message: "no"}
}

const failure = `"conditions":[{"lastProbeTime":null,"lastTransitionTime":null,"status":"True","type":"FileSystemResizePending"},` +
	`{"lastProbeTime":null,"lastTransitionTime":null,"status":"True","type":"Other"},` +
	`{"lastProbeTime":null,"lastTransitionTime":"2000-01-01T00:00:00Z","message":"failed to expand the volume on the node: ` +
	`call NodeExpandVolume of CSI driver d: %s: no","status":"True","type":"NodeResizeError"}]`

var warned = []string{"event " + reasonFailed + " a", "event " + reasonFailed + " b"}

func condition(code codes.Code) string { return "patch {" + fmt.Sprintf(failure, code) + "}" }

// TestFailures has the driver fail.
func TestFailures(t *testing.T) {
	test(t, "later it does", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error { return answer(codes.Internal) }
		c.start()
		c.said(append(append([]string{began1, expanded}, warned...), condition(codes.Internal))...)
		time.Sleep(once)
		c.said(append([]string{expanded}, warned...)...)
		if c.settled != 2 {
			t.Errorf("pods were told %d times of final answers", c.settled)
		}
		c.mu.Lock()
		c.fails = nil
		c.mu.Unlock()
		time.Sleep(mostDelay)
		c.said(append([]string{expanded, ended1}, told...)...)
	})
	test(t, "it may be at it", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error { return answer(codes.DeadlineExceeded) }
		c.start()
		c.said(append([]string{began1, expanded}, warned...)...)
	})
	test(t, "the node waits", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error {
			return &node.Backoff{Until: time.Now().Add(time.Minute), Last: answer(codes.Internal)}
		}
		c.start()
		c.said(began1, expanded)
		if c.settled != 0 {
			t.Error("pods were told, with nothing new")
		}
		time.Sleep(time.Minute - time.Nanosecond)
		c.said()
		time.Sleep(time.Nanosecond)
		c.said(expanded)
	})
	test(t, "it is not there", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error { return csi.ErrNotRegistered }
		c.start()
		c.said(began1, expanded)
		c.mu.Lock()
		c.fails = nil
		c.mu.Unlock()
		c.x.Again()
		c.said(append([]string{expanded, ended1}, told...)...)
	})
	for _, code := range []codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound} {
		test(t, code.String(), func(t *testing.T, c *cluster) {
			c.fails = func(node.Expansion) error { return answer(code) }
			c.start()
			c.said(append(append([]string{began1, expanded}, warned...),
				`patch {"allocatedResourceStatuses":{"storage":"NodeResizeInfeasible"},`+strings.TrimPrefix(condition(code), "patch {"), "expand d h pv 0")...)
			if c.settled != 1 {
				t.Errorf("pods were told %d times", c.settled)
			}
			c.x.Again()
			time.Sleep(time.Hour)
			c.said() // the controller's turn
			c.change(func() {
				c.fails = nil
				c.claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizePending
			})
			c.said(append([]string{began1, expanded, ended1}, told...)...)
		})
	}
	test(t, "not while it is in use", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error { return answer(codes.FailedPrecondition) }
		c.start()
		c.said(append(append([]string{began1, expanded}, warned...), condition(codes.FailedPrecondition))...)
		c.x.Again()
		time.Sleep(time.Hour)
		c.said()
		c.mu.Lock()
		c.here.Size = 2 << 30 // the next pod has got it so
		c.mu.Unlock()
		c.x.Look()
		c.said(append([]string{ended1}, told...)...)
	})
	test(t, "less is wanted", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error { return answer(codes.ResourceExhausted) }
		c.start()
		c.said(append(append([]string{began1, expanded}, warned...), condition(codes.ResourceExhausted))...)
		c.change(func() { c.claim.Spec.Resources.Requests = quantities("1536Mi") })
		c.said(append(append([]string{expanded}, warned...),
			`patch {"allocatedResourceStatuses":{"storage":"NodeResizeInfeasible"}}`, "expand d h pv 0")...)
	})
}

// TestSecret waits for what the driver needs.
func TestSecret(t *testing.T) {
	test(t, "", func(t *testing.T, c *cluster) {
		c.volume.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Name: "key"}
		c.show()
		c.start()
		c.said(append([]string{began1}, warned...)...)
		c.store.Put(object.RefTo(object.Secret, "ns", "key"), &corev1.Secret{Data: map[string][]byte{"k": []byte("v")}})
		c.x.SecretCame()
		c.said(append([]string{expanded + " k=v", ended1}, told...)...)
	})
}

// TestNothing leaves alone what is not to be expanded.
func TestNothing(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"read-only":            func(c *cluster) { c.here.Uses[0].ReadOnly, c.here.Uses[1].ReadOnly = true, true },
		"half done":            func(c *cluster) { c.here.Uses[0].Published, c.here.Uses[1].Published = false, false },
		"inline":               func(c *cluster) { c.here.Ephemeral = true },
		"of a manifest":        func(c *cluster) { c.here.Uses[0].Name, c.here.Uses[1].Name = "other", "other" },
		"another handle":       func(c *cluster) { c.here.Handle = "other" },
		"another driver":       func(c *cluster) { c.here.Driver = "other" },
		"of an earlier claim":  func(c *cluster) { c.claim.UID = "other" },
		"of nobody":            func(c *cluster) { c.volume.Spec.ClaimRef = nil },
		"no volume of drivers": func(c *cluster) { c.volume.Spec.CSI = nil },
		"as large": func(c *cluster) {
			c.claim.Status.Capacity, c.claim.Status.AllocatedResourceStatuses = quantities("1Gi"), nil
		},
	} {
		test(t, name, func(t *testing.T, c *cluster) {
			change(c)
			c.show()
			c.start()
			c.said()
		})
	}
	test(t, "the pods go", func(t *testing.T, c *cluster) {
		c.fails = func(node.Expansion) error { c.here.Uses = nil; return nil }
		c.start()
		c.said(began1, expanded)
		time.Sleep(time.Hour)
		c.said()
	})
}

// TestElsewhere has another node say in the claim that it is done: here it is not.
func TestElsewhere(t *testing.T) {
	test(t, "", func(t *testing.T, c *cluster) {
		c.claim.Status.Capacity, c.claim.Status.AllocatedResourceStatuses = quantities("2Gi"), nil
		c.show()
		c.start()
		c.said(append([]string{expanded}, told...)...)
		c.x.Look()
		c.said()
	})
}

func TestJudge(t *testing.T) {
	const gi = 1 << 30
	for _, r := range []struct {
		capacity, allocated string
		status              corev1.ClaimResourceStatus
		has                 int64
		want                verdict
	}{
		{"2Gi", "", "", 2 * gi, verdict{}},
		{"2Gi", "2Gi", "", 2 * gi, verdict{}},
		{"3Gi", "", "", 3 * gi, verdict{}},
		{"2Gi", "2Gi", "", gi, verdict{bytes: 2 * gi}},
		{"1Gi", "", "", gi, verdict{bytes: 2 * gi, tell: true}}, // an older resizer
		{"1Gi", "2Gi", "", gi, verdict{}},
		{"1Gi", "2Gi", corev1.PersistentVolumeClaimControllerResizeInProgress, gi, verdict{}},
		{"1Gi", "2Gi", corev1.PersistentVolumeClaimControllerResizeInfeasible, gi, verdict{}},
		{"1Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizeInfeasible, gi, verdict{}},
		{"1Gi", "2Gi", "SomethingLater", gi, verdict{}},
		{"1Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizePending, gi, verdict{2 * gi, true, true}},
		{"1Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizeInProgress, gi, verdict{2 * gi, true, true}},
		{"1Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizePending, 2 * gi, verdict{2 * gi, false, true}},
		{"", "2Gi", corev1.PersistentVolumeClaimNodeResizePending, 0, verdict{2 * gi, true, true}},
		{"2Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizePending, 2 * gi, verdict{2 * gi, false, true}},
		// The volume is of before.
		{"2Gi", "3Gi", corev1.PersistentVolumeClaimNodeResizePending, 2 * gi, verdict{}},
		{"1Gi", "3Gi", corev1.PersistentVolumeClaimNodeResizeInProgress, gi, verdict{}},
		{"2Gi", "", corev1.PersistentVolumeClaimNodeResizePending, 2 * gi, verdict{}},
	} {
		c := &corev1.PersistentVolumeClaim{}
		c.Status.Capacity, c.Status.AllocatedResources = quantities(r.capacity), quantities(r.allocated)
		if r.status != "" {
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: r.status}
		}
		v := &corev1.PersistentVolume{}
		v.Spec.Capacity = quantities("2Gi")
		if got := judge(c, v, r.has); got != r.want {
			t.Errorf("%+v: %+v", r, got)
		}
	}
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{notRequired: "true"}}}
	c.Status.Capacity = quantities("2Gi")
	v := &corev1.PersistentVolume{}
	v.Spec.Capacity = quantities("2Gi")
	if got := judge(c, v, gi); got != (verdict{}) {
		t.Errorf("where the node has no part: %+v", got)
	}
	if got := judge(c, &corev1.PersistentVolume{}, gi); got != (verdict{}) {
		t.Errorf("of a volume without a capacity: %+v", got)
	}
}
